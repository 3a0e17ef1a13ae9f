"""Results of `search`: a table, and each query with its nearest images on a page, or with the image
that it was cut from.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.nn.functional import normalize

from nearfar.data.thumbnails import data_url
from nearfar.embeddings import Embeddings
from nearfar.embeddings.queries import Queries, resolve_queries
from nearfar.isolation import isolated
from nearfar.neighbours import Nearest
from nearfar.neighbours.edit_maps import Local, comparable, opencv
from nearfar.neighbours.edited_copies import CACHED, Origin, find_origin, of_eight_bits
from nearfar.neighbours.edits import corners_in_first, edit_in_words
from nearfar.neighbours.full_size import full_size
from nearfar.pages.sheet import SIZE, Figure, Group, contact_sheet, picture, thumbnails_for
from nearfar.progress import Table, log
from nearfar.tools.result import Columns, Result

OUTLINE = (255, 0, 160)  # colour of the frame around a query, on a white one
ALIKE = "; one has local features like it, look whether it is the same"
DISTANCES = "The line below a name is its rank and its distance: 0 for copies."


class SearchResult(Result):
    """The nearest images of each query."""

    def __init__(self, photos: Embeddings, queries: Queries, near: Nearest) -> None:
        k, rows = near.index.shape[1], near.index.flatten().tolist()
        columns: Columns = {
            "query": [name for name in queries.names for _ in range(k)],
            "rank": list(range(1, k + 1)) * len(queries.names),
            "name": [photos.images.names[row] for row in rows],
            "distance": near.distance.flatten().tolist(),
        }
        columns |= photos.columns(rows)
        table = Table("image", "", "most alike", "distance")
        shown = (columns[name] for name in ("query", "rank", "name", "distance"))
        for query, rank, name, far in zip(*shown, strict=True):
            table.add(query if rank == 1 else "", rank, name, f"{far:.4f}")
        super().__init__(
            photos,
            columns,
            rows=rows,
            title="Images most alike",
            about=f"among {len(photos)} images of {photos.images.where}",
            note=DISTANCES,
            lines=[table],
        )
        self.queries = queries

    @isolated()
    def page(self) -> str:
        """Return a contact sheet with a group for each query."""
        ranked = zip(self["rank"], self["distance"], strict=True)
        near = thumbnails_for(
            self.photos, self.rows, [f"{rank}: {far:.4f}" for rank, far in ranked]
        )
        k = len(near) // len(self.queries.names)
        channels = self.photos.images.shown
        groups = [
            Group([query, *near[place * k : (place + 1) * k]])
            for place, query in enumerate(_query_figures(self.queries, channels))
        ]
        return contact_sheet(self.title, self.about, self.note, groups=groups)


def _query_figures(queries: Queries, channels: list[int] | None) -> list[Figure]:
    """Return the pictures of queries, of these channels."""
    return [
        Figure(
            picture(pixels if channels is None else pixels[channels]), name, "query", marked=True
        )
        for name, pixels in zip(queries.names, queries.pixels, strict=True)
    ]


def find_origins(photos: Embeddings, images: Any, k: int | None) -> Origins:
    """Find the image that each query was cropped or edited from; see `nearfar.search`."""
    if k is not None:
        raise ValueError("`crop` finds one image for each query: leave `k` out")
    if not photos.has_pixels:
        raise ValueError("`crop` compares pixels: name the images of these vectors")
    if photos.images.channels not in (1, 3) or photos.images.value_range is not None:
        raise ValueError("`crop` compares grayscale and colour images of 8 bits")
    opencv()
    queries = resolve_queries(images, photos)
    likeness = normalize(queries.features, dim=1) @ normalize(photos.features, dim=1).T
    read, local = lru_cache(CACHED)(partial(full_size, photos.images)), dict[int, Local]()
    for place, name in enumerate(queries.names):
        if comparable(queries.at_full_size(place)) is None:
            raise ValueError(f"`crop` compares grayscale and colour images of 8 bits, not {name}")
    fit = of_eight_bits(photos.images, torch.arange(len(photos)))
    if wide := int((~fit).sum()):
        log.info("crops are found among images of 8 bits alone: %d of %d have more", wide, len(fit))
    origins: list[Origin | None] = []
    for place, own in enumerate(queries.own.tolist()):
        order = likeness[place].argsort(descending=True, stable=True).tolist()
        others = [row for row in order if row != own and fit[row]]
        query = queries.at_full_size(place)
        origins.append(find_origin(photos.images, query, others, local, read))
    return Origins(photos, queries, origins)


class Origins(Result):
    """The image that each query was cropped or edited from, where there is one."""

    def __init__(self, photos: Embeddings, queries: Queries, origins: list[Origin | None]) -> None:
        known = [
            (name, origin)
            for name, origin in zip(queries.names, origins, strict=True)
            if origin is not None
        ]
        rows = [origin.row for _, origin in known]
        boxes = np.array([_box(origin) for _, origin in known], dtype=int).reshape(-1, 4)
        left, top, width, height = boxes.T.tolist()
        named = photos.columns(rows)
        columns: Columns = {
            "query": [name for name, _ in known],
            "name": named.pop("name"),
            "edit": [_in_words(origin) for _, origin in known],
            "confirmed": [origin.confirmed for _, origin in known],
            **{"left": left, "top": top, "width": width, "height": height},
            **named,
        }
        table = Table("image", "cut from", "edit", "confirmed", "left", "top", "width", "height")
        shown = ("query", "name", "edit", "confirmed", "left", "top", "width", "height")
        for row in zip(*(columns[name] for name in shown), strict=True):
            table.add(*row)
        missing = [
            f"no {'other ' if own >= 0 else ''}image has the pixels of {name}"
            f"{'' if origin is None else ALIKE}"
            for name, own, origin in zip(queries.names, queries.own.tolist(), origins, strict=True)
            if origin is None or not origin.confirmed
        ]
        super().__init__(
            photos,
            columns,
            rows=rows,
            title="Where images come from",
            about=f"among {len(photos)} images of {photos.images.where}",
            note="The frame is the part of an image that a query shows.",
            lines=[*([table] if known else []), *missing],
        )
        self.queries, self.origins = queries, origins

    @isolated()
    def page(self) -> str:
        """Return a contact sheet with each query and its image, on which it is framed."""
        groups = []
        queries = _query_figures(self.queries, self.photos.images.shown)
        owns = self.queries.own.tolist()
        for query, own, origin in zip(queries, owns, self.origins, strict=True):
            figures = [query] if origin is None else [query, self._framed(origin)]
            unsure = "" if origin is None else ALIKE
            confirmed = origin is not None and origin.confirmed
            missing = f"no {'other ' if own >= 0 else ''}image has its pixels{unsure}"
            groups.append(Group(figures, "" if confirmed else missing))
        return contact_sheet(self.title, self.about, self.note, groups=groups)

    def _framed(self, origin: Origin) -> Figure:
        """Return an image with the frame of the query on it."""
        planes = comparable(full_size(self.photos.images, origin.row))
        assert planes is not None
        image = Image.fromarray(planes.transpose(1, 2, 0).squeeze()).convert("RGB")
        image.thumbnail((2 * SIZE, 2 * SIZE))
        corners = corners_in_first(origin.edit) * image.size
        frame = [tuple(corner) for corner in (*corners, *corners[:1])]
        draw = ImageDraw.Draw(image)
        for colour, width in (("white", 5), (OUTLINE, 3)):
            draw.line(frame, fill=colour, width=width)
        pixels = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
        named = self.photos.columns([origin.row])
        link = Path(named["path"][0]).absolute().as_uri() if "path" in named else None
        return Figure(data_url(pixels), named["name"][0], _in_words(origin), link)


def _in_words(origin: Origin) -> str:
    """Return how an image becomes the query."""
    if origin.equal:
        return "the same pixels"
    return edit_in_words(origin.edit, origin.size, origin.made)


def _box(origin: Origin) -> tuple[int, int, int, int]:
    """Return the box around a query in its image, in pixels: left, top, width and height."""
    corners = (corners_in_first(origin.edit) * origin.size).round().clip(0, origin.size)
    start, end = corners.min(0), corners.max(0)
    left, top, width, height = (int(number) for number in (*start, *(end - start)))
    return left, top, width, height
