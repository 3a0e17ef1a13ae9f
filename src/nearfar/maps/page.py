"""A map as an interactive page that opens from disk: one file, or a folder for many images."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.data import Images
from nearfar.maps.colours import GREY, coloured
from nearfar.maps.columns import Column, described, packed
from nearfar.maps.document import document
from nearfar.maps.folder import renumbered, write_folder
from nearfar.maps.pyramid import Square, levels
from nearfar.maps.thumbnails import pack_sheets, thumbnails

# Pixels of a thumbnail for at most so many images. A full page stays below about 30 MB.
THUMBNAIL_SIZES = ((5_000, 64), (20_000, 32))
MOST_IMAGES = THUMBNAIL_SIZES[-1][0]


def write_map_page(
    path: str | os.PathLike[str],
    points: Float[Tensor, "images 2"],
    images: Images,
    *,
    title: str = "Map of the images",
    note: str = "",
    columns: Mapping[str, ArrayLike] | None = None,
    neighbours: Int[np.ndarray, "images k"] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Write an HTML page with one point for each image: pan, zoom, look, search, select; it asks for nothing else.

    path: ending in .html for one self-contained file; else a folder, which must not exist: index.html opens from disk
    by a double click, and thumbnails, names, columns and neighbours lie beside it and are loaded where they are
    looked at. Memory for writing a folder is bounded by the points and columns; images are read a few hundred at a
    time.
    note: a line below the number of images.
    columns: what the map can be coloured by, one value for each image (`nearfar.maps.columns.described` says how they
    are drawn). The column "kept" (share of the true neighbours that the map keeps, 0..1) is also drawn as opacity.
    neighbours: positions of the k nearest images in feature space, nearest first, -1 where there are fewer.
    progress: called with (done, total) thumbnail sheets of a folder.

    Names are shown as they are, whatever characters they hold; labels, where there are any, give colours and a legend.
    Thumbnails of a file are at most 64 px for up to 5000 images and at most 32 px for up to 20 000; of more images a
    fixed random 20 000 are shown and the page says so. Raises ValueError where images are not one for each point, or
    without any, and for points that are not finite.
    """
    count, path = len(points), Path(path)
    if count == 0 or len(images) != count:
        raise ValueError(f"a map page needs one image for each point, not {len(images)} for {count}")
    if neighbours is not None and len(neighbours) != count:
        raise ValueError(f"neighbours must have one row for each of the {count} images, not {len(neighbours)}")
    places = np.asarray(points.detach().cpu(), dtype=float)
    if not np.isfinite(places).all():
        raise ValueError("a map page needs finite points")
    drawn = described(columns, count)
    if path.suffix == ".html":
        data = _data(places, images, drawn, neighbours)
        path.write_text(document(title, note, data, folder=False), encoding="utf-8")
    else:
        write_folder(path, places, images, drawn, neighbours, title=title, note=note, progress=progress)


def _data(places: np.ndarray, images: Images, columns: list[Column], neighbours: np.ndarray | None) -> dict[str, Any]:
    """What a page in one file holds; of too many images a fixed choice."""
    count = len(places)
    shown: np.ndarray = np.arange(count)
    if count > MOST_IMAGES:
        shown = np.sort(np.random.default_rng(0).choice(count, MOST_IMAGES, replace=False))
    size = next(size for most, size in THUMBNAIL_SIZES if len(shown) <= most)
    rows = torch.from_numpy(shown).split(512)  # a few at a time: the images themselves may be large
    sheets = pack_sheets(torch.cat([thumbnails(images.pictures(some), size) for some in rows]))
    places = places[shown]
    square = Square.around(places)
    classes, of_point = coloured(None if images.labels is None else images.labels[shown], images.class_names)
    near = None
    if neighbours is not None:
        near = {"k": neighbours.shape[1], **packed(renumbered(neighbours, shown, count))}
    return {
        "points": [[float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in places],
        "names": [images.names[i] for i in shown],
        "count": len(shown),
        "total": count,
        "grey": GREY,
        "labels": None if images.labels is None else of_point.tolist(),
        "classes": [asdict(one) for one in classes],
        "columns": [{**column.description(), **packed(column.values[shown])} for column in columns],
        "neighbours": near,
        "square": asdict(square),
        "levels": [
            {"depth": level.depth, "points": packed(level.points), "counts": packed(level.counts)}
            for level in levels(places, square)
        ],
        "sheets": {"size": sheets.size, "cell": sheets.cell, "perRow": sheets.per_row, "urls": sheets.urls},
    }
