"""How many images a source has, and how large they are, before anything is decoded."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearfar.data import sources
from nearfar.data.building import SMALL, first_readable
from nearfar.data.columns import Record
from nearfar.data.decode import Decoded
from nearfar.data.locating import encoded_source
from nearfar.data.objects import describe
from nearfar.data.opening import open_images
from nearfar.data.raw import Raw, raw


def survey(source: Any, split: str | None = None) -> tuple[int | None, int] | None:
    """The number of images and the shorter side of the first readable one, from files or tables that are not decoded.

    The number is None where it is not known without reading all. None for every other source: `open_images` is quick.
    """
    if sources.are_several(source):
        return _survey_of_all(source, split)
    found = encoded_source(source)
    if found is None:
        return None
    chosen = sources.choose_splits(found.splits, split, describe(source))
    with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch:
        readings = [found.read(part, None, Path(scratch)) for part in chosen]
        totals = [reading.total for reading in readings]
        first = _first(record for reading in readings for record in reading.records)
    return None if None in totals else sum(filter(None, totals)), SMALL if first is None else min(first.native)


def _survey_of_all(given: Sequence[Any], split: str | None) -> tuple[int | None, int]:
    """The number of images and the largest of the sides that `survey` finds in each."""
    seen = []
    for one in given:
        found = survey(one, split)
        if found is None:
            images = open_images(one, split=split)
            found = len(images), images.image_size
        seen.append(found)
    counts = [count for count, _ in seen if count is not None]
    return sum(counts) if len(counts) == len(seen) else None, max(side for _, side in seen)


def _first(records: Iterator[Record]) -> Raw | Decoded | None:
    """The first readable image; of those that are no pictures of 8 bits only the header is read."""
    for record in records:
        with contextlib.suppress(Exception):  # readers raise anything on damaged data
            if record.data is not None and (found := raw(record.data)) is not None:
                return found
        if (seen := first_readable([record])) is not None:
            return seen
    return None
