"""Open images, and compute their features, with a progress bar; and refuse to overwrite a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from nearfar.data import Images, open_images
from nearfar.evaluation import features_of


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
    encoder: Callable[[Tensor], Tensor], images: Images, console: Console | None = None, name: str = "", **options: Any
) -> Tensor:
    """Compute the features of all images [images, dim] as `evaluation.features_of` does, with a progress bar."""
    with shown(console, name) as progress:
        return features_of(encoder, images, progress=progress, **options)
