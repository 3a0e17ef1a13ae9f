"""Images in rows on a page, each with its name and a line on it: contact sheets, choices, clusters."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.commands.page import whole_page
from nearfar.commands.run_features import Featured
from nearfar.maps.thumbnails import data_url, thumbnails
from nearfar.views import eight_bits

SIZE = 128  # pixels of a picture, at most
ENLARGED = 48  # pictures below this are shown pixel by pixel
GATHERED = 256  # images that are held at a time


def pictures(data: Featured, rows: Sequence[int]) -> dict[int, str]:
    """Small pictures of images as data URLs, by their positions in the data."""
    wanted = torch.tensor(sorted(set(rows)), dtype=torch.int64)
    urls: dict[int, str] = {}
    for some in wanted.split(GATHERED):
        urls.update(zip(some.tolist(), map(picture, data.images.pictures(some)), strict=True))
    return urls


def picture(pixels: Shaped[Tensor, "channels side side"]) -> str:
    """One small picture, uint8 or float in 0..1, as a data URL."""
    [tile] = thumbnails(eight_bits(pixels)[None], SIZE)
    return data_url(tile, lossless=tile.shape[-1] < ENLARGED)


def figure(url: str, name: str, said: str = "", path: str | None = None, *, marked: bool = False) -> str:
    """One image of a gallery: its picture, its name and a line on it; it opens the file where there is one."""
    known, last = html.escape(name), html.escape(name.rpartition("/")[2])
    inside = (
        f'<figure><img src="{url}" alt="{known}" loading="lazy">'
        f'<figcaption title="{known}"><b>{last}</b><br>{html.escape(said)}</figcaption></figure>'
    )
    if path is not None:
        inside = f'<a href="{html.escape(Path(path).absolute().as_uri())}">{inside}</a>'
    return f'<li class="marked">{inside}</li>' if marked else f"<li>{inside}</li>"


def gallery(data: Featured, rows: Sequence[int], said: Sequence[str], urls: dict[int, str]) -> str:
    """Return images of the data in a row that wraps, each with a line on it."""
    names, paths = data.images.names, data.paths
    figures = [
        figure(urls[row], names[row], line, None if paths is None else paths[row])
        for row, line in zip(rows, said, strict=True)
    ]
    return f'<ul class="gallery">{"".join(figures)}</ul>'


def write_gallery(path: Path, title: str, about: str, main: str, *, scripts: Sequence[str] = ()) -> None:
    """Write a page with galleries in its main part; it asks for nothing outside itself."""
    style = resources.files("nearfar.commands").joinpath("gallery.css").read_text(encoding="utf-8")
    page = whole_page(title, about, f"<style>\n{style}</style>{main}", scripts=scripts)
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
