"""The files of a map: an interactive page that opens from disk, one file or a folder for many
images; a table.

A page reads its parts: names, columns, neighbours and regions, with numbers in base64, and sheets
of thumbnails. One file holds them all. Browsers let a page from disk load neither data nor modules,
but images and plain scripts: in a folder every part is a script that hands over its data, images
are in Z-order, so that neighbours on the map share a sheet, and further sheets hold the
representatives of each zoom: the cells of a quadtree.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import torch
from jaxtyping import Float, Int, UInt
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data import Images
from nearfar.data.memory import usable_cores
from nearfar.maps import Map, MapQuality, save_map
from nearfar.maps.columns import GREY, described, label_column, packed
from nearfar.maps.thumbnails import LOSSLESS, as_url, cell_of, encoded, one_sheet, thumbnails
from nearfar.neighbours import Nearest, find_nearest
from nearfar.pages.lists import ENLARGED, GATHERED, SIZE
from nearfar.pages.template import script, write_page
from nearfar.progress import progress

# Pixels of a thumbnail for at most so many images. A full page stays below about 30 MB.
THUMBNAIL_SIZES = ((5_000, 64), (20_000, 32))
MOST_IMAGES = THUMBNAIL_SIZES[-1][0]
FOLDER_SIZES = ((200_000, 64), (10**9, 48))  # the same of a folder
BLOCK = 4096  # images to a part of names or neighbours
PER_ROW = 16  # thumbnails to a side of a sheet
COARSEST, FINEST = 2, 12  # depths of the quadtree; a depth of d has 2**d cells on a side
BESIDE = (".png", ".json", ".safetensors")  # files beside a page
IMAGE, NEIGHBOURS = "image", 15  # of a table
SCRIPTS = (
    ("store.js", "painters.js", "map.js", "saving.js", "selection.js"),
    ("panel.js", "table.js", "controls.js"),
)


def map_scripts() -> list[str]:
    """Return the scripts of a map's page, as they stand between their tags."""
    return [script(*names) for names in SCRIPTS]


def write_map(
    page: Path,
    images: Images,
    coordinates: Float[Tensor, "images 2"],
    quality: MapQuality | None = None,
    *,
    numbers: Mapping[str, Any],
    note: str = "",
    saved: Map | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
    near: Int[Tensor, "images k"] | None = None,
) -> None:
    """Write the files of a map: page, figure, numbers and, if given, the map as a function: all or
    none.

    numbers: further ones for the .json. The page can be coloured by the columns and by the share of
    kept neighbours of each image. near: the nearest images of each, of which the page shows 15.
    """
    from nearfar.maps.draw import draw_map  # here: matplotlib takes a second to import

    measured = {} if quality is None else quality.numbers()
    kept = {} if quality is None else {"kept": quality.kept}
    endings = (*(BESIDE if saved is not None else BESIDE[:2]), page.suffix)
    with ExitStack() as stack:
        files = {
            ending: stack.enter_context(replacing(page.with_suffix(ending))) for ending in endings
        }
        if saved is not None:
            save_map(files[".safetensors"], saved)
        files[".json"].write_text(json.dumps({**numbers, **measured}, indent=2) + "\n")
        draw_map(files[".png"], coordinates, images.labels, images.class_names, images=images)
        shown = None if near is None else near[:, :NEIGHBOURS].numpy()
        write_map_page(
            files[page.suffix],
            coordinates,
            images,
            note=note,
            columns={**(columns or {}), **kept},
            neighbours=shown,
        )


def table_columns(
    images: Images,
    features: Float[Tensor, "images dim"],
    coordinates: Float[Tensor, "images 2"],
) -> dict[str, pyarrow.Array]:
    """A map as columns of a table, as embedding-atlas and Hugging Face datasets read them.

    x and y; image {bytes, path}, a thumbnail of at most 128 px; neighbors {ids, distances}, the 15
    nearest rows by the features, counted from 0, and 1 - cos.
    """
    tiles = (
        tile
        for rows in torch.arange(len(images)).split(GATHERED)
        for tile in thumbnails(images.pictures(rows), SIZE)
    )
    files = [
        {"bytes": encoded(tile, lossless=tile.shape[-1] < ENLARGED), "path": name}
        for tile, name in zip(tiles, images.names, strict=True)
    ]
    k = min(NEIGHBOURS, len(images) - 1)
    near = (
        find_nearest(features, k=k) if k else Nearest(torch.zeros(1, 0), torch.zeros(1, 0).long())
    )
    starts = pyarrow.array(k * np.arange(len(images) + 1, dtype=np.int32))
    lists = [
        pyarrow.ListArray.from_arrays(starts, pyarrow.array(numbers.flatten().numpy()))
        for numbers in (near.index, near.distance)
    ]
    return {
        "x": pyarrow.array(coordinates[:, 0].numpy()),
        "y": pyarrow.array(coordinates[:, 1].numpy()),
        IMAGE: pyarrow.array(
            files, pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
        ),
        "neighbors": pyarrow.StructArray.from_arrays(lists, ["ids", "distances"]),
    }


