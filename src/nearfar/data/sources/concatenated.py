"""Several sources, or splits of one, as one source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import pyarrow

from nearfar.data.labels import joined_labels
from nearfar.data.sources.source import Picture, Source
from nearfar.data.table import concat_tables, inside_source
from nearfar.messages import say_once

Labels = tuple[np.ndarray | None, list[str] | None]
"""Numbers, -1 for a missing one, and the names of the classes."""


@dataclass(frozen=True)
class Part:
    """Some rows of a source, those of the splits that are read.

    `name`: the source in a few words; `short`: the end of it that tells it from the others.
    """

    source: Source
    name: str
    short: str
    splits: list[str]
    rows: pyarrow.Table

    @property
    def split(self) -> str | None:
        """The split, if it is one."""
        return self.splits[0] or None if len(self.splits) == 1 else None

    @cached_property
    def left_out(self) -> list[tuple[str, str]]:
        """(name, reason) of what was found and is no row."""
        return self.source.left_out(self.splits)

    def labels(self) -> Labels:
        """The labels of all rows, and the names of their classes."""
        numbers, classes = class_numbers(self.rows)
        if numbers.null_count == len(numbers):
            return None, classes
        return numbers.fill_null(-1).to_numpy().copy(), classes


class Concatenated(Source):
    """The rows of some parts, one part after the other.

    Its table has the columns `part` and `row` in place of those by which the sources find images.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    def scan(self) -> pyarrow.Table:
        tables = [part.rows for part in self.parts]
        whole = concat_tables(tables, [part.short for part in self.parts])
        counts = [len(table) for table in tables]
        rows = np.concatenate([np.arange(count) for count in counts])
        whole = whole.append_column(
            "part", pyarrow.array(np.repeat(np.arange(len(counts)), counts))
        )
        return whole.append_column("row", pyarrow.array(rows))

    def read(self, rows: pyarrow.Table) -> Iterator[Picture]:
        places = zip(rows["part"].to_pylist(), rows["row"].to_pylist(), strict=True)
        for number, of_part in groupby(places, lambda place: place[0]):
            part = self.parts[number]
            for image in part.source.read(part.rows.take([row for _, row in of_part])):
                yield image if isinstance(image, (bytes, str, np.ndarray)) else image.numpy()

    def told_apart(self, names: Sequence[list[str]]) -> Sequence[list[str]]:
        """Names by part, with that of their source in front if two sources hold the same one."""
        if len({part.short for part in self.parts}) == 1:
            return names
        of_source: dict[str, set[str]] = {}
        for part, own in zip(self.parts, names, strict=True):
            of_source.setdefault(part.short, set()).update(own)
        if len(set[str]().union(*of_source.values())) == sum(map(len, of_source.values())):
            return names
        return [
            [inside_source(part.short, name) for name in own]
            for part, own in zip(self.parts, names, strict=True)
        ]

    def labels(self) -> Labels:
        """Labels by the names of their classes, in the order of the sources, or as numbers where
        none has names.

        None, with a line, where a source has none, and where some are numbers and others names.
        Images of a split without labels have none.
        """
        every = [part.labels() for part in self.parts]
        known = [labels for labels, _ in every if labels is not None]
        if len({id(part.source) for part in self.parts}) == 1:
            return self._of_one_source(every)
        if len(known) < len(every):
            if known:
                lacks = next(
                    part.name
                    for part, (labels, _) in zip(self.parts, every, strict=True)
                    if labels is None
                )
                say_once(f"labels are not used, since '{lacks}' has none")
            return None, None
        together = joined_labels(known, [classes for _, classes in every])
        if together is None:
            numbers, names = (
                next(
                    part.name
                    for part, (_, classes) in zip(self.parts, every, strict=True)
                    if (classes is None) == plain
                )
                for plain in (True, False)
            )
            say_once(
                f"labels are not used, since those of '{numbers}' are numbers and those of "
                f"'{names}' names of classes"
            )
            return None, None
        return together

    def _of_one_source(self, every: Sequence[Labels]) -> Labels:
        classes = next((classes for _, classes in every if classes is not None), None)
        if all(labels is None for labels, _ in every):
            return None, classes
        numbers = [
            np.full(len(part.rows), -1) if labels is None else labels
            for part, (labels, _) in zip(self.parts, every, strict=True)
        ]
        return np.concatenate(numbers), classes


def class_numbers(table: pyarrow.Table) -> tuple[pyarrow.ChunkedArray, list[str] | None]:
    """The column of labels as numbers, and the names of their classes if they have some."""
    column = table["label"]
    if not pyarrow.types.is_dictionary(column.type):
        return column.cast(pyarrow.int64()), None
    array = column.combine_chunks()
    indices = pyarrow.chunked_array([array.indices.cast(pyarrow.int64())])
    return indices, array.dictionary.to_pylist()
