"""The files of a map: an interactive page that opens from disk, one file or a folder for many images; a table.

Browsers let a page from disk load neither data nor modules, but images and plain scripts: in a folder every part is a
script that hands over its data (numbers as base64), and thumbnails are sheets of 256 in Z-order, so that neighbours on
the map share a sheet. There are sheets of all images, and of the representatives of each zoom: the cells of a quadtree.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

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
from nearfar.maps.columns import GREY, Column, coloured, described, packed
from nearfar.maps.thumbnails import LOSSLESS, cell_of, encoded, one_sheet, pack_sheets, thumbnails
from nearfar.neighbours import Nearest, find_nearest
from nearfar.pages.lists import ENLARGED, GATHERED, SIZE
from nearfar.pages.template import page, script

# Pixels of a thumbnail for at most so many images. A full page stays below about 30 MB.
THUMBNAIL_SIZES = ((5_000, 64), (20_000, 32))
MOST_IMAGES = THUMBNAIL_SIZES[-1][0]
FOLDER_SIZES = ((200_000, 64), (10**9, 48))  # the same of a folder
BLOCK = 4096  # images to a part of names or neighbours
PER_ROW = 16  # thumbnails to a side of a sheet
COARSEST, FINEST = 2, 12  # depths of the quadtree; a depth of d has 2**d cells on a side
BESIDE = (".png", ".json", ".safetensors")  # files beside a page
IMAGE, NEIGHBOURS = "image", 15  # of a table
SCRIPTS = ("store.js", "painters.js", "map.js", "selection.js"), ("panel.js", "table.js", "controls.js")

Progress = Callable[[int, int | None], None]


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
    progress: Progress | None = None,
) -> None:
    """Write the files of a map: page, figure, numbers and, if given, the map as a function: all or none.

    numbers: further ones for the .json. The page can be coloured by the columns and by the share of kept neighbours of
    each image. near: the nearest images of each.
    """
    from nearfar.maps.draw import draw_map  # here: matplotlib takes a second to import

    endings = (*(BESIDE if saved is not None else BESIDE[:2]), page.suffix)
    with ExitStack() as stack:
        files = {ending: stack.enter_context(replacing(page.with_suffix(ending))) for ending in endings}
        if saved is not None:
            save_map(files[".safetensors"], saved)
        measured = {} if quality is None else quality.numbers()
        files[".json"].write_text(json.dumps({**numbers, **measured}, indent=2) + "\n")
        draw_map(files[".png"], coordinates, images.labels, images.class_names, images=images)
        write_map_page(
            files[page.suffix],
            coordinates,
            images,
            note=note,
            columns={**(columns or {}), **({} if quality is None else {"kept": quality.kept})},
            neighbours=None if near is None else near.cpu().numpy().astype(np.int32),
            progress=progress,
        )


def table_columns(
    images: Images,
    features: Float[Tensor, "images dim"],
    coordinates: Float[Tensor, "images 2"],
    progress: Progress | None = None,
) -> dict[str, pyarrow.Array]:
    """A map as columns of a table, as embedding-atlas and Hugging Face datasets read them.

    x and y; image {bytes, path}, a thumbnail of at most 128 px; neighbors {ids, distances}, the 15 nearest rows by the
    features, counted from 0, and 1 - cos.
    """
    tiles = (
        tile for rows in torch.arange(len(images)).split(GATHERED) for tile in thumbnails(images.pictures(rows), SIZE)
    )
    files = [
        {"bytes": encoded(tile, lossless=tile.shape[-1] < ENLARGED), "path": name}
        for tile, name in zip(tiles, images.names, strict=True)
    ]
    k = min(NEIGHBOURS, len(images) - 1)
    near = find_nearest(features, k=k, progress=progress) if k else Nearest(torch.zeros(1, 0), torch.zeros(1, 0).long())
    starts = pyarrow.array(k * np.arange(len(images) + 1, dtype=np.int32))
    lists = [
        pyarrow.ListArray.from_arrays(starts, pyarrow.array(numbers.flatten().numpy()))
        for numbers in (near.index, near.distance)
    ]
    return {
        "x": pyarrow.array(coordinates[:, 0].numpy()),
        "y": pyarrow.array(coordinates[:, 1].numpy()),
        IMAGE: pyarrow.array(files, pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})),
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
    progress: Progress | None = None,
) -> None:
    """Write an HTML page with one point for each image: pan, zoom, inspect, search, select; it loads nothing else.

    path: ending in .html for one self-contained file; else a folder, which must not exist: index.html opens from disk
    by a double click, and loads thumbnails, names, columns and neighbours beside it when they are needed. Memory for
    writing a folder is bounded by the points and columns; images are read a few hundred at a time.
    note: a line below the number of images.
    columns: one value for each image, to colour the map by (`nearfar.maps.columns.described`). The column "kept" (share
    of the true neighbours that are near on the map, 0..1) is also drawn as opacity.
    neighbours: positions of the k nearest images in feature space, nearest first, -1 for none.
    progress: called with (done, total) thumbnail sheets of a folder.

    Names are shown as they are, whatever characters they contain; labels give colours and a legend. Thumbnails of a
    file are at most 64 px for up to 5000 images and at most 32 px for up to 20 000; of more images the page shows a
    fixed random 20 000 and says so. Raises ValueError unless there is one image for each point, for no images, and for
    points that are not finite.
    """
    count, path = len(points), Path(path)
    if count == 0 or len(images) != count:
        raise ValueError(f"a map page needs one image for each point, not {len(images)} for {count}")
    if neighbours is not None and len(neighbours) != count:
        raise ValueError(f"neighbours must have one row for each of the {count} images, not {len(neighbours)}")
    coordinates = np.asarray(points.detach().cpu(), dtype=float)
    if not np.isfinite(coordinates).all():
        raise ValueError("a map page needs finite points")
    drawn = described(columns, count)
    if path.suffix == ".html":
        _write(path, note, _data(coordinates, images, drawn, neighbours))
    else:
        _write_folder(path, coordinates, images, drawn, neighbours, note=note, progress=progress)


def _data(
    coordinates: np.ndarray, images: Images, columns: list[Column], neighbours: np.ndarray | None
) -> dict[str, Any]:
    """The data of a page in one file; of too many images a fixed random sample."""
    count = len(coordinates)
    shown: np.ndarray = np.arange(count)
    if count > MOST_IMAGES:
        shown = np.sort(np.random.default_rng(0).choice(count, MOST_IMAGES, replace=False))
    size = next(size for most, size in THUMBNAIL_SIZES if len(shown) <= most)
    rows = torch.from_numpy(shown).split(512)  # a few at a time: images may be large
    sheets = pack_sheets(torch.cat([thumbnails(images.pictures(some), size) for some in rows]))
    coordinates = coordinates[shown]
    square = Square.around(coordinates)
    classes, of_point = coloured(None if images.labels is None else images.labels[shown], images.class_names)
    near = None
    if neighbours is not None:
        near = {"k": neighbours.shape[1], **packed(_renumbered(neighbours, shown, count))}
    return {
        "points": [[float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in coordinates],
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
            for level in levels(coordinates, square)
        ],
        "sheets": {"size": sheets.size, "cell": sheets.cell, "perRow": sheets.per_row, "urls": sheets.urls},
    }


def _write(path: Path, note: str, data: dict[str, Any], *, beside: bool = False) -> None:
    whole = page("map.html", title="Map of the images", note=note, data=data, scripts=map_scripts(), beside=beside)
    path.write_text(whole, encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _write_folder(
    path: Path,
    coordinates: np.ndarray,
    images: Images,
    columns: list[Column],
    neighbours: np.ndarray | None,
    *,
    note: str,
    progress: Progress | None = None,
) -> None:
    """Write the folder; the arguments are those of `write_map_page`, checked there."""
    count = len(coordinates)
    square = Square.around(coordinates)
    order = np.argsort(z_order_keys(coordinates, square), kind="stable")
    coordinates = coordinates[order]
    parts = path / "parts"
    parts.mkdir(parents=True)

    def write(key: str, value: Any) -> None:
        (parts / f"{key}.js").write_text(f"nearfarPart({_compact(key)},{_compact(value)})", encoding="ascii")

    write("points", packed(coordinates.astype(np.float32)))
    if images.labels is not None:
        classes, codes = coloured(images.labels, images.class_names)
        columns = [Column("label", codes.astype(np.uint16), classes), *columns]
    for number, column in enumerate(columns):
        write(f"column-{number}", packed(column.values[order]))
    pyramid = levels(coordinates, square)
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
    _write(path / "index.html", note, data, beside=True)


def _renumbered(neighbours: np.ndarray, order: np.ndarray, count: int, rows: slice = slice(None)) -> np.ndarray:
    """Return the neighbours of the images order[rows] by their positions in `order`; -1 for one that is not in it."""
    position = np.full(count + 1, -1, dtype=np.int32)  # the last is for -1
    position[order] = np.arange(len(order), dtype=np.int32)
    return position[neighbours[order[rows]]]


def _in_threads(work: Callable[[Any], None], jobs: Iterator[Any]) -> Iterator[None]:
    """Do the jobs in order in a few threads, with few in the queue: after an error none is begun."""
    workers = usable_cores()
    with ThreadPoolExecutor(workers) as pool:
        while some := list(islice(jobs, 4 * workers)):
            yield from pool.map(work, some)


@dataclass(frozen=True)
class Level:
    """The occupied cells of one depth in Z-order: the position of the representative of each, and their counts."""

    depth: int
    points: Int[np.ndarray, " cells"]
    counts: Int[np.ndarray, " cells"]


@dataclass(frozen=True)
class Square:
    """The square around all points that the quadtree divides."""

    left: float
    bottom: float
    side: float

    @classmethod
    def around(cls, coordinates: Float[np.ndarray, "points 2"]) -> Square:
        """The smallest square with its corner at the lowest coordinates."""
        low = coordinates.min(axis=0)
        side = float((coordinates.max(axis=0) - low).max())
        return cls(float(low[0]), float(low[1]), side or 1.0)


def z_order_keys(coordinates: Float[np.ndarray, "points 2"], square: Square) -> UInt[np.ndarray, " points"]:
    """Return the position of each point along the Z-order curve (Morton 1966), 16 bits a side: uint32."""
    unit = (np.asarray(coordinates, dtype=float) - (square.left, square.bottom)) / square.side
    bits = np.clip(unit * 2**16, 0, 2**16 - 1).astype(np.uint32)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        bits = (bits | (bits << np.uint32(shift))) & np.uint32(mask)
    return bits[:, 0] | (bits[:, 1] << np.uint32(1))


def levels(coordinates: Float[np.ndarray, "points 2"], square: Square) -> list[Level]:
    """Return the levels from the coarsest down to where a cell holds two points on average.

    The representative of a cell of the finest level is the point nearest to the mean of its points; above, that of the
    fullest cell inside. Zooming in therefore keeps every representative on screen.
    """
    keys = z_order_keys(coordinates, square)
    order = np.argsort(keys, kind="stable")
    keys, in_order = keys[order], np.asarray(coordinates, dtype=float)[order]
    depth = COARSEST
    while depth < FINEST and 2 * len(_starts(keys >> np.uint32(2 * (16 - depth)))) < len(keys):
        depth += 1
    cells = keys >> np.uint32(2 * (16 - depth))
    starts = _starts(cells)
    counts = np.diff(np.append(starts, len(cells)))
    means = np.add.reduceat(in_order, starts) / counts[:, None]
    far = np.square(in_order - np.repeat(means, counts, axis=0)).sum(axis=1)
    found = [Level(depth, order[_least(far, starts)].astype(np.int32), counts.astype(np.int32))]
    cells = cells[starts]
    while depth > COARSEST:
        depth, cells, below = depth - 1, cells >> np.uint32(2), found[-1]
        starts = _starts(cells)
        points, counts = below.points[_least(-below.counts, starts)], np.add.reduceat(below.counts, starts)
        found.append(Level(depth, points, counts.astype(np.int32)))
        cells = cells[starts]
    return found[::-1]


def _starts(cells: np.ndarray) -> np.ndarray:
    """The beginning of each run of equal numbers."""
    return np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))


def _least(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The position of the least value of each run."""
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    return np.lexsort((values, run))[starts]
