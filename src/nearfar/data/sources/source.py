"""The protocol of all sources: a table of images, and the images of some of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import count, repeat
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow
from torch import Tensor

from nearfar.data.left_out import NO_SPLIT
from nearfar.data.table import Lookup

Picture: TypeAlias = bytes | str | np.ndarray
"""An image as a source gives it: encoded, the path of its file, or its numbers [h,w], [h,w,c] or
[c,h,w].
"""


@runtime_checkable
class Readable(Protocol):
    """All that a class needs to be a source: `open_images` takes its objects."""

    def scan(self) -> pyarrow.Table:
        """The table, a row for each image of all splits.

        All columns are optional. `name`; `split`, "" for none; `label`, text or numbers, or a
        dictionary of the classes in their order. Others are the source's own, by which `read` finds
        the images.
        """
        ...

    def read(self, rows: pyarrow.Table) -> Iterable[Any]:
        """The images of some rows of the table, in their order: see `Picture`."""
        ...


class Source:
    """A source of nearfar's own: its table has all columns of `nearfar.data.table`, and it knows
    more than a `Readable` does.

    `label` is a number; of classes with names, a dictionary of them. `digest` is null throughout
    where images lie in memory, and are not cached. `columns` is a struct of what else the source
    says of an image.
    """

    undivided = False  # True: its splits are read only where they are asked for

    def scan(self) -> pyarrow.Table:
        """The table of all splits."""
        raise NotImplementedError

    def read(self, rows: pyarrow.Table) -> Iterable[Picture] | Tensor:
        """The images of some rows in order; a tensor [images, channels, height, width] is read at
        once.
        """
        raise NotImplementedError

    @cached_property
    def table(self) -> pyarrow.Table:
        """The table, scanned once."""
        return self.scan()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "table"}

    def add_digests(self, wanted: np.ndarray) -> None:
        """Hash the images of these rows of the table, as far as they have no digest yet and are
        encoded.
        """

    def split_names(self) -> list[str]:
        """The splits in order; "" for the images that are in none."""
        return list(dict.fromkeys(self.table["split"].to_pylist()))

    def left_out(self, splits: Sequence[str]) -> list[tuple[str, str]]:
        """(name, reason) of what was found and is no row of these splits."""
        return []

    def in_no_split(self, splits: Sequence[str]) -> str | None:
        """The reason for which images outside all splits are left out; None where they are read."""
        names = self.split_names()
        if "" in splits or "" not in names or len(names) == 1:
            return None
        return f"{NO_SPLIT} {', '.join(name for name in names if name)}"

    def originals(
        self, rows: pyarrow.Table, scratch: Path | None = None
    ) -> Sequence[bytes | str] | None:
        """The encoded images, or paths, by position, in any order; None for images that are not
        encoded. `scratch` is a folder to write to.
        """
        return Lookup(partial(_one, self, rows), range(len(rows)))


def _one(source: Source, rows: pyarrow.Table, row: int) -> Any:
    return next(iter(source.read(rows.slice(row, 1))))


def numbered_names(splits: Sequence[str], names: Sequence[str | None] | None = None) -> list[str]:
    """Names of images: those that are known, else the number in the split; the split in front."""
    fronts = {split: (prefix(split), count()) for split in set(splits)}
    made = []
    for split, name in zip(splits, repeat(None) if names is None else names, strict=False):
        front, numbers = fronts[split]
        number = next(numbers)
        made.append(f"{front}{number:06d}" if name is None else front + name)
    return made


def prefix(split: str) -> str:
    """Return the beginning of the names of a split's images."""
    return f"{split}/" if split else ""


def labels_as_column(numbers: pyarrow.Array, names: Sequence[str] | None) -> pyarrow.Array:
    """Labels as a column: numbers, or a dictionary of the names of their classes."""
    if names is None:
        return numbers
    classes = pyarrow.array(list(names), pyarrow.string())
    return pyarrow.DictionaryArray.from_arrays(numbers, classes)
