"""Contact sheets: images in rows, each with its name and a line on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.data import Images
from nearfar.maps.thumbnails import data_url, thumbnails
from nearfar.pages.template import write_page
from nearfar.views import eight_bits

SIZE = 128  # pixels of a picture, at most
ENLARGED = 48  # pictures below this are shown pixel by pixel
GATHERED = 256  # images that are held at a time


class Figure(NamedTuple):
    """One image of a sheet: its picture, its name and a line on it; it opens the file where there is one."""

    url: str
    name: str
    said: str
    href: str | None = None
    marked: bool = False


class Group(NamedTuple):
    """Images that stand together, below a title where there is one; size: what is said beside it."""

    figures: Sequence[Figure]
    title: str = ""
    size: str = ""


def write_contact_sheet(
    path: Path, title: str, about: str, note: str, *, figures: Sequence[Figure] = (), groups: Sequence[Group] = ()
) -> None:
    """Write a page with these images, in one row that wraps or in groups; it asks for nothing outside itself."""
    write_page(path, "contact_sheet.html", title=title, about=about, note=note, figures=figures, groups=groups)


def figures_of(images: Images, paths: Sequence[str] | None, rows: Sequence[int], said: Sequence[str]) -> list[Figure]:
    """Return images, by their positions, each with a line on it. paths: of their files, where they have some."""
    urls = pictures(images, rows)
    links = [None if paths is None else Path(paths[row]).absolute().as_uri() for row in rows]
    return [Figure(urls[row], images.names[row], line, link) for row, line, link in zip(rows, said, links, strict=True)]


def pictures(images: Images, rows: Sequence[int]) -> dict[int, str]:
    """Small pictures of images as data URLs, by their positions."""
    wanted = torch.tensor(sorted(set(rows)), dtype=torch.int64)
    urls: dict[int, str] = {}
    for some in wanted.split(GATHERED):
        urls.update(zip(some.tolist(), map(picture, images.pictures(some)), strict=True))
    return urls


def picture(pixels: Shaped[Tensor, "channels side side"]) -> str:
    """One small picture, uint8 or float in 0..1, as a data URL."""
    [tile] = thumbnails(eight_bits(pixels)[None], SIZE)
    return data_url(tile, lossless=tile.shape[-1] < ENLARGED)
