"""The sheets of thumbnails beside a map in a folder: where each image lies, and what need not be
drawn again.

Every image lies on one sheet. First come the representatives of the coarsest level of the quadtree,
then those that each finer level adds, then all other images, each of these in Z-order: a view shows
few sheets at any zoom. Images that are added later follow, so that earlier sheets stay what they
are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from nearfar.data import Images
from nearfar.data.resources import usable_cores
from nearfar.data.table import digest, digest_of_file
from nearfar.data.thumbnails import LOSSLESS, encoded, one_sheet, thumbnails
from nearfar.progress import progress

PER_ROW = 16  # thumbnails to a side of a sheet
PER_SHEET = PER_ROW**2
TOGETHER = 256  # sheets whose thumbnails are in memory, at 2 kB each


@dataclass(frozen=True)
class Sheets:
    """Sheets that were drawn, for another time with other images.

    slots: the place of each image among the thumbnails of all sheets, -1 for a new one. count: of
    places that are taken. files: digests of the files of the sheets, "" for one that shows an image
    that is gone. side: pixels of a thumbnail. folder: with the files.
    """

    slots: Int64[np.ndarray, " images"]
    count: int
    files: list[str]
    side: int
    folder: Path


def slots_of(
    order: Int[np.ndarray, " images"],
    levels: Iterable[Int[np.ndarray, " cells"]],
    earlier: Sheets | None = None,
) -> Int64[np.ndarray, " images"]:
    """Return the place of each image among the thumbnails of all sheets.

    order: the images in Z-order. levels: positions in this order of the representatives of each
    level, coarsest first. earlier: sheets whose images keep their places; new ones follow.
    """
    slots: np.ndarray = np.full(len(order), -1) if earlier is None else earlier.slots.copy()
    start = 0 if earlier is None else earlier.count
    for chosen in (*levels, np.arange(len(order))):
        rows = order[chosen]
        rows = rows[slots[rows] < 0]
        slots[rows] = np.arange(start, start + len(rows))
        start += len(rows)
    return slots


def draw_sheet(images: Images, rows: Int64[Tensor, " rows"], side: int) -> bytes:
    """Return the file of a sheet with the thumbnails of some images; -1 leaves a place black."""
    tiles = torch.zeros(len(rows), 3, side, side, dtype=torch.uint8)
    shown = rows >= 0
    if shown.any():
        tiles[shown] = thumbnails(images.pictures(rows[shown], side), side)
    return encoded(one_sheet(tiles, PER_ROW), lossless=side <= LOSSLESS)


def ending_of(side: int) -> str:
    """Return the ending of a sheet's file."""
    return "png" if side <= LOSSLESS else "jpg"


def write_sheets(
    folder: Path,
    images: Images,
    places: tuple[Int[np.ndarray, " images"], Sequence[Int[np.ndarray, " cells"]]],
    side: int,
    earlier: Sheets | None = None,
) -> Sheets:
    """Write the sheets of all images into a new folder, NUMBER.jpg or .png; in a few threads with
    few in the queue.

    places: order and levels, as `slots_of` takes them. Sheets of an earlier time without new images
    are linked (copied, where a file system has no hard links), unless their file has changed since
    or shows an image that is gone.
    """
    if earlier is not None and earlier.side != side:
        earlier = None
    folder.mkdir(parents=True)
    slots = slots_of(*places, earlier)
    rows = torch.full((int(slots.max()) + 1,), -1)
    rows[torch.from_numpy(slots)] = torch.arange(len(slots))
    sheets = rows.split(PER_SHEET)
    known = dict[int, str]()
    if earlier is not None:
        known = dict(enumerate(earlier.files))
        for number in np.unique(slots[earlier.slots < 0] // PER_SHEET).tolist():
            known.pop(number, None)

    def written(at_hand: Images, number: int) -> str:
        name, content = f"{number}.{ending_of(side)}", known.get(number)
        if earlier is not None and content and digest_of_file(earlier.folder / name) == content:
            _link(earlier.folder / name, folder / name)
            return content
        file = draw_sheet(at_hand, sheets[number], side)
        (folder / name).write_bytes(file)
        return digest(file)

    digests, workers = list[str](), usable_cores()
    with ThreadPoolExecutor(workers) as pool, progress("thumbnails", len(sheets)) as bar:
        for start in range(0, len(sheets), TOGETHER):
            group = range(start, min(start + TOGETHER, len(sheets)))
            drawn = [sheets[number] for number in group if not known.get(number)]
            shown = torch.cat([*drawn, rows[:0]])
            at_hand = images.with_pictures(shown[shown >= 0])
            numbers = iter(group)
            while some := list(islice(numbers, 4 * workers)):  # or Ctrl-C would wait for all
                digests += pool.map(partial(written, at_hand), some)
                bar.advance(len(some))
    return Sheets(slots, len(rows), digests, side, folder)


def _link(file: Path, other: Path) -> None:
    try:
        os.link(file, other)
    except OSError:
        shutil.copy2(file, other)