def write_map_page(
    path: str | os.PathLike[str],
    points: Float[Tensor, "images 2"],
    images: Images,
    *,
    note: str = "",
    columns: Mapping[str, ArrayLike] | None = None,
    neighbours: Int[np.ndarray, "images k"] | None = None,
) -> None:
    """Write an HTML page with one point for each image: pan, zoom, inspect, search, select; it
    loads nothing else.

    path: ending in .html for one self-contained file; else a folder, which must not exist:
    index.html opens from disk by a double click, and loads thumbnails, names, columns and
    neighbours beside it when they are needed. Memory for writing a folder is bounded by the points
    and columns; images are read a few hundred at a time. note: a line below the number of images.
    columns: one value for each image, to colour the map by (`nearfar.maps.columns.described`). The
    column "kept" (share of the true neighbours that are near on the map, 0..1) is also drawn as
    opacity. neighbours: positions of the k nearest images in feature space, nearest first, -1 for
    none.

    Names are shown as they are, whatever characters they contain; labels give colours and a legend.
    Thumbnails of a file are at most 64 px for up to 5000 images and at most 32 px for up to 20 000;
    of more images the page shows a fixed random 20 000 and says so. Raises ValueError unless there
    is one image for each point, for no images, and for points that are not finite.

    >>> images = nearfar.data.open_images("photos", image_size=32)
    >>> write_map_page("plane.html", torch.rand(len(images), 2), images)
    """
    total, path = len(points), Path(path)
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
    drawn = described(columns, total)
    if images.labels is not None:
        drawn.insert(0, label_column(images.labels, images.class_names))
    one_file = path.suffix == ".html"
    order: np.ndarray = np.arange(total)
    if one_file and total > MOST_IMAGES:
        order = np.sort(np.random.default_rng(0).choice(total, MOST_IMAGES, replace=False))
    square = square_around(coordinates[order])
    if not one_file:
        order = np.argsort(z_order_keys(coordinates, square), kind="stable")
    coordinates = coordinates[order]
    position = np.full(
        total + 1, -1, dtype=np.int32
    )  # of each image on the page; the last is for -1, no neighbour
    position[order] = np.arange(len(order))
    regions = levels(coordinates, square)

    parts: dict[str, Any] = {"points": packed(coordinates.astype(np.float32))}
    parts |= {
        f"column-{number}": packed(column.values[order]) for number, column in enumerate(drawn)
    }
    for depth, (chosen, counts) in regions.items():
        parts[f"level-{depth}"] = {"points": packed(chosen), "counts": packed(counts)}
    for block, start in enumerate(range(0, len(order), BLOCK)):
        rows = order[start : start + BLOCK]
        parts[f"names-{block}"] = [images.names[row] for row in rows]
        if neighbours is not None:
            parts[f"neighbours-{block}"] = packed(position[neighbours[rows]])

    limit = next(
        size for most, size in (THUMBNAIL_SIZES if one_file else FOLDER_SIZES) if len(order) <= most
    )
    size = min(images.image_size, limit)
    sheets = {
        "size": size,
        "cell": cell_of(size),
        "perRow": PER_ROW,
        "ending": "png" if size <= LOSSLESS else "jpg",
    }
    data = {
        "block": BLOCK,
        "count": len(order),
        "total": total,
        "grey": GREY,
        "columns": [column.description() for column in drawn],
        "neighbours": None if neighbours is None else {"k": neighbours.shape[1]},
        "square": square._asdict(),
        "levels": [{"depth": depth} for depth in regions],
        "sheets": sheets,
    }
    page = path
    if one_file:
        urls = [as_url(sheet) for _, sheet in _sheets(images, {"all": order}, size)]
        data |= {"parts": parts, "sheets": {**sheets, "urls": urls}}
    else:
        page = path / "index.html"
        (path / "parts").mkdir(parents=True)
        for key, value in parts.items():
            text = ",".join(
                json.dumps(one, allow_nan=False, separators=(",", ":")) for one in (key, value)
            )
            (path / "parts" / f"{key}.js").write_text(f"nearfarPart({text})", encoding="ascii")
        sets = {"all": order} | {
            str(depth): order[chosen] for depth, (chosen, _) in regions.items()
        }
        for name in sets:
            (path / "pictures" / name).mkdir(parents=True)
        for key, sheet in _sheets(images, sets, size):
            (path / "pictures" / f"{key}.{sheets['ending']}").write_bytes(sheet)
    head = {"title": "Map of the images", "about": images.where, "note": note}
    write_page(page, "map.html", **head, data=data, scripts=map_scripts(), beside=not one_file)


def _sheets(
    images: Images, sets: Mapping[str, np.ndarray], size: int
) -> Iterator[tuple[str, bytes]]:
    """Name and file of each sheet of thumbnails, drawn in a few threads with few in the queue."""
    jobs = [
        (f"{name}/{number}", rows)
        for name, chosen in sets.items()
        for number, rows in enumerate(torch.from_numpy(chosen).split(PER_ROW**2))
    ]

    def drawn(job: tuple[str, Tensor]) -> tuple[str, bytes]:
        name, rows = job
        sheet = one_sheet(thumbnails(images.pictures(rows), size), PER_ROW)
        return name, encoded(sheet, lossless=size <= LOSSLESS)

    workers, waiting = usable_cores(), iter(jobs)
    with ThreadPoolExecutor(workers) as pool, progress("thumbnails", len(jobs)) as bar:
        while some := list(islice(waiting, 4 * workers)):
            for one in pool.map(drawn, some):
                yield one
                bar.advance()


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
    found = {}
    for one in range(COARSEST, depth + 1):
        _, first, counts = np.unique(
            _cells(keys[order], one), return_index=True, return_counts=True
        )
        found[one] = order[first].astype(np.int32), counts.astype(np.int32)
    return found


def _cells(keys: np.ndarray, depth: int) -> np.ndarray:
    return keys >> np.uint32(2 * (16 - depth))
