"""Sources whose class is not nearfar's: whatever has `scan` and `read`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from torch import Tensor

from nearfar.data.labels import labels_of, numbered
from nearfar.data.readers import quietly
from nearfar.data.sources.encoded import undigested, with_digests, with_headers
from nearfar.data.sources.source import (
    Picture,
    Readable,
    Source,
    labels_as_column,
    numbered_names,
)
from nearfar.data.table import printable

HEADER = ("height", "width", "bands", "bits", "pages")


class Outside(Source):
    """An object with `scan` and `read`, and a table with all columns.

    Headers and digests are read from the images unless the table has them. Encoded images are
    cached by their digests, and numbers stay in memory.
    """

    def __init__(self, given: Readable, name: str) -> None:
        self.given, self.name = given, name

    def scan(self) -> pyarrow.Table:
        table = self.given.scan()
        if not isinstance(table, pyarrow.Table):
            raise ValueError(
                f"scan() of {self.name} must return a pyarrow.Table, not {type(table).__name__}"
            )
        own = table.column_names
        splits = table["split"].to_pylist() if "split" in own else [""] * len(table)
        splits = [split or "" for split in splits]
        names = [str(name) for name in table["name"].to_pylist()] if "name" in own else None
        names = numbered_names(splits) if names is None else list(map(printable, names))
        table = _with(table, "name", pyarrow.array(names, pyarrow.string()))
        table = _with(table, "split", pyarrow.array(splits, pyarrow.string()))
        table = _with(table, "label", self._labels(table))
        for name in ("digest", "problem"):
            if name not in own and set(HEADER) <= set(own):
                table = _with(table, name, pyarrow.nulls(len(table), pyarrow.string()))
        if set(HEADER) <= set(own):
            return table
        with quietly():
            return with_headers(table, self.read(table))

    def _labels(self, table: pyarrow.Table) -> pyarrow.Array:
        """Labels of any kind as numbers, or as a dictionary of the classes in their order."""
        if "label" not in table.column_names:
            return pyarrow.nulls(len(table), pyarrow.int64())
        column, classes = table["label"].combine_chunks(), None
        if pyarrow.types.is_dictionary(column.type):
            classes = [str(name) for name in column.dictionary.to_pylist()]
        texts = labels_of(column.to_pylist(), f"column 'label' of {self.name}")
        return labels_as_column(*numbered(texts, classes))

    def add_digests(self, wanted: np.ndarray) -> None:
        rows = undigested(self.table, wanted)
        if not len(rows):
            return
        first = next(iter(self.read(self.table.take(rows[:1]))))
        if not isinstance(first, np.ndarray):  # numbers stay in memory
            self.table = with_digests(self, rows)

    def read(self, rows: pyarrow.Table) -> Iterator[Picture]:
        images = iter(self.given.read(rows))
        for number in range(len(rows)):
            image = next(images, None)
            if image is None:
                message = f"read() of {self.name} gave {number} images for {len(rows)} rows"
                raise ValueError(message)
            yield _as_picture(image)

    def originals(
        self, rows: pyarrow.Table, scratch: Path | None = None
    ) -> Sequence[bytes | str] | None:
        in_memory = rows["digest"].null_count == len(rows)
        return None if in_memory else super().originals(rows, scratch)


def _as_picture(image: Any) -> Picture:
    if isinstance(image, Tensor):
        return np.asarray(image.detach().cpu())
    return image if isinstance(image, (bytes, np.ndarray)) else str(image)


def _with(table: pyarrow.Table, name: str, column: Any) -> pyarrow.Table:
    """The table with a column in place of one of that name, or at its end."""
    if name in table.column_names:
        return table.set_column(table.schema.get_field_index(name), name, column)
    return table.append_column(name, column)
