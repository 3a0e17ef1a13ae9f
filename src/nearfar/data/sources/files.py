"""Files that are images each: a folder of them, a list, or a table of their paths."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from nearfar.data import left_out
from nearfar.data.column_names import LABEL_NAMES, PATH_NAMES, find_column, normalized_name
from nearfar.data.labels import (
    NO_NUMBER,
    label_columns,
    labels_of,
    say_label_column,
    whole_number,
)
from nearfar.data.left_out import NO_FILE, NO_PATH
from nearfar.data.names import plain_name, spellings
from nearfar.data.pictures import suffixes
from nearfar.data.sources.encoded import EncodedImage, EncodedSource
from nearfar.data.sources.source import prefix
from nearfar.data.sources.splits import class_folders, row_splits, shard_splits, split_columns
from nearfar.data.table import printable
from nearfar.data.text import encoding_of, text_of
from nearfar.messages import (
    check_column,
    did_you_mean,
    first_line,
    listed_names,
    raise_as_value_error,
    say_once,
)
from nearfar.progress import progress

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
TEXT_TABLES = (".csv", ".tsv")
_LONGEST = 4096  # characters of a path; encoded images in a table have more
_HEADER = 2**20  # characters of the first line of a table, at most
_NUMBER = re.compile(r"[+-]?(0|[1-9]\d{0,17})([.]\d*)?(e[+-]?\d+)?", re.IGNORECASE)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# what every folder of nearfar's own holds, by what it is
_OWN_FOLDERS = {
    "the folder of a run": {"config.yaml", "environment.json"},
    "a folder of nearfar explore": {"parts.json", "features"},
}
_NOT_FILES = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
_NOT_FILES |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")


class ImageFolder(EncodedSource):
    """Image files at any depth.

    Labels: with `label_column`, from metadata.csv, .jsonl or .parquet; else the class folder, when
    images lie exactly one folder below the root (or below their split's folder) and there are at
    least two such folders. Of the first split fewer than half may lie in the root itself: they have
    no label.
    """

    def __init__(
        self,
        root: Path,
        splits: dict[str, list[str]],
        metadata: Sequence[str],
        problems: Sequence[tuple[str, str]] = (),
        label_column: str | None = None,
        tables: Sequence[str] = (),
    ) -> None:
        """metadata: tables by which labels are found; tables: all that lie among the images."""
        super().__init__(root, splits, problems, label_column)
        self.has_metadata, self.tables = bool(metadata), tables
        self.by_metadata = (
            None if label_column is None else self._by_metadata(metadata, label_column)
        )
        folders = [[class_folders(file, split) for file in part] for split, part in splits.items()]
        rest = folders.pop() if len(splits) > 1 and "" in splits else None
        self.folders = _without_common(folders)
        if rest is not None:  # what is in no split may lie anywhere
            self.folders.append([folders if len(folders) == 1 else () for folders in rest])

    def class_names(self) -> list[str] | None:
        every = [folders for part in self.folders for folders in part]
        first = [len(folders) for folders in self.folders[0]]
        if (
            self.by_metadata is not None
            or any(len(folders) > 1 for folders in every)
            or 2 * sum(first) <= len(first)
        ):
            return None
        classes = sorted({name for folders in every for name in folders})
        return classes if len(classes) > 1 else None

    def labels(self) -> list[str | None] | None:
        names = [name for part in self.splits.values() for name in part]
        if self.by_metadata is not None:
            return [self.by_metadata.get(name) for name in names]
        classes = self.class_names()
        if classes is None:
            self._say_why()
            return None
        labels = [folders[0] if folders else None for part in self.folders for folders in part]
        rest = len(self.folders[-1]) if len(self.folders) > 1 and "" in self.splits else 0
        in_splits = labels[: len(labels) - rest]
        if None in in_splits:
            first = names[in_splits.index(None)]
            count = f"{in_splits.count(None)} of {len(in_splits)}, first '{first}'"
            say_once(f"images of '{self.root}' in no class folder, so without a label: {count}")
        return labels

    def _say_why(self) -> None:
        """Say why images in several folders, or beside tables, have no labels."""
        if self.tables:
            say_once(
                f"the images of '{self.root}' have no labels, and tables among them are not read: "
                f"name the one with their paths in place of the folder, such as "
                f"'{self.root / self.tables[0]}'"
            )
        every = [folders for part in self.folders for folders in part]
        if len(set(every)) < 2 or not any(every):
            return
        deep = max(map(len, every))
        files = [name for names in self.splits.values() for name in names]
        first = files[next(n for n, folders in enumerate(every) if len(folders) == deep)]
        why = (
            f"lie in folders of folders, such as '{first}'"
            if deep > 1
            else "mostly lie in no folder of a class"
        )
        say_once(
            f"images of '{self.root}' have no labels, since they {why}: for labels, put "
            f"each class into a folder of "
            "its own, or name them in a metadata.csv or a table of paths"
        )

    def _by_metadata(self, metadata: Sequence[str], label_column: str) -> dict[str, str | None]:
        """The labels of the images that the metadata names; the others among these names become
        problems.
        """
        if not metadata:
            raise ValueError(
                f"'{self.root}' has no {' or '.join(METADATA)} with a column '{label_column}'"
            )
        label_of: dict[str, str | None] = {}
        twice = 0
        for name in metadata:
            file = self.root / name
            table = read_table(file, label_column)
            if words := split_columns(table.column_names):
                say_once(
                    f"column '{words[0]}' does not divide a folder: name '{file}' in its place"
                )
            paths, labels = (_column(table, name, file) for name in ("file_name", label_column))
            folder = os.path.dirname(name)
            texts = labels_of(labels.to_pylist(), f"column '{label_column}'")
            for path, label in zip(paths.to_pylist(), texts, strict=True):
                written = str(path).replace("\\", "/")
                image = os.path.normpath(os.path.join(folder, written)).replace(os.sep, "/")
                twice += label_of.setdefault(image, label) != label
        if twice:
            say_once(
                f"the metadata of '{self.root}' has other labels in {twice} further rows for "
                f"images that it named before: the first counts"
            )
        known = {plain_name(name): name for names in self.splits.values() for name in names}
        label_of = {known.get(plain_name(name), name): label for name, label in label_of.items()}
        lost = sorted(label_of.keys() - set(known.values()))
        self.problems += [
            (name, "named in the metadata, and not an image in the folder") for name in lost
        ]
        return label_of


class ImageFiles(EncodedSource):
    """Image files that are listed one by one, named from the folder on that holds all of them;
    without labels.
    """

    def __init__(self, given: Sequence[str | os.PathLike[str]]) -> None:
        paths = [os.path.abspath(existing(os.fspath(path))) for path in given]
        twice, times = Counter(paths).most_common(1)[0]
        if times > 1:
            raise ValueError(f"'{twice}' is given twice")
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        super().__init__(
            Path(root), {"": [os.path.relpath(path, root).replace(os.sep, "/") for path in paths]}
        )


class PathTable(EncodedSource):
    """Image files named in a table, in its order; their names are the paths as they stand there.

    Paths are relative to the table's folder, or absolute. The splits are those of a column "split"
    with words such as "train" and "test", else of the table's own name, as for Parquet files.
    Nothing is fetched from addresses. Labels stand in `label_column`, else in a column of a usual
    name that holds whole numbers or text.
    """

    def __init__(self, file: Path, label_column: str | None = None) -> None:
        self.file, self.listed = file, read_table(file, label_column)
        self.path_column = path_column(self.listed.schema)
        if self.path_column is None:
            columns = listed_names(self.listed.column_names)
            raise ValueError(
                f"'{file}' has no column of paths, such as 'path' or 'file_name'; its "
                f"columns: {columns}"
            )
        paths = [path or "" for path in self.listed[self.path_column].to_pylist()]
        if again := sum(map(bool, paths)) - len(set(filter(None, paths))):
            say_once(f"{again} rows of '{file}' name a file that an earlier row names")
        self.rows = self._rows_by_split()
        splits = {split: [paths[row] for row in rows] for split, rows in self.rows.items()}
        super().__init__(file.parent, splits, (), label_column)
        self.root = Path(os.path.abspath(file.parent))  # where ".." leads is not changed by links
        self.others = self.listed.drop_columns([self.path_column])
        self.label_texts = self._label_texts()

    def _label_texts(self) -> list[str | None] | None:
        """The labels of all rows: of `label_column`, else of a column of a usual name that holds
        labels.
        """
        if (wanted := self.label_column) is not None:
            values = _column(self.others, wanted, self.file).to_pylist()
            return labels_of(values, f"column '{wanted}'")
        usual = label_columns(self.others.schema)
        for name in usual:
            try:
                texts = labels_of(self.others[name].to_pylist(), f"column '{name}'")
            except ValueError as error:
                say_once(f"no labels of '{self.file}' are used: {first_line(error)}")
                continue
            say_label_column(self.file, name, usual)
            return texts
        return None

    def _rows_by_split(self) -> dict[str, list[int]]:
        for column in split_columns(self.listed.column_names):
            if rows := row_splits(column, self.listed[column].to_pylist(), self.file):
                return rows
        return {
            split: list(range(len(self.listed)))
            for split in shard_splits([self.file.name], self.file)
        }

    def address(self) -> list[Any]:
        return [os.path.realpath(self.file)]

    def path(self, file: str) -> str:
        """The file, in whichever way the file system writes its name: accents, separators, file://
        addresses.
        """
        whole = os.path.join(self.root, file)
        if "\0" in file or len(file) > _LONGEST or os.path.lexists(whole):
            return whole
        others = (os.path.join(self.root, spelling) for spelling in spellings(file))
        return next((path for path in others if os.path.lexists(path)), whole)

    def images(self, file: str) -> Iterator[EncodedImage]:
        if not 0 < len(file) <= _LONGEST:
            yield EncodedImage(None, problem=NO_PATH)
        elif "\0" in file or not os.path.isfile(self.path(file)):
            yield EncodedImage(None, problem=NO_FILE)
        else:
            yield EncodedImage(self.path(file))

    def names(self, split: str) -> list[str]:
        rows = zip(self.splits[split], self.rows[split], strict=True)
        return [
            prefix(split) + (path if 0 < len(path) <= _LONGEST else f"row {row + 1}")
            for path, row in rows
        ]

    def labels(self) -> list[str | None] | None:
        if self.label_texts is None:
            return None
        return [self.label_texts[row] for rows in self.rows.values() for row in rows]

    def columns(self, splits: Sequence[str]) -> pyarrow.Table:
        return self.others.take(
            pyarrow.array([row for split in splits for row in self.rows[split]], "int64")
        )


def path_column(schema: pyarrow.Schema) -> str | None:
    """The column of text with the most usual name, in any case of letters."""
    return find_column((field.name for field in schema if _is_text(field.type)), PATH_NAMES)


def names_paths(file: Path) -> bool:
    """Return whether a Parquet file holds paths and no bytes of images."""
    try:
        schema = pyarrow.parquet.read_schema(file)
    except (pyarrow.ArrowException, ValueError, OSError):  # damaged, as whoever reads it says
        return False
    types = pyarrow.types
    tests = (types.is_struct, types.is_binary, types.is_large_binary)
    return path_column(schema) is not None and not any(
        test(field.type) for test in tests for field in schema
    )


def read_table(file: Path, label_column: str | None = None) -> pyarrow.Table:
    """A table in a .parquet, .jsonl, .csv or .tsv file; ValueError, one line, for what is none.

    Of text files the names of columns come without spaces around them, columns that may name images
    as text, and columns of labels as numbers where all are some.
    """
    kind = file.suffix.lower()
    with raise_as_value_error(f"cannot read '{file}'"):
        if kind == ".parquet":
            table = pyarrow.parquet.read_table(file)
        elif kind == ".jsonl":
            content = _in_utf8(file)
            _must_be_objects(content)
            table = pyarrow.json.read_json(_opened(content))
        else:
            table = _read_text(_in_utf8(file), kind, label_column)
        names = table.column_names  # where one is no text, it is refused here
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            words = printable(twice[0])
            raise ValueError(f"two of its columns have the same name '{words}': rename one of them")
        return table


def _read_text(content: Path | bytes, kind: str, label_column: str | None) -> pyarrow.Table:
    """Read text whose columns are separated by commas, semicolons or tabs."""
    with io.TextIOWrapper(_opened(content), encoding="utf-8-sig", newline="") as opened:
        line = opened.readline(_HEADER)
    separator = "\t" if kind == ".tsv" else max(",;\t", key=line.count)
    header = next(csv.reader([line], delimiter=separator), [])
    labels = {
        name
        for name in (name.strip() for name in header)
        if name == label_column or normalized_name(name) in LABEL_NAMES
    }
    texts = {
        name for name in header if normalized_name(name) in PATH_NAMES or name.strip() in labels
    }
    as_text = dict.fromkeys(texts, pyarrow.string())  # digits with their zeros
    table = pyarrow.csv.read_csv(
        content if isinstance(content, Path) else _opened(content),
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types=as_text),
    )
    table = table.rename_columns([name.strip() for name in table.column_names])
    for name in labels:
        place = table.schema.get_field_index(name)
        if place >= 0:  # of two with this name there is none
            table = table.set_column(place, name, _numbers_in(table[place]))
    return table


def _in_utf8(file: Path) -> Path | bytes:
    """The file itself if it is UTF-8, else its text in UTF-8."""
    content = file.read_bytes()
    return file if encoding_of(content) == "utf-8" else text_of(content).encode("utf-8")


def _opened(content: Path | bytes) -> Any:
    return io.BytesIO(content) if isinstance(content, bytes) else open(content, "rb")


def _must_be_objects(content: Path | bytes) -> None:
    """Raise ValueError unless every line holds a JSON object; others may end the process."""
    with _opened(content) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip() and not isinstance(json.loads(line), dict):
                raise ValueError(f"line {number} holds no JSON object")


def _numbers_in(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray | pyarrow.Array:
    """A column of texts as numbers where all are some, but for those with zeros in front, such as
    001.
    """
    stripped = [None if text is None else text.strip() for text in column.to_pylist()]
    texts = [None if text is None or text.lower() in NO_NUMBER else text for text in stripped]
    present = [text for text in texts if text is not None]
    if not present or not all(map(_NUMBER.fullmatch, present)):
        return column
    if any(whole_number(text) is None for text in present):
        return pyarrow.array([None if text is None else float(text) for text in texts])
    return pyarrow.array([None if text is None else whole_number(text) for text in texts])


def _column(table: pyarrow.Table, wanted: str, file: Path) -> pyarrow.ChunkedArray:
    purpose = "" if wanted == "file_name" else " for labels"
    check_column(f"'{file}'", wanted, table.column_names, purpose)
    return table[wanted]


def _is_text(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _without_common(folders: list[list[tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
    """The folders of images without those of one name in which all lie, such as "images" in
    cat/images/1.jpg.
    """
    while (
        every := {folder_names for part in folders for folder_names in part if folder_names}
    ) and max(map(len, every)) > 1:
        for place in (-1, 0):
            if len({folder_names[place] for folder_names in every}) == 1:
                kept = slice(None, -1) if place else slice(1, None)
                folders = [[folder_names[kept] for folder_names in part] for part in folders]
                break
        else:
            break
    return folders


def existing(source: str) -> Path:
    """The file or folder, or FileNotFoundError that names the nearest existing one; ValueError for
    a pipe or device.
    """
    path = Path(source).expanduser()
    if source and path.exists():
        if special(path):
            raise ValueError(f"'{source}' is {special(path)}, neither a file nor a folder")
        return path
    nearest = path.parent
    while not nearest.exists():
        path, nearest = nearest, nearest.parent
    names = [entry.name for entry in nearest.iterdir()] if nearest.is_dir() else []
    near = did_you_mean(path.name, names, cutoff=0.5)
    hub = f"; a data set of that name on the Hugging Face Hub is called 'hf:{source}'"
    raise FileNotFoundError(
        f"there is no file or folder '{source}'"
        + (f"; in '{nearest}', {near}" if near else hub if _HUB_NAME.fullmatch(source) else "")
    )


def special(path: str | Path) -> str:
    """Name the kind of a path that is neither a file nor a folder ("a named pipe"): opening it may
    wait for ever; else "".
    """
    try:
        return _NOT_FILES.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:  # such as a link to nothing, which is listed as unreadable later
        return ""


def list_files(root: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Every file under `root`, as sorted relative paths with "/"; hidden ones and folders
    "__MACOSX" left out.

    And (path, reason) of what might have been data: folders that cannot be read, pipes and devices
    with the name of an image, a Parquet file or a tar. Links to folders are followed, each real
    folder once, and further links to it are listed. What nearfar wrote is left out, each with one
    line: folders of runs and of explore, and pictures of maps.
    """
    files: list[str] = []
    problems: list[tuple[str, str]] = []
    seen: set[str] = set()
    folders = [""]  # below the root, with "/" behind
    with progress("looking at images") as bar:
        bar.update(0)
        while folders:
            inside = folders.pop()
            folder = os.path.join(root, inside[:-1]) if inside else str(root)
            real = os.path.realpath(folder)
            if real in seen:
                problems.append((inside, left_out.LINKED))
                continue
            seen.add(real)
            try:
                listed = _entries(folder)
            except OSError as error:
                why = f"cannot be read: {error.strerror}"
                if not inside:
                    raise ValueError(f"the folder '{root}' {why}") from error
                problems.append((inside, f"the folder {why}"))
                continue
            names = {entry.name for entry in listed}
            own = [kind for kind, parts in _OWN_FOLDERS.items() if names >= parts]
            if inside and own:
                say_once(f"'{folder}' is {own[0]}, not of images: left out")
                continue
            of_maps = _of_maps(folder, names)
            inner = []
            for entry in listed:
                if entry.name in of_maps:
                    continue
                name = inside + entry.name
                if entry.is_file(follow_symlinks=False):  # known without a stat
                    files.append(name)
                elif os.path.isdir(entry.path):
                    inner.append(f"{name}/")
                elif not (kind := special(entry.path)):
                    files.append(name)
                elif kind_of(name) is not None:
                    problems.append((name, f"{kind}, not a file"))
            folders += reversed(inner)
            bar.update(len(files))
    return sorted(files), sorted(problems)


def _of_maps(folder: str, names: Set[str]) -> Set[str]:
    """Of the names in a folder those of the maps that nearfar drew, which a line says: figure,
    numbers, coordinates, and the page if it is a folder.
    """
    own: set[str] = set()
    for name in sorted(name for name in names if name.endswith(".safetensors")):
        stem = name.removesuffix(".safetensors")
        beside = {name, f"{stem}.png", f"{stem}.json"}
        if beside <= names:
            say_once(f"'{os.path.join(folder, stem)}' is a map of images: its files are left out")
            page = os.path.exists(os.path.join(folder, stem, "index.html"))
            own |= beside | ({stem} if page else set())
    return own


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List the entries of a folder by name, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(
            (entry for entry in entries if not is_hidden(entry.name)), key=lambda entry: entry.name
        )


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name, without its path, is none of the user's."""
    return name.startswith(".") or name == "__MACOSX"


def sorted_out(root: Path, files: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Sort out files whose ending is none of an image, a Parquet file or a tar: those that are
    images, by their first bytes.

    And (path, reason) of those that are left out, but for what usually lies beside images.
    """
    images, others = [], []
    for name in files:
        if os.path.basename(name) in METADATA:
            continue
        why = left_out.by_name(name)
        if why is None:
            try:
                with open(os.path.join(root, name), "rb", buffering=0) as file:
                    why = left_out.by_content(name, file.read(left_out.LOOKED_AT))
            except OSError as error:
                why = f"it cannot be read: {error.strerror}"
            if why is None:
                images.append(name)
        if why:
            others.append((name, why))
    return images, others


def kind_of(name: str) -> str | None:
    """Name the content of a file by its ending: "images", "parquet", "tars", or None."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".parquet":
        return None if os.path.basename(name) in METADATA else "parquet"
    return "tars" if suffix == ".tar" else "images" if suffix in suffixes() else None
