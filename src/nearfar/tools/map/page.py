"""The files of a map: an interactive page that opens from disk, one file or a folder for many
images; a table.

A page reads its parts: names, columns, neighbours and regions, with numbers in base64, and sheets
of thumbnails. One file holds them all. Browsers let a page from disk load neither data nor modules,
but images and plain scripts: in a folder every part is a script that hands over its data, and
images are in Z-order, so that neighbours on the map share a part. Each zoom has representatives,
one of each cell of a quadtree, by whose levels the sheets are ordered too (`sheets.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.atomic import replacing_all
from nearfar.data import Images
from nearfar.data.thumbnails import as_url, cell_of
from nearfar.maps import Map, MapQuality, save_map
from nearfar.maps.columns import GREY, Column, described, label_column, packed
from nearfar.pages.template import map_scripts, write_page
from nearfar.progress import tracked
from nearfar.tools.map.sheets import PER_ROW, PER_SHEET, Sheets, draw_sheet, ending_of, write_sheets

# Pixels of a thumbnail for at most so many images. A full page stays below about 30 MB.
THUMBNAIL_SIZES = ((5_000, 64), (20_000, 32))
MOST_IMAGES = THUMBNAIL_SIZES[-1][0]
FOLDER_SIZES = ((200_000, 64), (10**9, 48))  # the same of a folder
BLOCK = 4096  # images to a part of names or neighbours
COARSEST, FINEST = 2, 12  # depths of the quadtree; a depth of d has 2**d cells on a side
PICTURES = "pictures"  # of a folder, with its sheets
BESIDE = (".png", ".json", ".safetensors")  # files beside a page
NEIGHBOURS = 15  # of an image on the page


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Images on a plane, as a page shows them.

    columns: one value for each image, by which the page can be coloured, as by the share of kept
    neighbours (`quality`). near: the nearest images of each, of which the page shows 15. note: a
    line below the number of images. earlier: sheets of an earlier page in a folder, whose images
    are at the same coordinates now.
    """

    images: Images
    coordinates: Float[Tensor, "images 2"]
    quality: MapQuality | None
    columns: Mapping[str, ArrayLike]
    near: Int[Tensor, "images k"] | None
    note: str
    earlier: Sheets | None = None


def write_map(
    page: Path, plane: Plane, numbers: Mapping[str, Any], saved: Map | None
) -> Sheets | None:
    """Write the files of a map: page, figure, numbers and, if given, the map as a function: all or
    none.

    numbers: further ones for the .json. Returns the sheets of a folder.
    """
    from nearfar.maps.draw import draw_map  # here: matplotlib takes a second to import

    images = plane.images
    measured = {} if plane.quality is None else plane.quality.numbers()
    endings = (page.suffix, *(BESIDE if saved is not None else BESIDE[:2]))
    with replacing_all([page.with_suffix(ending) for ending in endings]) as unfinished:
        files = dict(zip(endings, unfinished, strict=True))
        if saved is not None:
            save_map(files[".safetensors"], saved)
        files[".json"].write_text(json.dumps({**numbers, **measured}, indent=2) + "\n")
        draw_map(files[".png"], plane.coordinates, images.labels, images.class_names, images=images)
        sheets = write_page_of(files[page.suffix], plane)
    return None if sheets is None else replace(sheets, folder=page / PICTURES)


def write_page_of(page: Path, plane: Plane) -> Sheets | None:
    """Write the page of a map alone; returns the sheets of a folder."""
    kept = {} if plane.quality is None else {"kept": plane.quality.kept}
    return write_map_page(
        page,
        plane.coordinates,
        plane.images,
        note=plane.note,
        columns={**plane.columns, **kept},
        neighbours=None if plane.near is None else plane.near[:, :NEIGHBOURS].numpy(),
        earlier=plane.earlier,
    )


