"""A map's page as a folder that opens from disk, for more images than one file holds.

Browsers let a page from disk load neither data nor modules, but images and plain scripts: every part is a script that
hands over its data (numbers as base64), and thumbnails are sheets of 256 in Z-order, so that what lies together on the
map lies together in a sheet. There are sheets of all images, and of the representatives of each zoom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.data import Images
from nearfar.data.building import usable_cores
from nearfar.maps.colours import GREY, coloured
from nearfar.maps.columns import Column, packed
from nearfar.maps.document import compact, document
from nearfar.maps.pyramid import Square, levels, z_order_keys
from nearfar.maps.thumbnails import LOSSLESS, cell_of, encoded, one_sheet, thumbnails

BLOCK = 4096  # images to a part of names or neighbours
PER_ROW = 16  # thumbnails to a side of a sheet
SIZES = ((200_000, 64), (10**9, 48))  # pixels of a thumbnail for at most so many images


def write_folder(
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
        (parts / f"{key}.js").write_text(f"nearfarPart({compact(key)},{compact(value)})", encoding="ascii")

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
            write(f"neighbours-{block}", packed(renumbered(neighbours, order, count, slice(start, start + BLOCK))))

    size = min(images.image_size, next(size for most, size in SIZES if count <= most))
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
    (path / "index.html").write_text(document(title, note, data, folder=True), encoding="utf-8")


def renumbered(neighbours: np.ndarray, order: np.ndarray, count: int, rows: slice = slice(None)) -> np.ndarray:
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
