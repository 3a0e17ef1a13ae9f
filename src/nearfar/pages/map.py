"""A map as an interactive page that opens from disk: one file, or a folder for many images.

Browsers let a page from disk load neither data nor modules, but images and plain scripts: in a folder every part is a
script that hands over its data (numbers as base64), and thumbnails are sheets of 256 in Z-order, so that what lies
together on the map lies together in a sheet. There are sheets of all images, and of the representatives of each zoom.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.data import Images
from nearfar.data.building import usable_cores
from nearfar.maps.colours import GREY, coloured
from nearfar.maps.columns import Column, described, packed
from nearfar.maps.pyramid import Square, levels, z_order_keys
from nearfar.maps.thumbnails import LOSSLESS, cell_of, encoded, one_sheet, pack_sheets, thumbnails
from nearfar.pages.template import page, script

# Pixels of a thumbnail for at most so many images. A full page stays below about 30 MB.
THUMBNAIL_SIZES = ((5_000, 64), (20_000, 32))
MOST_IMAGES = THUMBNAIL_SIZES[-1][0]
FOLDER_SIZES = ((200_000, 64), (10**9, 48))  # the same of a folder
BLOCK = 4096  # images to a part of names or neighbours
PER_ROW = 16  # thumbnails to a side of a sheet
SCRIPTS = ("store.js", "painters.js", "map.js", "selection.js"), ("panel.js", "table.js", "controls.js")


def map_scripts() -> list[str]:
    """Return the scripts of a map's page, as they stand between their tags."""
    return [script(*names) for names in SCRIPTS]


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
        _write(path, title, note, _data(places, images, drawn, neighbours))
    else:
        _write_folder(path, places, images, drawn, neighbours, title=title, note=note, progress=progress)


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
        near = {"k": neighbours.shape[1], **packed(_renumbered(neighbours, shown, count))}
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


def _write(path: Path, title: str, note: str, data: dict[str, Any], *, beside: bool = False) -> None:
    whole = page("map.html", title=title, note=note, data=data, scripts=map_scripts(), beside=beside)
    path.write_text(whole, encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _write_folder(
    path: Path,
    places: np.ndarray,
    images: Images,
    columns: list[Column],
    neighbours: np.ndarray | None,
    *,
    title: str,
    note: str,
    progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Write the folder; the arguments are those of `write_map_page`, checked there."""
    count = len(places)
    square = Square.around(places)
    order = np.argsort(z_order_keys(places, square), kind="stable")
    places = places[order]
    parts = path / "parts"
    parts.mkdir(parents=True)

    def write(key: str, value: Any) -> None:
        (parts / f"{key}.js").write_text(f"nearfarPart({_compact(key)},{_compact(value)})", encoding="ascii")

    write("points", packed(places.astype(np.float32)))
    if images.labels is not None:
        classes, codes = coloured(images.labels, images.class_names)
        columns = [Column("label", codes.astype(np.uint16), classes), *columns]
    for place, column in enumerate(columns):
        write(f"column-{place}", packed(column.values[order]))
    pyramid = levels(places, square)
    for level in pyramid:
        write(f"level-{level.depth}", {"points": packed(level.points), "counts": packed(level.counts)})
    for block, start in enumerate(range(0, count, BLOCK)):
        rows = order[start : start + BLOCK]
        write(f"names-{block}", [images.names[i] for i in rows])
        if neighbours is not None:
            write(f"neighbours-{block}", packed(_renumbered(neighbours, order, count, slice(start, start + BLOCK))))

    size = min(images.image_size, next(size for most, size in FOLDER_SIZES if count <= most))
    ending = "png" if size <= LOSSLESS else "jpg"
    sets = {"all": order} | {str(level.depth): order[level.points] for level in pyramid}
    for name in sets:
        (path / "pictures" / name).mkdir(parents=True)
    jobs = [(name, number) for name, rows in sets.items() for number in range(-(-len(rows) // PER_ROW**2))]

    def draw(job: tuple[str, int]) -> None:
        name, number = job
        rows = torch.from_numpy(sets[name][number * PER_ROW**2 : (number + 1) * PER_ROW**2])
        tiles = thumbnails(images.pictures(rows), size)
        sheet = one_sheet(tiles, cell_of(size), PER_ROW)
        (path / "pictures" / name / f"{number}.{ending}").write_bytes(encoded(sheet, size <= LOSSLESS))

    for done, _ in enumerate(_in_threads(draw, iter(jobs)), 1):
        if progress is not None:
            progress(done, len(jobs))

    data = {
        "folder": True,
        "block": BLOCK,
        "count": count,
        "total": count,
        "grey": GREY,
        "columns": [column.description() for column in columns],
        "neighbours": None if neighbours is None else {"k": neighbours.shape[1]},
        "square": asdict(square),
        "levels": [{"depth": level.depth} for level in pyramid],
        "sheets": {"size": size, "cell": cell_of(size), "perRow": PER_ROW, "ending": ending},
    }
    _write(path / "index.html", title, note, data, beside=True)


def _renumbered(neighbours: np.ndarray, order: np.ndarray, count: int, rows: slice = slice(None)) -> np.ndarray:
    """Return the neighbours of the images order[rows] by their places in `order`; -1 for one that is not in it."""
    place = np.full(count + 1, -1, dtype=np.int32)  # the last is for -1
    place[order] = np.arange(len(order), dtype=np.int32)
    return place[neighbours[order[rows]]]


def _in_threads(work: Callable[[Any], None], jobs: Iterator[Any]) -> Iterator[None]:
    """Do the jobs in order in a few threads, never many waiting: after an error none is begun."""
    workers = usable_cores()
    with ThreadPoolExecutor(workers) as pool:
        while some := list(islice(jobs, 4 * workers)):
            yield from pool.map(work, some)
