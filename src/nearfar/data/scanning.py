"""A source with its table: found and scanned once, whatever is asked of it afterwards."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import pyarrow
import pyarrow.compute as pc

from nearfar.data.sources import (
    are_several,
    arrays,
    describe,
    encoded_source,
    has_columns,
    is_array_file,
    short_names,
)
from nearfar.data.sources.encoded import Source, table_of
from nearfar.data.sources.files import existing
from nearfar.data.sources.splits import choose_splits
from nearfar.data.table import cache_folder, concat_tables


class Scanned:
    """A source of images with its table; `open_images`, `scan` and `list_splits` take it in place
    of the source.

    A folder is walked when it is made, and its headers are read when `rows` is first asked for.
    Files that are added later are not noticed.

    - `given`: the source, as `open_images` takes it
    - `name`: the source in a few words
    - `parts`: each of several sources; empty for one
    - `encoded`: the files or tables behind it; None for arrays and objects, and for several sources
    - `columns`: whether it has columns, of which one may hold labels
    - `label_column`: the one that holds them, if it was named
    """

    def __init__(
        self,
        given: Any,
        label_column: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        among: bool = False,
    ) -> None:
        """among: whether it is one of several sources, which need not all have the labels."""
        self.given, self.folder, self.name = given, cache_folder(cache_dir), describe(given)
        self.parts: list[Scanned] = []
        self.encoded: Source | None = None
        if are_several(given):
            self.parts = [Scanned(path, label_column, cache_dir, among=True) for path in given]
        else:
            self.encoded = encoded_source(given, label_column, among)
        if label_column is not None and self.parts and not any(part.columns for part in self.parts):
            raise ValueError(
                f"none of {self.name} has columns, so none has '{label_column}' for labels"
            )
        self.columns: bool = has_columns(given, self.encoded)
        self.label_column = label_column if self.columns or not among else None

    @cached_property
    def splits(self) -> list[str]:
        """The splits that can be opened; those that all of several sources have."""
        if self.parts:
            first, *others = [part.splits for part in self.parts]
            return [split for split in first if all(split in splits for splits in others)]
        if isinstance(self.given, str) and self.given == "digits":
            return ["train", "test"]
        if is_array_file(self.given):
            return arrays.splits_of(existing(os.fspath(self.given)))
        return [] if self.encoded is None else [split for split in self.encoded.splits if split]

    @cached_property
    def rows(self) -> tuple[pyarrow.Table, list[str] | None]:
        """The table of all splits of encoded images, with labels as numbers, and the names of
        their classes.
        """
        assert self.encoded is not None
        return table_of(self.encoded, self.folder)

    def of_splits(self, splits: list[str]) -> pyarrow.Table:
        """The rows of some splits, of encoded images."""
        table, _ = self.rows
        return table.filter(pc.is_in(table["split"], pyarrow.array(splits, pyarrow.string())))

    def table(self, split: str | None = None) -> pyarrow.Table | None:
        """The table of a split, from headers alone; None where images must be read for it."""
        if self.parts:
            tables = [part.table(split) for part in self.parts]
            known = [table for table in tables if table is not None]
            if len(known) < len(tables):
                return None
            return concat_tables(known, short_names(self.given))
        if self.encoded is None:
            return None
        return self.of_splits(choose_splits(self.encoded.splits, split, self.name))


def scanned(
    source: Any,
    label_column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Scanned:
    """The source, ready to be scanned; one that is already is returned as it is."""
    return source if isinstance(source, Scanned) else Scanned(source, label_column, cache_dir)