def write_map_page(
    path: str | os.PathLike[str],
    points: Float[Tensor, "images 2"],
    images: Images,
    *,
    note: str = "",
    columns: Mapping[str, ArrayLike] | None = None,
    neighbours: Int[np.ndarray, "images k"] | None = None,
    earlier: Sheets | None = None,
) -> Sheets | None:
    """Write an HTML page with one point for each image: pan, zoom, inspect, search, select; it
    loads nothing else.

    path: ending in .html for one self-contained file; else a folder, which must not exist:
    index.html opens from disk by a double click, and loads thumbnails, names, columns and
    neighbours beside it when they are needed. Memory for writing a folder is bounded by the points
    and columns; images are read a few hundred at a time. note: a line below the number of images.
    columns: one value for each image, to colour the map by (`nearfar.maps.columns.described`). The
    column "kept" (share of the true neighbours that are near on the map, 0..1) is also drawn as
    opacity. neighbours: positions of the k nearest images in feature space, nearest first, -1 for
    none. earlier: sheets of thumbnails of an earlier folder, which are used again as far as they
    show what they have to. Returns the sheets of a folder.

    Names are shown as they are, whatever characters they contain; labels give colours and a legend.
    Thumbnails of a file are at most 64 px for up to 5000 images and at most 32 px for up to 20 000;
    of more images the page shows a fixed random 20 000 and says so. Raises ValueError unless there
    is one image for each point, for no images, and for points that are not finite.

    >>> images = nearfar.data.open_images("photos", image_size=32)
    >>> write_map_page("plane.html", torch.rand(len(images), 2), images)
    """
    coordinates = _checked(points, images, neighbours)
    drawn = described(columns, len(points))
    if images.labels is not None:
        drawn.insert(0, label_column(images.labels, images.class_names))
    path = Path(path)
    one_file = path.suffix == ".html"
    order: np.ndarray = np.arange(len(points))
    if one_file and len(order) > MOST_IMAGES:
        order = np.sort(np.random.default_rng(0).choice(len(order), MOST_IMAGES, replace=False))
    square = square_around(coordinates[order])
    if not one_file:
        order = np.argsort(z_order_keys(coordinates, square), kind="stable")
    regions = levels(coordinates[order], square)
    parts = _parts(order, coordinates, images.names, drawn, neighbours, regions)
    limits = THUMBNAIL_SIZES if one_file else FOLDER_SIZES
    size = min(images.image_size, next(size for most, size in limits if len(order) <= most))
    data: dict[str, Any] = {
        "block": BLOCK,
        "count": len(order),
        "total": len(points),
        "grey": GREY,
        "columns": [column.description() for column in drawn],
        "neighbours": None if neighbours is None else {"k": neighbours.shape[1]},
        "square": square._asdict(),
        "levels": [{"depth": depth} for depth in regions],
        "sheets": {
            "size": size,
            "cell": cell_of(size),
            "perRow": PER_ROW,
            "ending": ending_of(size),
        },
    }
    drawn_sheets = None
    if one_file:
        some = torch.from_numpy(order).split(PER_SHEET)
        urls = [as_url(draw_sheet(images, rows, size)) for rows in tracked(some, "thumbnails")]
        data |= {"parts": parts, "sheets": {**data["sheets"], "urls": urls}}
    else:
        chosen = [positions for positions, _ in regions.values()]
        drawn_sheets = write_sheets(path / PICTURES, images, (order, chosen), size, earlier)
        parts["slots"] = packed(drawn_sheets.slots[order].astype(np.int32))
        _write_parts(path, parts)
    _write_html(path, images, note, data)
    return drawn_sheets


def _write_html(path: Path, images: Images, note: str, data: Mapping[str, Any]) -> None:
    """Write the page itself, with its data."""
    one_file = path.suffix == ".html"
    write_page(
        path if one_file else path / "index.html",
        "map/map.html",
        title="Map of the images",
        about=images.where,
        note=note,
        data=data,
        scripts=map_scripts(),
        beside=not one_file,
    )


def _checked(
    points: Float[Tensor, "images 2"], images: Images, neighbours: np.ndarray | None
) -> Float[np.ndarray, "images 2"]:
    """Return the points as an array; ValueError for what no page can show."""
    total = len(points)
    if total == 0 or len(images) != total:
        raise ValueError(
            f"a map page needs one image for each point, not {len(images)} for {total}"
        )
    if neighbours is not None and len(neighbours) != total:
        raise ValueError(
            f"neighbours must have one row for each of the {total} images, not {len(neighbours)}"
        )
    coordinates = np.asarray(points.detach().cpu(), dtype=float)
    if not np.isfinite(coordinates).all():
        raise ValueError("a map page needs finite points")
    return coordinates


