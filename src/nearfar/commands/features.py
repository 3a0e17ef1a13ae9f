"""Features of images, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from nearfar.data import Images
from nearfar.evaluation import extract, extract_view
from nearfar.networks import Encoder
from nearfar.views import Views


def features_of(
    encoder: nn.Module | Callable[[Tensor], Tensor], images: Images, console: Console | None = None, name: str = ""
) -> Tensor:
    """Return the features of all images [N, dim], on the GPU where there is one."""
    with _bar(console) as bar:
        return extract(encoder, images, device=_device(), progress=_shown(bar, name))


def view_features_of(
    encoder: Encoder, images: Images, view: Views, generator: torch.Generator, console: Console | None, name: str
) -> Tensor:
    """Return the features of one augmented view of all images [N, dim], on the GPU where there is one."""
    with _bar(console) as bar:
        return extract_view(encoder, images, view, generator, device=_device(), progress=_shown(bar, name))


def _device() -> str | None:
    return "cuda" if torch.cuda.is_available() else None


def _bar(console: Console | None) -> Progress:
    return Progress(console=console, transient=True, disable=console is None or not console.is_terminal)


def _shown(bar: Progress, name: str) -> Callable[[int, int], None]:
    task = bar.add_task(name.replace("_", " "), total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
