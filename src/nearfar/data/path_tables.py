"""Tables of paths: CSV, TSV or Parquet with a column of image files, and other columns that are kept."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from nearfar.data import digests, sources
from nearfar.data.columns import LABEL_NAMES, Originals, Record
from nearfar.data.readers import Reading, prefix
from nearfar.messages import one_line

PATH_NAMES: tuple[str, ...] = ("path", "file", "filename", "file_name", "filepath", "file_path")
PATH_NAMES += ("image", "image_path", "image_file", "img", "img_path")
SPLIT_NAME = "split"
TEXT_TABLES = (".csv", ".tsv")
_HEADER = 2**20  # characters of the first line, at most


class PathTable:
    """Image files named in a table, in its order; their names are the paths as they stand there.

    Paths are relative to the table's folder, or absolute. The splits are those of a column "split" with words such as
    "train" and "test", else of the table's own name, as for Parquet files. Nothing is fetched from addresses.
    """

    problems: list[tuple[str, str]]

    def __init__(self, file: Path, table: pyarrow.Table, path_column: str) -> None:
        self.file, self.root = file, Path(os.path.abspath(file.parent))
        self.table, self.path_column = table, path_column
        paths = [path or "" for path in table[path_column].to_pylist()]
        self._rows = _rows_by_split(table, file)
        self.splits = {split: [paths[row] for row in rows] for split, rows in self._rows.items()}
        self.problems = sources.in_none(paths, self.splits)

    def digests(self, splits: Sequence[str], folder: Path) -> dict[str, str]:
        names = [name for split in splits for name in self.splits[split]]
        found = digests.digests(self.root, names, [self.file.name, *splits], folder)
        return {self._full(name): digest for name, digest in found.items()}

    def identity(self, splits: Sequence[str], digests: Mapping[str, str]) -> list[Any]:
        return [[split, name, digests[self._full(name)]] for split in splits for name in self.splits[split]]

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        label = self._label_column(label_column)
        rows = self._rows[split]
        values = [None] * len(rows) if label is None else self.table[label].take(pyarrow.array(rows)).to_pylist()
        named = zip(rows, self.splits[split], values, strict=True)
        records = (self._record(row, split, name, None if _missing(value) else value) for row, name, value in named)
        return Reading(records, None, len(rows))

    def originals(self, splits: Sequence[str], label_column: str | None, rows: list[int], scratch: Path) -> Originals:
        names = [name for split in splits for name in self.splits[split]]
        return [self._full(names[row]) for row in rows]

    def columns(self, splits: Sequence[str], rows: list[int]) -> pyarrow.Table:
        """All columns but that of the paths, for records at the positions `rows` of the joined splits."""
        every = [row for split in splits for row in self._rows[split]]
        return self.table.drop_columns([self.path_column]).take(pyarrow.array([every[row] for row in rows], "int64"))

    def digest(self, splits: Sequence[str]) -> str:
        """A hash of the paths, in their order."""
        names = repr([self.splits[split] for split in splits])
        return digests.digest(names.encode("utf-8", "surrogatepass"), size=8)

    def _full(self, name: str) -> str:
        return os.path.join(self.root, name)

    def _record(self, row: int, split: str, name: str, label: Any) -> Record:
        problem = "" if name else "this row has no path"
        if "://" in name:
            problem = "an address, and nothing is fetched: name files"
        full = self._full(name)
        if not problem and ("\0" in name or not os.path.isfile(full)):
            special = "" if "\0" in name else sources.special(full)
            problem = f"{special}, not a file" if special else "there is no such file"
        named = prefix(split) + (name or f"row {row + 1}")
        return Record(named, None, None, problem) if problem else Record(named, full, label)

    def _label_column(self, wanted: str | None) -> str | None:
        """`wanted`, else a column of a usual name that holds whole numbers or text."""
        there = [name for name in self.table.column_names if name != self.path_column]
        if wanted is not None:
            if wanted not in there:
                raise ValueError(f"'{self.file}' has no column '{wanted}' for labels; its columns: {', '.join(there)}")
            return wanted
        usual = {name.lower(): name for name in reversed(there) if _is_label(self.table.schema.field(name).type)}
        return next((usual[name] for name in LABEL_NAMES if name in usual), None)


def path_table(file: Path) -> PathTable:
    """A table of paths from a .csv, .tsv or .parquet file; ValueError, one line, for any other content."""
    table = _read_text(file) if file.suffix.lower() in TEXT_TABLES else _read_parquet(file)
    column = path_column(table.schema)
    if column is None:
        found = ", ".join(table.column_names) or "none"
        raise ValueError(f"'{file}' has no column of image files, such as 'path' or 'file_name'; its columns: {found}")
    return PathTable(file, table, column)


def path_column(schema: pyarrow.Schema) -> str | None:
    """The column of text with the most usual name, in any case of letters."""
    texts = {field.name.lower(): field.name for field in reversed(schema) if _is_text(field.type)}
    return next((texts[name] for name in PATH_NAMES if name in texts), None)


def names_paths(file: Path) -> bool:
    """Whether a Parquet file holds paths and no bytes of images."""
    try:
        schema = pyarrow.parquet.read_schema(file)
    except (pyarrow.ArrowException, OSError):  # damaged, as whoever reads it says
        return False
    kinds = [field.type for field in schema]
    encoded = any(pyarrow.types.is_struct(kind) or _is_bytes(kind) for kind in kinds)
    return path_column(schema) is not None and not encoded


def _read_text(file: Path) -> pyarrow.Table:
    with one_line(f"cannot read '{file}'"):
        with open(file, encoding="utf-8-sig", newline="") as opened:
            line = opened.readline(_HEADER)
        separator = "\t" if file.suffix.lower() == ".tsv" else max(",;\t", key=line.count)
        header = next(csv.reader([line], delimiter=separator), [])
        if len(set(header)) < len(header):
            raise ValueError("two of its columns have the same name")
        as_text = {name: pyarrow.string() for name in header if name.lower() in PATH_NAMES}  # digits keep their zeros
        return pyarrow.csv.read_csv(
            file,
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(column_types=as_text),
        )


def _read_parquet(file: Path) -> pyarrow.Table:
    with one_line(f"cannot read '{file}'"):
        return pyarrow.parquet.read_table(file)


def _rows_by_split(table: pyarrow.Table, file: Path) -> dict[str, list[int]]:
    """Positions of the rows of every split."""
    column = next((one for one in table.column_names if one.lower() == SPLIT_NAME), None)
    if column is not None:
        rows = sources.word_splits([str(word) for word in table[column].to_pylist()], file)
        if "" not in rows:
            return rows
    return {split: list(range(len(table))) for split in sources.shard_splits([file.name], file)}


def _is_text(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _is_label(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return pyarrow.types.is_integer(kind) or _is_text(kind)


def _is_bytes(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)


def _missing(value: Any) -> bool:
    return value is None or value == "" or value != value
