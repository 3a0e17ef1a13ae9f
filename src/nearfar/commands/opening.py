"""Open images, and compute their features, with a progress bar; and refuse to overwrite a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from nearfar.data import Images, open_images
from nearfar.evaluation import extract, extract_view
from nearfar.networks import Encoder
from nearfar.views import Views


@contextmanager
def shown(console: Console | None, title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback (done, total) that moves a progress bar; without a terminal there is none."""
    live = console is not None and console.is_terminal
    with Progress(console=console, transient=True, disable=not live) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def open_shown(source: Any, console: Console, **options: Any) -> Images:
    """Open images as `nearfar.data.open_images` does and show how far the decoding is."""
    with shown(console, "reading images") as progress:
        return open_images(source, progress=progress, **options)


def must_be_new(path: Path) -> None:
    """Raise ValueError for an output that exists already."""
    if path.exists():
        raise ValueError(f"{path} exists already; choose another --out")


def features_shown(
    encoder: nn.Module | Callable[[Tensor], Tensor],
    images: Images,
    console: Console | None = None,
    title: str = "",
    view: Views | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute the features of all images [images, dim], on a GPU if there is one, and show how far that is.

    view, generator: for the features of one augmented view of each image; the encoder is an `Encoder` then.
    """
    device = "cuda" if torch.cuda.is_available() else None
    with shown(console, title) as progress:
        if view is None:
            return extract(encoder, images, device=device, progress=progress)
        assert isinstance(encoder, Encoder) and generator is not None
        return extract_view(encoder, images, view, generator, device=device, progress=progress)
