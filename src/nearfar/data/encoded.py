"""From a source of encoded images, through the cache, to `Images`."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data import cache, cached, sources
from nearfar.data.building import Progress, Widened, build, first_format
from nearfar.data.cache import Entry
from nearfar.data.columns import Record, printable
from nearfar.data.images import Images
from nearfar.data.path_tables import PathTable
from nearfar.data.readers import ImageFolder, Reading, Source
from nearfar.data.stderr import only_python_writes
from nearfar.data.value_range import EIGHT_BITS, ValueRange
from nearfar.data.wide_format import first_raw, sampled_format

_MIXED = "holds images of 8 bits and of more: all become 8 bits; --value-range LOW HIGH keeps the others as they are"


Labels = tuple[list[Any], list[str] | None]
"""The labels of all records as the source has them, and its class names."""


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
        cached.limit()  # a wrong one is noticed first
        digests = self.source.digests(self.splits, self.folder)
        about = [type(self.source).__name__, self.source.identity(self.splits, digests)]
        asked = self.folder / cache.key([*about, self.image_size, self.channels, self.value_range])
        home, labels = cache.home_of(asked), None
        found = self._cached(home)
        if found is None:
            with cache.building(asked):
                home = cache.home_of(asked)
                found = self._cached(home)  # another process may have built it while we waited
                if found is None:

                    def fill(part: Path) -> tuple[Entry, str]:
                        nonlocal labels
                        entry, labels = self._decoded(part, digests)
                        form = entry.image_size, entry.channels, entry.value_range or EIGHT_BITS
                        return entry, cache.key([*about, *form])

                    home = cache.write(asked, fill)
                    found = self._cached(home)
                    if found is not None:
                        cached.tidy(self.folder, home, found[0].lineage)
        if found is None:
            raise ValueError(f"the cache in '{home}' cannot be read back; remove it, or {cache.ELSEWHERE}")
        if self.value_range is None and found[0].value_range is None and any(found[0].images["wide"].to_pylist()):
            sources.say_once(f"'{self.name}' {_MIXED}")
        return self._labelled(self._images(home, *found), home, found[0].rows.tolist(), labels)

    def _cached(self, home: Path) -> tuple[Entry, Tensor | None] | None:
        """What the cache holds, if that is enough."""
        hit = cache.read(home)
        if hit is None:
            return None
        entry, pixels = hit
        needed = math.prod(entry.shape) * (1 if entry.value_range is None else 2)
        return None if pixels is None and needed <= self.store_limit else hit

    def _images(self, home: Path, entry: Entry, pixels: Tensor | None) -> Images:
        kept = pixels if self.store_limit > 0 else None
        wide = entry.value_range is not None
        rows = entry.rows.tolist()
        return Images(
            kept,
            names=entry.kept["name"].to_pylist(),
            image_size=entry.image_size,
            channels=entry.channels,
            skipped=self._problems() + entry.skipped,
            statistics=(entry.mean, entry.std),
            originals=functools.partial(self.source.originals, self.splits, None, rows, self.folder / "datasets"),
            split=self.splits[0] or None if len(self.splits) == 1 else None,
            reopen=None if kept is None else functools.partial(cache.mapped, home, entry.shape, wide),
            source=self.name,
            columns=self.source.columns(self.splits, rows) if isinstance(self.source, PathTable) else None,
            value_range=entry.value_range,
        )

    def _problems(self) -> list[tuple[str, str]]:
        return [(printable(name), reason) for name, reason in self.source.problems]

    def _decoded(self, part: Path, digests: dict[str, str]) -> tuple[Entry, Labels]:
        """Decode all images into the folder `part`, but for those that an earlier state of the source had too."""
        with self._reader() as read_with:
            if self._by_metadata:
                read_with(self.label_column)  # a column that is not there is noticed first

            def read() -> Reading:
                return read_with(None if self._by_metadata else self.label_column)

            fixed = self.value_range is not None and not isinstance(self.value_range, str)
            if not fixed and first_raw(read) is None:
                pixel_format = first_format(read().records, self.image_size, self.channels)
            else:
                pixel_format = sampled_format(read, self.image_size, self.channels, self.value_range)
            while True:
                reading = read()
                form = pixel_format.size, pixel_format.channels, pixel_format.value_range
                place = type(self.source).__name__, os.path.realpath(self.name), self.splits
                lineage = cache.key([place, form])
                known = cache.decoded_before(self.folder, lineage)
                given = reading.records, reading.total, pixel_format, self.store_limit, self.workers, self.progress
                try:
                    entry, labels = build(part, *given, digests, known)
                    break
                except Widened as widened:
                    pixel_format = widened.pixel_format
        if not len(entry.rows):
            raise ValueError(self._nothing(self._problems() + entry.skipped))
        entry.lineage = lineage
        return entry, (labels, reading.class_names)

    def _nothing(self, skipped: list[tuple[str, str]]) -> str:
        if not skipped:
            return f"'{self.name}' holds no images"
        name, reason = skipped[0]
        return f"none of the {len(skipped)} images in '{self.name}' can be read; {name}: {reason}"

    @property
    def _by_metadata(self) -> bool:
        """Whether the labels come from a file that names images: not all of them, and others perhaps."""
        return isinstance(self.source, ImageFolder) and self.label_column is not None

    def _labelled(self, images: Images, home: Path, rows: list[int], given: Labels | None) -> Images:
        """The images with their labels; `given`: as they were read for all records while these were decoded."""
        at_hand = isinstance(self.source, (ImageFolder, PathTable))  # of others they are kept beside the pixels
        kept = home / f"labels-{cache.key(self.label_column)}.json"
        if given is None and not at_hand:
            with contextlib.suppress(OSError, ValueError):
                numbers, images.class_names = json.loads(kept.read_text(encoding="utf-8"))
                images.labels = None if numbers is None else np.array(numbers, dtype=np.int64)
                return images
        with self._reader() as read:
            reading = None
            if given is None or self._by_metadata:
                reading = read(self.label_column)
                records = list(reading.records)
                given = [record.label for record in records], reading.class_names
                if self._by_metadata:
                    images, rows = self._named(images, records)
            labels, class_names = [given[0][row] for row in rows], given[1]
            if any(isinstance(label, str) for label in labels):
                # texts are numbered over all splits, so that a number means the same class in each
                others = read(self.label_column, [split for split in self.source.splits if split not in self.splits])
                texts = {*labels, *(record.label for record in others.records)}
                class_names = sorted(str(text) for text in texts if text is not None)
                number = {text: i for i, text in enumerate(class_names)}
                labels = [None if label is None else number[str(label)] for label in labels]
        images.class_names = class_names and [printable(name) for name in class_names]
        numbers = whole_numbers(labels, self.label_column)
        images.labels = None if numbers is None else np.array(numbers, dtype=np.int64)
        if not at_hand:
            with contextlib.suppress(OSError), replacing(kept) as unfinished:
                unfinished.write_text(json.dumps([numbers, images.class_names]), encoding="utf-8")
        return images

    def _named(self, images: Images, records: list[Record]) -> tuple[Images, list[int]]:
        """The images that the metadata names, in its order, and which of its records they are."""
        place = {name: i for i, name in enumerate(images.names)}
        why = dict(images.skipped)
        names = [printable(record.name) for record in records]
        rows = [row for row, name in enumerate(names) if name in place]
        skipped = [(one, why.get(one, r.problem)) for one, r in zip(names, records, strict=True) if one not in place]
        if not rows:
            raise ValueError(self._nothing(self._problems() + skipped))
        if [names[row] for row in rows] != images.names:
            images = images.subset([place[names[row]] for row in rows])
        images.skipped = self._problems() + skipped
        return images, rows

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Callable[..., Reading]]:
        """A function that reads splits, these ones by default, with the labels of a column."""
        with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch, only_python_writes():

            def read(label_column: str | None, splits: Iterable[str] = self.splits) -> Reading:
                readings = [self.source.read(split, label_column, Path(scratch)) for split in splits]
                totals = [reading.total for reading in readings if reading.total is not None]
                return Reading(
                    (record for reading in readings for record in reading.records),
                    readings[0].class_names if readings else None,
                    sum(totals) if len(totals) == len(readings) else None,
                )

            yield read


def whole_numbers(labels: list[Any], column: str | None) -> list[int] | None:
    """Labels as whole numbers, -1 for a missing one; None where all are missing."""
    for label in labels:
        number = isinstance(label, (int, float)) and abs(label) < 2**63 and label == int(label)
        if label is not None and not number:
            raise ValueError(f"labels must be whole numbers or texts; column '{column or 'label'}' holds {label!r:.80}")
    numbers = [-1 if label is None else int(label) for label in labels]
    return numbers if any(number >= 0 for number in numbers) else None
