"""Small pictures of images with a line on each, and pages that hold some: a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.data.thumbnails import ENLARGED, data_url, thumbnails
from nearfar.embeddings import Embeddings
from nearfar.pages.template import render_page
from nearfar.views import eight_bits

SIZE = 128  # pixels of a picture, at most
GATHERED = 256  # images that are held at a time


class Figure(NamedTuple):
    """One image of a sheet: its picture, its name and a line on it; it opens the file where there
    is one.
    """

    url: str
    name: str
    caption: str
    href: str | None = None
    marked: bool = False


class Group(NamedTuple):
    """Images that stand together, below a title where there is one; size: what is said beside
    it.
    """

    figures: Sequence[Figure]
    title: str = ""
    size: str = ""


def contact_sheet(
    title: str,
    about: str,
    note: str,
    *,
    figures: Sequence[Figure] = (),
    groups: Sequence[Group] = (),
) -> str:
    """Return a page with these images, in one row that wraps or in groups; it asks for nothing
    outside itself.
    """
    return render_page(
        "contact_sheet.html", title=title, about=about, note=note, figures=figures, groups=groups
    )


def thumbnails_for(
    photos: Embeddings, rows: Sequence[int], captions: Sequence[str]
) -> list[Figure]:
    """Return images, by their positions, each with a line on it."""
    urls: dict[int, str] = {}
    for some in torch.tensor(sorted(set(rows)), dtype=torch.int64).split(GATHERED):
        urls.update(
            zip(some.tolist(), map(picture, photos.images.pictures(some, SIZE)), strict=True)
        )
    names, paths = photos.images.names, photos.paths
    links = [None if paths is None else Path(paths[row]).absolute().as_uri() for row in rows]
    return [
        Figure(urls[row], names[row], line, link)
        for row, line, link in zip(rows, captions, links, strict=True)
    ]


def picture(pixels: Shaped[Tensor, "channels side side"]) -> str:
    """Return one small picture, uint8 or float in 0..1, as a data URL."""
    [tile] = thumbnails(eight_bits(pixels)[None], SIZE)
    return data_url(tile, lossless=tile.shape[-1] < ENLARGED)
