"""Open images, and compute their features, with a progress bar; and look whether an output can be written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from torch import Tensor, nn

from nearfar.atomic import check_folder
from nearfar.data import Images, open_images
from nearfar.evaluation import extract, extract_view
from nearfar.networks import Encoder
from nearfar.training.progress import shows_bars
from nearfar.views import Views

PAGES = (".html",)


@contextmanager
def shown(console: Console | None, title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback (done, total) that moves a progress bar; there is one on a terminal and in a notebook."""
    live = console is not None and shows_bars(console)
    with Progress(console=console, transient=True, disable=not live) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def open_shown(source: Any, console: Console, **options: Any) -> Images:
    """Open images as `nearfar.data.open_images` does and show how far the decoding is."""
    with shown(console, "reading images") as progress:
        return open_images(source, progress=progress, **options)


def sampled_shown(images: Images, limit: int, seed: int, console: Console) -> Images:
    """Return at most `limit` of the images, a random sample, and say so where it is one."""
    if limit < len(images):
        console.print(Text(f"--limit: {limit} of {len(images)} images, a random sample (seed {seed})"))
    return images.sampled(limit, seed)


def check_output(path: Path, endings: Sequence[str], beside: Sequence[str] = ()) -> None:
    """Raise ValueError for an output that exists already, or with another ending; OSError where none can be written.

    beside: endings of further files, which are written beside it and must not exist either.
    """
    if path.suffix not in endings:
        raise ValueError(f"{path} ends in {path.suffix or 'nothing'}; choose an --out in {' or '.join(endings)}")
    for one in (path, *(path.with_suffix(ending) for ending in beside)):
        if os.path.lexists(one):
            also = "" if one == path else f", and {path.name} comes with a {one.suffix} beside it"
            raise ValueError(f"{one} exists already{also}; choose another --out")
    check_folder(path.parent)


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
    Raises ValueError for features that are not finite.
    """
    device = "cuda" if torch.cuda.is_available() else None
    with shown(console, title) as progress:
        if view is None:
            features = extract(encoder, images, device=device, progress=progress)
        else:
            assert isinstance(encoder, Encoder) and generator is not None
            features = extract_view(encoder, images, view, generator, device=device, progress=progress)
    if bad := int((~features.isfinite()).any(1).sum()):
        raise ValueError(f"the features of {bad} of {len(images)} images are not finite: the encoder's weights are bad")
    return features
