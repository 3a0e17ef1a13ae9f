"""A source with its table: found and scanned once, whatever is asked of it afterwards."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc

from nearfar.data.sources import are_several, describe, find_source, has_columns, short_names
from nearfar.data.sources.arrays import Items
from nearfar.data.sources.concatenated import Concatenated, Part, class_numbers
from nearfar.data.sources.encoded import EncodedSource
from nearfar.data.sources.source import Source
from nearfar.data.sources.splits import choose_splits
from nearfar.data.table import LIMIT, cache_folder, rows_at
from nearfar.data.value_range import ANY_FORMAT, FormatRequest

Split = str | tuple[str, ...] | None


class Scanned:
    """A source of images with its table; `open_images`, `scan` and `list_splits` take it in place
    of the source.

    A folder is walked when it is made, and its headers are read when the table is first asked for.
    Files that are added later are not noticed.

    - `given`: the source, as `open_images` takes it
    - `name`: the source in a few words
    - `sources`: the source that it is, or each of several
    - `label_column`: the one that holds labels, if it was named
    """

    def __init__(
        self,
        given: Any,
        label_column: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        request: FormatRequest = ANY_FORMAT,
        limit: int = LIMIT,
    ) -> None:
        self.given, self.name, self.label_column = given, describe(given), label_column
        self.folder, self.request, self.limit = cache_folder(cache_dir), request, limit
        several = are_several(given)
        self.sources: list[Source] = [
            find_source(path, label_column, request=request, limit=limit, among=several)
            for path in (given if several else [given])
        ]
        self.names = list(map(describe, given)) if several else [self.name]
        self.short = short_names(given) if several else [self.name]
        for source in self.sources:
            if isinstance(source, EncodedSource):
                source.folder = self.folder
        if label_column is not None and several and not any(map(has_columns, self.sources)):
            raise ValueError(
                f"none of {self.name} has columns, so none has '{label_column}' for labels"
            )

    @property
    def splits(self) -> list[str]:
        """The splits that can be opened; those that all of several sources have."""
        first, *others = [source.split_names() for source in self.sources]
        return [split for split in first if split and all(split in names for names in others)]

    @property
    def every_split(self) -> list[str]:
        """The splits that any of the sources has."""
        return list(
            dict.fromkeys(
                split for source in self.sources for split in source.split_names() if split
            )
        )

    def choose(self, split: Split, digests: bool = False) -> Concatenated:
        """The rows of a split, of each source; those of several splits one after the other.

        digests: hash the images that have no digest yet.
        """
        wanted = split if isinstance(split, tuple) else (split,)
        return Concatenated(
            [
                self._part(number, own, digests)
                for own in wanted
                for number in range(len(self.sources))
            ]
        )

    def _part(self, number: int, split: str | None, digests: bool) -> Part:
        source, name = self.sources[number], self.names[number]
        if split is None and source.undivided:
            split = "all"
        splits = choose_splits(source.split_names(), split, name)
        within = pc.is_in(source.table["split"], pyarrow.array(splits, pyarrow.string()))
        if digests:
            source.add_digests(within.to_numpy())
        rows = rows_at(source.table, np.flatnonzero(within))
        return Part(source, name, self.short[number], splits, rows)

    @property
    def from_headers(self) -> bool:
        """Return whether the table is made from headers; else the images must be read for it."""
        return not any(isinstance(source, Items) for source in self.sources)

    def table(self, split: str | None = None, digests: bool = True) -> pyarrow.Table | None:
        """The table of a split, from headers alone; None where images must be read for it."""
        if not self.from_headers:
            return None
        return joined_table(self.choose(split, digests))


def joined_table(chosen: Concatenated) -> pyarrow.Table:
    """The rows of all parts, with labels as numbers, those of several sources as of one."""
    if len(chosen.parts) == 1:
        table = chosen.parts[0].rows
        place = table.schema.get_field_index("label")
        return table.set_column(place, "label", class_numbers(table)[0])
    table, labels = chosen.table.drop_columns(["part", "row"]), chosen.labels()[0]
    if labels is None:
        return table.append_column("label", pyarrow.nulls(len(table), pyarrow.int64()))
    return table.append_column("label", pyarrow.array(labels, pyarrow.int64(), mask=labels < 0))