def _parts(
    order: np.ndarray,
    coordinates: np.ndarray,
    names: Sequence[str],
    drawn: Sequence[Column],
    neighbours: np.ndarray | None,
    regions: Mapping[int, tuple[np.ndarray, np.ndarray]],
) -> dict[str, Any]:
    """Return what a page reads, by the names of its parts, in the order of the page."""
    position = np.full(len(coordinates) + 1, -1, dtype=np.int32)  # the last: of no neighbour, -1
    position[order] = np.arange(len(order))
    parts: dict[str, Any] = {"points": packed(coordinates[order].astype(np.float32))}
    for number, column in enumerate(drawn):
        parts[f"column-{number}"] = packed(column.values[order])
    for depth, (chosen, counts) in regions.items():
        parts[f"level-{depth}"] = {"points": packed(chosen), "counts": packed(counts)}
    for block, start in enumerate(range(0, len(order), BLOCK)):
        rows = order[start : start + BLOCK]
        parts[f"names-{block}"] = [names[row] for row in rows]
        if neighbours is not None:
            parts[f"neighbours-{block}"] = packed(position[neighbours[rows]])
    return parts


def _write_parts(folder: Path, parts: Mapping[str, Any]) -> None:
    """Write each part as a script that hands it over."""
    (folder / "parts").mkdir()
    for name, value in parts.items():
        text = ",".join(
            json.dumps(part, allow_nan=False, separators=(",", ":")) for part in (name, value)
        )
        (folder / "parts" / f"{name}.js").write_text(f"nearfarPart({text})", encoding="ascii")


class Square(NamedTuple):
    """The square around all points that the quadtree divides."""

    left: float
    bottom: float
    side: float


def square_around(coordinates: Float[np.ndarray, "points 2"]) -> Square:
    """The smallest square with its corner at the lowest coordinates."""
    low = coordinates.min(axis=0)
    side = float((coordinates.max(axis=0) - low).max())
    return Square(float(low[0]), float(low[1]), side or 1.0)


def z_order_keys(
    coordinates: Float[np.ndarray, "points 2"], square: Square
) -> UInt[np.ndarray, " points"]:
    """Return the position of each point along the Z-order curve (Morton 1966), 16 bits a side:
    uint32.
    """
    unit = (coordinates - (square.left, square.bottom)) / square.side
    bits = np.clip(unit * 2**16, 0, 2**16 - 1).astype(np.uint32)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        bits = (bits | (bits << np.uint32(shift))) & np.uint32(mask)
    return bits[:, 0] | (bits[:, 1] << np.uint32(1))


def levels(
    coordinates: Float[np.ndarray, "points 2"], square: Square
) -> dict[int, tuple[Int[np.ndarray, " cells"], Int[np.ndarray, " cells"]]]:
    """Return a representative point and the number of points of each occupied cell, in Z-order, by
    depth.

    Depths go from the coarsest down to where a cell holds two points on average. The representative
    of a cell of the finest level is the point nearest to the mean of its points; above, that of the
    fullest of the finest cells inside. Zooming in therefore keeps every representative on screen.
    """
    keys = z_order_keys(coordinates, square)
    depth = COARSEST
    while depth < FINEST and 2 * len(np.unique(_cells(keys, depth))) < len(keys):
        depth += 1
    _, cell, counts = np.unique(_cells(keys, depth), return_inverse=True, return_counts=True)
    means = (
        np.stack([np.bincount(cell, column) for column in coordinates.T], axis=1) / counts[:, None]
    )
    far = np.square(coordinates - means[cell]).sum(axis=1)
    order = np.lexsort((far, -counts[cell]))  # the middle of the fullest cell comes first
    levels_of = {}
    for level in range(COARSEST, depth + 1):
        _, first, counts = np.unique(
            _cells(keys[order], level), return_index=True, return_counts=True
        )
        levels_of[level] = order[first].astype(np.int32), counts.astype(np.int32)
    return levels_of


def _cells(keys: np.ndarray, depth: int) -> np.ndarray:
    return keys >> np.uint32(2 * (16 - depth))
