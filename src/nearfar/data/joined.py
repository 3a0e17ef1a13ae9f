"""`Joined`: the images of several sources, one source after the other, each with a cache of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow
import torch
from jaxtyping import Int64
from torch import Tensor

from nearfar.data.images import Images, Originals
from nearfar.data.sources import short_names
from nearfar.data.table import USUAL, Lookup, stacked
from nearfar.data.value_range import EIGHT_BITS, ValueRange

Opener = Callable[[Any, int | None, int | None, ValueRange], Images]
"""Opens one source with an image size, a number of channels and a value range, or with those of its own for None."""


def open_joined(
    given: Sequence[str | os.PathLike[str]],
    open_one: Opener,
    image_size: int | None,
    channels: int | None,
    value_range: ValueRange = None,
) -> Images:
    """Open several sources with one size, number of channels and value range, and join them.

    image_size: None: that of all sources where it is the same, else 224. channels: None: 1 where all are grey, else
    those of the others. value_range: None: from the lowest to the highest of all; 8 bits where one of them has these.
    Names get the end of their source's path in front where two sources hold the same one.
    Raises ValueError for a source that is given twice, and for channels that do not go together.
    """
    short = short_names(given)
    parts = [open_one(one, image_size, channels, value_range) for one in given]
    if channels is None:
        wide = sorted({part.channels for part in parts} - {1}) or [1]
        if len(wide) > 1:
            which = " and ".join(f"'{name}' has {part.channels}" for name, part in zip(short, parts, strict=True))
            raise ValueError(f"images of other numbers of channels do not go together: {which}")
        channels = wide[0]
    if image_size is None:
        sizes = {part.image_size for part in parts}
        image_size = sizes.pop() if len(sizes) == 1 else USUAL
    common = _common_range([part.value_range for part in parts])
    stored_as = None if common == EIGHT_BITS else common
    fitting = [
        part
        if (part.image_size, part.channels, part.value_range) == (image_size, channels, stored_as)
        else open_one(one, image_size, channels, common)
        for one, part in zip(given, parts, strict=True)
    ]
    return _joined(fitting, short)


def _common_range(ranges: Sequence[list[float] | None]) -> list[float] | str | None:
    """One value range for all: None where all are pictures of 8 bits, "uint8" where some are."""
    wide = [one for one in ranges if one is not None]
    if len(wide) < len(ranges):
        return EIGHT_BITS if wide else None
    if len({len(one) for one in wide}) > 1:  # grey and colour
        return [min(min(one[::2]) for one in wide), max(max(one[1::2]) for one in wide)]
    ends = np.array(wide)
    return np.where(np.arange(ends.shape[1]) % 2, ends.max(0), ends.min(0)).tolist()


def joined_names(tables: Sequence[pyarrow.Table], short: Sequence[str]) -> pyarrow.Table:
    """Tables of several sources as one, without labels, which may count differently in each.

    Names get the end of their source's path in front.
    """
    names = [[_inside(before, name) for name in t["name"].to_pylist()] for before, t in zip(short, tables, strict=True)]
    kept = [table.drop_columns([one for one in ("label",) if one in table.column_names]) for table in tables]
    parts = (
        table.set_column(table.schema.get_field_index("name"), "name", pyarrow.array(own, pyarrow.string()))
        for table, own in zip(kept, names, strict=True)
    )
    return pyarrow.concat_tables(parts, promote_options="permissive")


class Joined(Images):
    """Images that lie in several `Images`, in order: image i is the one at place `_rows[i]` of all of theirs."""

    parts: list[Images]
    short: list[str]

    @property
    def table(self) -> pyarrow.Table:
        return joined_names([part.table for part in self.parts], self.short)

    @property
    def stored(self) -> bool:
        return all(part.stored for part in self.parts)

    @cached_property
    def pixels(self) -> Tensor:
        """A copy of all of them in memory; `gather` copies a few."""
        return self.gather(torch.arange(len(self))) if self.stored else super().pixels

    def gather(self, index: Int64[Tensor, " batch"]) -> Tensor:
        assert self._rows is not None
        rows = torch.from_numpy(self._rows)[index]
        starts = torch.tensor([0, *(len(part) for part in self.parts)]).cumsum(0)
        owner = torch.searchsorted(starts, rows, right=True) - 1
        order = owner.argsort(stable=True)
        pieces = [part.gather(rows[owner == i] - starts[i]) for i, part in enumerate(self.parts)]
        return torch.cat(pieces)[order.argsort()]

    def subset(self, indices: Sequence[int] | np.ndarray | Tensor) -> Images:
        return _with_parts(super().subset(indices), self.parts, self.short)


def _joined(parts: list[Images], short: list[str]) -> Joined:
    names = [part.names for part in parts]
    skipped = [part.skipped for part in parts]
    known = [{*own, *(name for name, _ in left)} for own, left in zip(names, skipped, strict=True)]
    if len(set().union(*known)) < sum(map(len, known)):
        names = [[_inside(before, name) for name in own] for before, own in zip(short, names, strict=True)]
        skipped = [[(_inside(before, n), why) for n, why in left] for before, left in zip(short, skipped, strict=True)]
    labels, class_names = _labels(parts)
    splits = {part.split for part in parts}
    count = sum(map(len, parts))
    whole = Images(
        None,
        names=[name for own in names for name in own],
        image_size=parts[0].image_size,
        channels=parts[0].channels,
        labels=labels,
        class_names=class_names,
        skipped=[one for left in skipped for one in left],
        statistics=_statistics(parts),
        originals=functools.partial(_originals, parts) if all(part._originals for part in parts) else None,
        split=splits.pop() if len(splits) == 1 else None,
        rows=np.arange(count),
        source=" + ".join(short),
        value_range=parts[0].value_range,
        shown=parts[0].shown,
        columns=stacked([part.columns for part in parts], [len(part) for part in parts]),
    )
    return _with_parts(whole, parts, short)


def _inside(source: str, name: str) -> str:
    """The name of an image with its source in front; a source that is an image file itself has no other name."""
    return source if source.rpartition("/")[2] == name else f"{source}/{name}"


def _with_parts(images: Images, parts: list[Images], short: list[str]) -> Joined:
    joined = Joined.__new__(Joined)
    vars(joined).update(vars(images), parts=parts, short=short)
    return joined


def _labels(parts: Sequence[Images]) -> tuple[np.ndarray | None, list[str] | None]:
    """Labels by the names of their classes, in the order of the sources, or as numbers where none has names.

    None unless all sources have labels, and all with names or all without.
    """
    labels = [part.labels for part in parts if part.labels is not None]
    named = [part.class_names for part in parts if part.class_names is not None]
    if len(labels) < len(parts) or len(named) not in (0, len(parts)):
        return None, None
    if not named:
        return np.concatenate(labels), None
    classes = list(dict.fromkeys(name for own in named for name in own))
    number = {name: place for place, name in enumerate(classes)}
    of = [np.array([*(number[name] for name in own), -1]) for own in named]  # the last for the missing label, -1
    return np.concatenate([new[own] for new, own in zip(of, labels, strict=True)]), classes


def _statistics(parts: Sequence[Images]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation over all sources from those of each: images of one size weigh the same."""
    share = np.array([len(part) for part in parts])[:, None] / sum(map(len, parts))
    means, stds = np.array([part.mean for part in parts]), np.array([part.std for part in parts])
    mean = (share * means).sum(0)
    variance = (share * (stds**2 + (means - mean) ** 2)).sum(0)
    return mean.tolist(), np.sqrt(variance).tolist()


def _originals(parts: Sequence[Images]) -> Originals:
    places = [(owner, row) for owner, part in enumerate(parts) for row in range(len(part))]
    return Lookup(functools.partial(_of_part, [part.originals or [] for part in parts]), places)


def _of_part(parts: Sequence[Originals], place: tuple[int, int]) -> bytes | str:
    owner, row = place
    return parts[owner][row]
