"""Files that are images each: a folder of them, a list, or a table of their paths."""

from __future__ import annotations

import csv
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from nearfar.data.formats import suffixes
from nearfar.data.sources.splits import (
    class_folders,
    folder_split,
    in_none,
    prefix,
    say_once,
    shard_splits,
    word_splits,
)
from nearfar.data.table import Named, Row, looked_at
from nearfar.data.value_range import spread
from nearfar.messages import did_you_mean, one_line

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
LABEL_NAMES = ("label", "labels", "class", "cls", "fine_label", "target", "y", "coarse_label")
PATH_NAMES: tuple[str, ...] = ("path", "file", "filename", "file_name", "filepath", "file_path")
PATH_NAMES += ("image", "image_path", "image_file", "img", "img_path")
TEXT_TABLES = (".csv", ".tsv")
_HEADER = 2**20  # characters of the first line of a table, at most
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_RUN = {"config.yaml", "environment.json"}  # what every run folder of nearfar holds
_NOT_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Files:
    """Files below a root, divided into splits; each is one image. `problems`: (name, reason) of what is left out."""

    whole = True

    def __init__(self, root: Path, splits: dict[str, list[str]], problems: Sequence[tuple[str, str]] = ()) -> None:
        self.root, self.splits, self.problems = root.resolve(), splits, list(problems)

    def address(self, label_column: str | None) -> list[Any]:
        files = [file for names in self.splits.values() for file in names]
        return [os.path.realpath(self.root), *(files if len(files) == 1 else ())]  # one of many, each a source

    def path(self, file: str) -> str:
        return f"{self.root}/{file}"

    def stamp(self, file: str) -> tuple[int, int]:
        try:
            found = os.stat(self.path(file))
        except (OSError, ValueError):  # ValueError: a name with a null character
            return 0, 0
        return found.st_mtime_ns, found.st_ctime_ns

    def wrong(self, file: str) -> str:
        """Why a file is not opened; "" for one that is."""
        return ""

    def look(self, file: str, label_column: str | None) -> list[Row]:
        why = self.wrong(file)
        return [Row(-1, None, None, None, None, None, None, why) if why else looked_at(self.path(file))]

    def named(self, table: pyarrow.Table, splits: Sequence[str], label_column: str | None) -> Named:
        """Names and labels for the rows of these splits, in order."""
        names = [(split, name) for split in splits for name in self.splits[split]]
        return Named([name for _, name in names], [split for split, _ in names], [None] * len(names))

    def few(self, splits: Sequence[str], count: int) -> list[tuple[str, bytes | str | None]]:
        """(name, encoded image or path) of a few images, evenly spaced where that costs little, else the first ones."""
        names = [(split, name) for split in splits for name in self.splits[split]]
        chosen = [names[row] for row in spread(len(names), count)]
        return [(self.name(*one), None if self.wrong(one[1]) else self.path(one[1])) for one in chosen]

    def name(self, split: str, file: str) -> str:
        return file

    def encoded(self, table: pyarrow.Table) -> Iterator[bytes | str]:
        """The encoded images, or paths, of some rows in order."""
        return iter(self.originals(table))

    def originals(self, table: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        """The same by position, in any order; `scratch` is a folder to write to."""
        return [self.path(os.fsdecode(ref)) for ref in table["ref"].to_pylist()]


class ImageFolder(Files):
    """Image files at any depth.

    Labels: with `label_column`, from metadata.csv, .jsonl or .parquet; else the class folder, when images lie exactly
    one folder below the root (or below their split's folder) and there are at least two such folders. Of the first
    split fewer than half may lie in the root itself: they have no label.
    """

    def __init__(
        self,
        root: Path,
        splits: dict[str, list[str]],
        metadata: list[str],
        problems: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(root, splits, problems)
        self.metadata = metadata

    def named(self, table: pyarrow.Table, splits: Sequence[str], label_column: str | None) -> Named:
        found = super().named(table, splits, None)
        classes = self._classes()
        if not classes:
            return found
        number = {name: place for place, name in enumerate(classes)}
        folders = [class_folders(name, split) for split, name in zip(found.splits, found.names, strict=True)]
        labels = [number[own[-1]] if own else None for own in folders]
        if None in labels:
            first = found.names[labels.index(None)]
            count = f"{labels.count(None)} of {len(labels)}, first '{first}'"
            say_once(f"images of '{self.root}' in no class folder, so without a label: {count}")
        return found._replace(labels=labels, class_names=classes)

    def _classes(self) -> list[str] | None:
        """The names of the class folders, or None where files do not lie in such."""
        folders = [[class_folders(name, split) for name in names] for split, names in self.splits.items()]
        first = [len(own) for own in folders[0]] if folders else []
        if any(len(own) > 1 for part in folders for own in part) or 2 * sum(first) <= len(first):
            return None
        classes = sorted({own[-1] for part in folders for own in part if own})
        return classes if len(classes) > 1 else None

    def by_metadata(self, splits: Sequence[str], label_column: str) -> list[tuple[str, Any]]:
        """The images that the metadata names, each with its label; in the order of their names, split by split."""
        if not self.metadata:
            raise ValueError(f"'{self.root}' has no {' or '.join(METADATA)} with a column '{label_column}'")
        found: dict[str, Any] = {}
        for name in self.metadata:
            if "" not in splits and folder_split(name) not in (None, *splits):
                continue
            file = self.root / name
            table = _read_json(file) if file.suffix == ".jsonl" else _read_table(file)
            if "file_name" not in table.column_names:
                raise ValueError(f"'{file}' has no column 'file_name'; its columns: {', '.join(table.column_names)}")
            paths = [
                os.path.normpath(os.path.join(os.path.dirname(name), path))
                for path in map(str, table["file_name"].to_pylist())
            ]
            labels = table[_named_column(table, label_column, file)].to_pylist()
            labels = [None if _missing(label) else label for label in labels]
            found |= dict(zip((path.replace(os.sep, "/") for path in paths), labels, strict=True))
        split_of = {name: split for split, names in self.splits.items() for name in names}
        asked = ((name, label) for name, label in sorted(found.items()) if split_of.get(name) in (None, *splits))
        return sorted(asked, key=lambda one: splits.index(split_of.get(one[0], splits[0])))


class ImageFiles(Files):
    """Image files that are listed one by one, named from the folder on that holds all of them; without labels."""

    def __init__(self, given: Sequence[str | os.PathLike[str]]) -> None:
        paths = [os.path.abspath(existing(os.fspath(path))) for path in given]
        twice, times = Counter(paths).most_common(1)[0]
        if times > 1:
            raise ValueError(f"'{twice}' is given twice")
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        super().__init__(Path(root), {"": [os.path.relpath(path, root).replace(os.sep, "/") for path in paths]})


class PathTable(Files):
    """Image files named in a table, in its order; their names are the paths as they stand there.

    Paths are relative to the table's folder, or absolute. The splits are those of a column "split" with words such as
    "train" and "test", else of the table's own name, as for Parquet files. Nothing is fetched from addresses.
    """

    def __init__(self, file: Path, table: pyarrow.Table, path_column: str) -> None:
        self.file, self.table, self.path_column = file, table, path_column
        paths = [path or "" for path in table[path_column].to_pylist()]
        self.rows = _rows_by_split(table, file)
        splits = {split: [paths[row] for row in rows] for split, rows in self.rows.items()}
        super().__init__(file.parent, splits, in_none(paths, splits))
        self.root = Path(os.path.abspath(file.parent))  # where ".." leads is not changed by links

    def address(self, label_column: str | None) -> list[Any]:
        return [os.path.realpath(self.file)]

    def path(self, file: str) -> str:
        return os.path.join(self.root, file)

    def wrong(self, file: str) -> str:
        if not file:
            return "this row has no path"
        if "://" in file:
            return "an address, and nothing is fetched: name files"
        if "\0" in file or not os.path.isfile(self.path(file)):
            what = "" if "\0" in file else special(self.path(file))
            return f"{what}, not a file" if what else "there is no such file"
        return ""

    def name(self, split: str, file: str) -> str:
        return prefix(split) + file

    def named(self, table: pyarrow.Table, splits: Sequence[str], label_column: str | None) -> Named:
        rows = [(split, row) for split in splits for row in self.rows[split]]
        paths = [name for split in splits for name in self.splits[split]]
        names = [self.name(s, path or f"row {row + 1}") for (s, row), path in zip(rows, paths, strict=True)]
        label = self._label_column(label_column)
        if label is None:
            return Named(names, [split for split, _ in rows], [None] * len(rows))
        every = [None if _missing(value) else value for value in self.table[label].to_pylist()]
        known = {row for own in self.rows.values() for row in own}
        texts = [value for row, value in enumerate(every) if row in known]
        return Named(names, [split for split, _ in rows], [every[row] for _, row in rows], None, texts)

    def columns(self, splits: Sequence[str], rows: Sequence[int]) -> pyarrow.Table:
        """All columns but that of the paths, for images at the positions `rows` of the joined splits."""
        every = [row for split in splits for row in self.rows[split]]
        return self.table.drop_columns([self.path_column]).take(pyarrow.array([every[row] for row in rows], "int64"))

    def _label_column(self, wanted: str | None) -> str | None:
        """`wanted`, else a column of a usual name that holds whole numbers or text."""
        there = [name for name in self.table.column_names if name != self.path_column]
        if wanted is not None:
            return _named_column(self.table.select(there), wanted, self.file)
        usual = {name.lower(): name for name in reversed(there) if _is_label(self.table.schema.field(name).type)}
        return next((usual[name] for name in LABEL_NAMES if name in usual), None)


def path_table(file: Path) -> PathTable:
    """A table of paths from a .csv, .tsv or .parquet file; ValueError, one line, for any other content."""
    table = _read_table(file)
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


def _read_table(file: Path) -> pyarrow.Table:
    with one_line(f"cannot read '{file}'"):
        if file.suffix.lower() == ".parquet":
            return pyarrow.parquet.read_table(file)
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


def _read_json(file: Path) -> pyarrow.Table:
    with one_line(f"cannot read '{file}'"):
        return pyarrow.json.read_json(file)


def _named_column(table: pyarrow.Table, wanted: str, file: Path) -> str:
    if wanted not in table.column_names:
        raise ValueError(f"'{file}' has no column '{wanted}' for labels; its columns: {', '.join(table.column_names)}")
    return wanted


def _rows_by_split(table: pyarrow.Table, file: Path) -> dict[str, list[int]]:
    """Positions of the rows of every split."""
    column = next((one for one in table.column_names if one.lower() == "split"), None)
    if column is not None:
        rows = word_splits([str(word) for word in table[column].to_pylist()], file)
        if "" not in rows:
            return rows
    return {split: list(range(len(table))) for split in shard_splits([file.name], file)}


def _is_text(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _is_label(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return pyarrow.types.is_integer(kind) or _is_text(kind)


def _is_bytes(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)


def _missing(value: Any) -> bool:
    return value is None or value == "" or value != value


def existing(source: str) -> Path:
    """The file or folder, or FileNotFoundError that names the nearest existing one; ValueError for a pipe or device."""
    path = Path(source).expanduser()
    if source and path.exists():
        if special(path):
            raise ValueError(f"'{source}' is {special(path)}, neither a file nor a folder")
        return path
    there = path.parent
    while not there.exists():
        path, there = there, there.parent
    names = [entry.name for entry in there.iterdir()] if there.is_dir() else []
    near = did_you_mean(path.name, names, cutoff=0.5)
    hub = f"; a data set of that name on the Hugging Face Hub is called 'hf:{source}'"
    raise FileNotFoundError(
        f"there is no file or folder '{source}'"
        + (f"; in '{there}', {near}" if near else hub if _HUB_NAME.fullmatch(source) else "")
    )


def special(path: str | Path) -> str:
    """What a path is that is neither a file nor a folder ("a named pipe"): opening it may wait for ever; else ""."""
    try:
        return _NOT_FILES.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:  # such as a link to nothing, which is listed as unreadable later
        return ""


def list_files(root: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Every file under `root`, as sorted relative paths with "/"; hidden ones and names starting with "__" left out.

    And (path, reason) of what might have been data: folders that cannot be read, pipes and devices with the name of an
    image, a Parquet file or a tar. Links to folders are followed, each real folder once; folders of runs are left out,
    with one line.
    """
    found: list[str] = []
    problems: list[tuple[str, str]] = []
    seen: set[str] = set()

    def unreadable(error: OSError) -> None:
        if os.path.samefile(error.filename, root):
            raise ValueError(f"the folder '{root}' cannot be read: {error.strerror}") from error
        problems.append((_inside(root, error.filename), f"the folder cannot be read: {error.strerror}"))

    for folder, inner, names in os.walk(root, followlinks=True, onerror=unreadable):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        if len(seen) > 1 and set(names) >= _RUN:
            inner.clear()
            say_once(f"'{folder}' is the folder of a run, not of images: left out")
            continue
        prefix = _inside(root, folder)
        with os.scandir(folder) as entries:
            plain = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}  # known without a stat
        for name in names:
            if name.startswith((".", "__")):
                continue
            what = "" if name in plain else special(f"{folder}/{name}")
            if not what:
                found.append(prefix + name)
            elif kind_of(name) is not None:
                problems.append((prefix + name, f"{what}, not a file"))
    return sorted(found), sorted(problems)


def _inside(root: Path, folder: str) -> str:
    """A folder's path below `root`, with "/" behind it; "" for the root itself."""
    above = os.path.relpath(folder, root).replace(os.sep, "/")
    return "" if above == "." else f"{above}/"


def kind_of(name: str) -> str | None:
    """What a file holds by its ending: "images", "parquet", "tars", or None."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".parquet":
        return None if os.path.basename(name) in METADATA else "parquet"
    return "tars" if suffix == ".tar" else "images" if suffix in suffixes() else None
