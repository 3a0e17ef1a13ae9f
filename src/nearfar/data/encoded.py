"""From a source of encoded images, through the cache, to `Images`."""

from __future__ import annotations

import functools
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
from nearfar.data.readers import Reading, Source
from nearfar.data.stderr import only_python_writes


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

    def images(self) -> Images:
        """The images from the cache, which is built first where there is none yet."""
        asked = [self.image_size, self.channels, self.label_column]
        home = self.folder / cache.key([type(self.source).__name__, self.source.identity(self.splits), asked])
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

    def _cached(self, home: Path) -> Images | None:
        hit = cache.read(home)
        if hit is None:
            return None
        entry, pixels = hit
        bytes_needed = len(entry.names) * entry.channels * entry.image_size**2
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
            reopen=None if kept is None else functools.partial(cache.mapped, home, tuple(kept.shape)),
            source=self.name,
            columns=self.source.columns(self.splits, entry.rows) if isinstance(self.source, PathTable) else None,
        )

    def _fill(self, part: Path) -> cache.Entry:
        with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch, only_python_writes():
            return self._decode(part, Path(scratch))

    def _decode(self, part: Path, scratch: Path) -> cache.Entry:
        pixel_format = first_format(self._read(self.splits, scratch).records, self.image_size, self.channels)
        while True:
            reading = self._read(self.splits, scratch)
            try:
                entry, labels = build(
                    part, reading.records, reading.total, pixel_format, self.store_limit, self.workers, self.progress
                )
                break
            except Widened as widened:
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
