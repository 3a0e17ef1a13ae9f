"""From a source of encoded images, through the cache, to `Images`."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data import cache
from nearfar.data.building import Progress, Widened, build, first_format
from nearfar.data.columns import printable
from nearfar.data.images import Images
from nearfar.data.path_tables import PathTable
from nearfar.data.raw import Raw
from nearfar.data.readers import Reading, Source
from nearfar.data.stderr import only_python_writes
from nearfar.data.value_range import EIGHT_BITS, ValueRange
from nearfar.data.wide_format import first_raw, sampled_format

_MIXED = "'%s' holds pictures of 8 bits too, so all become 8 bits: --value-range LOW HIGH would keep the others"


@dataclass(frozen=True)
class Opening:
    """One request of `open_images`; `store_limit` is 0 where pixels are not wanted."""

    source: Source
    name: str
    splits: list[str]
    image_size: int | None
    channels: int | None
    label_column: str | None
    folder: Path
    store_limit: int
    workers: int | None
    progress: Progress | None
    value_range: ValueRange = None

    def images(self) -> Images:
        """The images from the cache, which is built first where there is none yet."""
        home = self._home()
        found = self._cached(home)
        if found is None:
            with cache.building(home):
                found = self._cached(home)  # another process may have built it while we waited
                if found is None:
                    cache.write(home, self._fill)
                    found = self._cached(home)
        if found is None:
            raise ValueError(f"the cache in '{home}' cannot be read back; remove it, or {cache.ELSEWHERE}")
        return found

    def _home(self) -> Path:
        """The cache's folder; pictures of 8 bits have the one that they had before there were others."""
        asked = [self.image_size, self.channels, self.label_column]
        source = [type(self.source).__name__, self.source.identity(self.splits)]
        narrow = self.folder / cache.key([*source, asked])
        if self.value_range == EIGHT_BITS:
            return narrow
        if self.value_range is None and (cache.is_plain(narrow) or self._first_raw() is None):
            return narrow
        return self.folder / cache.key([*source, [*asked, self.value_range or "percentiles"]])

    def _first_raw(self) -> Raw | None:
        with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch, only_python_writes():
            return first_raw(lambda: self._read(self.splits, Path(scratch)))

    def _cached(self, home: Path) -> Images | None:
        hit = cache.read(home)
        if hit is None:
            return None
        entry, pixels = hit
        wide = entry.value_range is not None
        bytes_needed = len(entry.names) * entry.channels * entry.image_size**2 * (1 + wide)
        if pixels is None and bytes_needed <= self.store_limit:
            return None
        kept = pixels if self.store_limit > 0 else None
        return Images(
            kept,
            names=entry.names,
            image_size=entry.image_size,
            channels=entry.channels,
            labels=None if entry.labels is None else np.array(entry.labels, dtype=np.int64),
            class_names=entry.class_names,
            skipped=entry.skipped,
            statistics=(entry.mean, entry.std),
            originals=functools.partial(
                self.source.originals, self.splits, self.label_column, entry.rows, self.folder / "datasets"
            ),
            split=self.splits[0] or None if len(self.splits) == 1 else None,
            reopen=None if kept is None else functools.partial(cache.mapped, home, tuple(kept.shape), wide),
            source=self.name,
            columns=self.source.columns(self.splits, entry.rows) if isinstance(self.source, PathTable) else None,
            value_range=entry.value_range,
        )

    def _fill(self, part: Path) -> cache.Entry:
        with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch, only_python_writes():
            return self._decode(part, Path(scratch))

    def _decode(self, part: Path, scratch: Path) -> cache.Entry:
        def read() -> Reading:
            return self._read(self.splits, scratch)

        given = self.value_range is not None and not isinstance(self.value_range, str)
        if not given and first_raw(read) is None:
            cache.note_plain(part)
            pixel_format = first_format(read().records, self.image_size, self.channels)
        else:
            pixel_format = sampled_format(read, self.image_size, self.channels, self.value_range)
        while True:
            reading = read()
            try:
                entry, labels = build(
                    part, reading.records, reading.total, pixel_format, self.store_limit, self.workers, self.progress
                )
                break
            except Widened as widened:
                if pixel_format.value_range and not (widened.pixel_format.value_range or given):
                    logging.getLogger("nearfar").info(_MIXED, self.name)
                pixel_format = widened.pixel_format
        entry.skipped = [(printable(name), reason) for name, reason in self.source.problems] + entry.skipped
        if not entry.names:
            if not entry.skipped:
                raise ValueError(f"'{self.name}' holds no images")
            name, reason = entry.skipped[0]
            raise ValueError(f"none of the {len(entry.skipped)} images in '{self.name}' can be read; {name}: {reason}")
        entry.class_names = reading.class_names
        if any(isinstance(label, str) for label in labels):
            # texts are numbered over all splits, so that a number means the same class in each
            others = self._read([split for split in self.source.splits if split not in self.splits], scratch)
            texts = set(labels) | {record.label for record in others.records}
            entry.class_names = sorted(str(text) for text in texts if text is not None)
            number = {text: i for i, text in enumerate(entry.class_names)}
            labels = [None if label is None else number[str(label)] for label in labels]
        entry.class_names = entry.class_names and [printable(name) for name in entry.class_names]
        entry.labels = whole_numbers(labels, self.label_column)
        return entry

    def _read(self, splits: Iterable[str], scratch: Path) -> Reading:
        readings = [self.source.read(split, self.label_column, scratch) for split in splits]
        totals = [reading.total for reading in readings if reading.total is not None]
        return Reading(
            (record for reading in readings for record in reading.records),
            readings[0].class_names if readings else None,
            sum(totals) if len(totals) == len(readings) else None,
        )


def whole_numbers(labels: list[Any], column: str | None) -> list[int] | None:
    """Labels as whole numbers, -1 for a missing one; None where all are missing."""
    for label in labels:
        number = isinstance(label, (int, float)) and abs(label) < 2**63 and label == int(label)
        if label is not None and not number:
            raise ValueError(f"labels must be whole numbers or texts; column '{column or 'label'}' holds {label!r:.80}")
    numbers = [-1 if label is None else int(label) for label in labels]
    return numbers if any(number >= 0 for number in numbers) else None
