"""The table of a data set: a row for each image, from the headers alone, kept on disk and brought up to date.

Columns: `ref`, the file that holds the image (below the root of its source, as bytes), and `place`, the byte of a tar
or the row of a table at which it stands there (-1: it is the whole file); `name`, `split`, `label`; `height`, `width`,
`bands`, `bits` (16 for all above 8) and `bytes` of the encoded image; `mtime` and `ctime` of its file; `digest` of the
encoded image; `problem`: why it cannot be read, else null.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.feather
from jaxtyping import Shaped

from nearfar.atomic import replacing
from nearfar.data.decoding import header, reason, without_warnings
from nearfar.data.formats import only_python_writes
from nearfar.data.memory import in_order

FORMAT = 1  # raise it when a column means something else
SETTLED = 2 * 10**9  # nanoseconds: a file that changes twice within a step of the file system's clock keeps its times
_THREADS = 4  # that wait for the disk while others look
_WHOLE = 2**22  # bytes of a file that is read at once
_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")  # control characters, bytes that are not UTF-8, separators of lines
SMALL = 96  # images that mostly have one size up to this many pixels keep it
USUAL = 224
LOOKED = pyarrow.schema(
    {
        "ref": pyarrow.binary(),
        "place": pyarrow.int64(),
        "mtime": pyarrow.int64(),
        "ctime": pyarrow.int64(),
        "height": pyarrow.int32(),
        "width": pyarrow.int32(),
        "bands": pyarrow.int32(),
        "bits": pyarrow.int32(),
        "bytes": pyarrow.int64(),
        "digest": pyarrow.string(),
        "problem": pyarrow.string(),
        "name": pyarrow.string(),
        "label": pyarrow.string(),
    }
)


class Row(NamedTuple):
    """What is found of one image in a file; `name` and `label` where they stand there too."""

    place: int
    height: int | None
    width: int | None
    bands: int | None
    bits: int | None
    bytes: int | None
    digest: str | None
    problem: str | None
    name: str | None = None
    label: str | None = None


ROWS = pyarrow.schema([LOOKED.field(name) for name in Row._fields])


@runtime_checkable
class Source(Protocol):
    """Files or tables with encoded images in splits; `whole`: whether every file is one image."""

    splits: dict[str, list[str]]
    whole: bool

    def address(self, label_column: str | None) -> list[Any]:
        """What the rows that `look` gives depend on besides the files; plain JSON values."""
        ...

    def stamp(self, file: str) -> tuple[int, int]:
        """Times of modification and of any change of a file, in nanoseconds; zeros where there is none."""
        ...

    def look(self, file: str, label_column: str | None) -> list[Row]:
        """The images in a file."""
        ...


class Named(NamedTuple):
    """Names of rows, their splits, and labels as the source has them, with the names of classes where it has some.

    `texts`: the labels of all splits where they are texts, so that a number means the same class in each.
    """

    names: list[str]
    splits: list[str]
    labels: list[Any]
    class_names: list[str] | None = None
    texts: Iterable[Any] = ()


class Lookup(Sequence[bytes | str]):
    """Encoded images, or paths, that are read when they are asked for: image i is `get(places[i])`."""

    def __init__(self, get: Callable[[Any], Any], places: Sequence[Any]) -> None:
        self.get, self.places = get, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> bytes | str:  # type: ignore[override]
        return self.get(self.places[index])


def digest(content: bytes | Iterable[bytes], size: int = 16) -> str:
    """The digest of bytes, or of pieces that follow each other: of `size` bytes, as hexadecimal digits."""
    hashed = blake2b(digest_size=size)
    for part in [content] if isinstance(content, bytes) else content:
        hashed.update(part)
    return hashed.hexdigest()


def digest_of_file(path: str | Path) -> str:
    """The digest of a whole file; empty for what cannot be read and for what is no file, such as a pipe."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb", buffering=0) as file:
            return digest(iter(lambda: file.read(2**20), b""))
    except (OSError, ValueError):  # ValueError: a name with a null character
        return ""


def printable(name: str) -> str:
    r"""A name that fits on one line of UTF-8: line breaks, control characters and other bytes as "\n" or "\xff"."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(_escaped(char) if unicodedata.category(char) in _UNPRINTABLE else char for char in name)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how Python keeps a byte of a file name that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def read_small(data: bytes | str) -> bytes | str:
    """The bytes of a file of at most 4 MiB, which readers would open several times; the path of a larger one."""
    if isinstance(data, bytes):
        return data
    with open(data, "rb", buffering=0) as file:
        return file.read() if os.fstat(file.fileno()).st_size <= _WHOLE else data


def looked_at(data: bytes | str | None, place: int = -1, name: str | None = None, label: str | None = None) -> Row:
    """What there is to know of an encoded image, or of the file at a path, before it is decoded."""
    size, mark = None, None
    try:
        if data is None:
            raise ValueError(
                "no image data here (a path that leads nowhere, outside the source, or to another machine)"
            )
        data = read_small(data)
        if isinstance(data, bytes):
            size, mark = len(data), digest(data)
        else:
            size, mark = os.path.getsize(data), digest_of_file(data)
        return Row(place, *header(data), size, mark, None, name, label)
    except Exception as error:  # readers raise anything on damaged data
        return Row(place, None, None, None, None, size, mark, reason(error), name, label)


def scanned(source: Source, splits: Sequence[str], label_column: str | None, folder: Path) -> pyarrow.Table:
    """The rows of some splits of a source, with names and splits but without labels.

    A table in the cache `folder` keeps them: a file whose times have not changed is not opened again. One that changed
    less than two seconds ago is looked at the next time too, since its times may miss another change. Where the table
    cannot be written, that is all that is lost.
    """
    files = [file for split in splits for file in source.splits[split]]
    kind = [FORMAT, type(source).__name__, splits, *source.address(label_column)]
    home = folder / f"{digest(json.dumps(kind).encode())}.arrow"
    began = time.time_ns()
    kept = _kept(home)
    refs = pyarrow.array(map(os.fsencode, files), pyarrow.binary())
    stamps = np.array([source.stamp(file) for file in files], np.int64).reshape(-1, 2)
    starts, lengths = _runs(kept, source.whole)
    place = pc.index_in(refs, value_set=kept["ref"].combine_chunks().take(starts)).fill_null(-1).to_numpy()
    known = np.stack([kept["mtime"].to_numpy()[starts], kept["ctime"].to_numpy()[starts]], 1)
    fresh = (place >= 0) & (stamps[:, 0] > 0)
    fresh[fresh] = (known[place[fresh]] == stamps[fresh]).all(1)
    begin, count = starts[place[fresh]], lengths[place[fresh]]
    rows = np.repeat(begin - (count.cumsum() - count), count) + np.arange(count.sum())
    old, owners = kept.take(rows), [np.repeat(np.flatnonzero(fresh), count)]
    missing = np.flatnonzero(~fresh)
    if len(missing):
        found = _looked([files[i] for i in missing], source, label_column)
        owners.append(np.repeat(missing, [len(one) for one in found]))
        table = pyarrow.concat_tables([old, _as_table(refs, stamps, missing, found)])
    else:
        table = old
    table = table.take(np.argsort(np.concatenate(owners), kind="stable")).combine_chunks()
    if len(missing) or len(table) != len(kept):
        settled = np.where(table["ctime"].to_numpy() < began - SETTLED, table["mtime"].to_numpy(), -1)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(home) as unfinished:
                pyarrow.feather.write_feather(table.set_column(2, "mtime", pyarrow.array(settled)), unfinished)
    return table


def _kept(home: Path) -> pyarrow.Table:
    """What an earlier scan kept; nothing where it is missing or damaged."""
    try:
        table = pyarrow.feather.read_table(home, memory_map=False)
        with contextlib.suppress(OSError):
            os.utime(home)  # when it was used last
        return table.cast(LOOKED)
    except (OSError, ValueError, pyarrow.ArrowException):
        return LOOKED.empty_table()


def _runs(table: pyarrow.Table, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows of each file begin, and how many there are."""
    if whole or not len(table):
        return np.arange(len(table)), np.ones(len(table), np.int64)
    ref = table["ref"].combine_chunks()
    starts = np.flatnonzero(np.r_[True, pc.not_equal(ref[1:], ref[:-1]).to_numpy(zero_copy_only=False)])
    return starts, np.diff(np.r_[starts, len(table)])


def _looked(files: list[str], source: Source, label_column: str | None) -> list[list[Row]]:
    chunks = (files[start : start + 64] for start in range(0, len(files), 64))
    with without_warnings(), only_python_writes():
        found = in_order(chunks, lambda file: source.look(file, label_column), _THREADS)
        with contextlib.closing(found):
            return [rows for part in found for rows in part]


def _as_table(refs: Any, stamps: np.ndarray, files: np.ndarray, found: list[list[Row]]) -> pyarrow.Table:
    owner = np.repeat(files, [len(rows) for rows in found])
    columns = list(zip(*(row for rows in found for row in rows), strict=True)) or [()] * len(Row._fields)
    of_file = {"ref": refs.take(owner), "mtime": stamps[owner, 0], "ctime": stamps[owner, 1]}
    return pyarrow.table(of_file | dict(zip(Row._fields, columns, strict=True)), LOOKED)


def readable(table: pyarrow.Table) -> np.ndarray:
    """The positions of the rows without a problem."""
    return np.flatnonzero(table["problem"].is_null().to_numpy())


def usual_size(natives: Shaped[np.ndarray, "images 2"]) -> int:
    """The size for images of these (height, width): their shorter side where most share one of at most 96, else 224."""
    found, counts = np.unique(natives, axis=0, return_counts=True)
    most = found[counts.argmax()] if len(found) else np.array([USUAL, USUAL])
    return int(most.min()) if len(found) and 2 * counts.max() > len(natives) and most.max() <= SMALL else USUAL


def usual_side(table: pyarrow.Table) -> int:
    """The shorter side of most images; `SMALL` where none can be read."""
    sides = np.stack([table[name].to_numpy()[readable(table)] for name in ("height", "width")], 1)
    size = usual_size(sides)
    return size if size < USUAL or not len(sides) else int(np.median(sides.min(1)))


def usual_channels(bands: Shaped[np.ndarray, " images"]) -> int:
    """How many channels most images have; 3 where grey and colour are mixed, and the larger of two equal numbers."""
    found, counts = np.unique(bands, return_counts=True)
    if set(found.tolist()) <= {1, 3}:
        return int(found.max(initial=1)) if len(found) else 3
    return int(found[::-1][counts[::-1].argmax()])


def with_problems(table: pyarrow.Table, problems: Mapping[int, str]) -> pyarrow.Table:
    """The table with the problems of further rows, by position."""
    if not problems:
        return table
    column = table["problem"].to_pylist()
    for row, why in problems.items():
        column[row] = why
    return table.set_column(table.schema.get_field_index("problem"), "problem", pyarrow.array(column, pyarrow.string()))


def skipped(table: pyarrow.Table) -> list[tuple[str, str]]:
    """(name, problem) of the rows with one."""
    wrong = table.filter(table["problem"].is_valid())
    return list(zip(wrong["name"].to_pylist(), wrong["problem"].to_pylist(), strict=True))


def difference(before: pyarrow.Table, now: pyarrow.Table) -> str:
    """What has changed between two tables, in one line such as "2 images added, 1 removed: first cats/9.png".

    Names and digests count, and their order; labels and times do not, so that a copy of the data is the same data.
    """
    old, new = ([table[name].to_pylist() for name in ("name", "digest")] for table in (before, now))
    if old == new:
        return ""
    marks, others = dict(zip(*old, strict=True)), dict(zip(*new, strict=True))
    changes = {
        "added": others.keys() - marks.keys(),
        "removed": marks.keys() - others.keys(),
        "changed": {name for name in marks.keys() & others.keys() if marks[name] != others[name]},
    }
    if not any(changes.values()):
        first = next(name for name, other in zip(old[0], new[0], strict=True) if name != other)
        return f"the same images in another order: first {first}"
    first = min(set[str]().union(*changes.values()))
    (number, what), *more = [(len(names), what) for what, names in changes.items() if names]
    said = [f"{number} image{'' if number == 1 else 's'} {what}", *(f"{number} {what}" for number, what in more)]
    return f"{', '.join(said)}: first {first}"


def save_table(table: pyarrow.Table, path: Path) -> None:
    """Write the table of a data set, for `difference` with a later one."""
    with replacing(path) as unfinished:
        pyarrow.feather.write_feather(table, unfinished)


def load_table(path: Path) -> pyarrow.Table:
    """Read what `save_table` wrote; ValueError, one line, for anything else."""
    try:
        table = pyarrow.feather.read_table(path, memory_map=False)
        if table["name"].type == table["digest"].type == pyarrow.string():
            return table
    except (OSError, ValueError, KeyError, pyarrow.ArrowException):
        pass
    raise ValueError(f"{path} does not hold the table of a data set; remove it to go on unchecked")


def stacked(tables: Sequence[pyarrow.Table | None], lengths: Sequence[int]) -> pyarrow.Table | None:
    """The rows of all tables, without a value where a table lacks a column; None stands for a table without columns.

    Columns of types that do not go together become text. None if all are.
    """
    names = dict.fromkeys(name for table in tables if table is not None for name in table.column_names)
    columns = {}
    for name in names:
        parts = [
            pyarrow.nulls(length) if table is None or name not in table.column_names else table[name]
            for table, length in zip(tables, lengths, strict=True)
        ]
        try:
            whole = pyarrow.concat_tables([pyarrow.table({name: one}) for one in parts], promote_options="permissive")
            columns[name] = whole[name]
        except pyarrow.ArrowException:
            texts = [None if value is None else str(value) for one in parts for value in one.to_pylist()]
            columns[name] = pyarrow.chunked_array([pyarrow.array(texts, pyarrow.string())])
    return pyarrow.table(columns) if columns else None


def as_arrays(table: pyarrow.Table) -> dict[str, np.ndarray]:
    """The columns as arrays: numbers as float64, NaN where there is none (whole numbers without gaps as they are).

    All else as text, "" where there is none. Lists, structs and bytes are left out.
    """
    found = {name: _values(table[name]) for name in table.column_names}
    return {name: values for name, values in found.items() if values is not None}


def _values(column: pyarrow.ChunkedArray) -> np.ndarray | None:
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pyarrow.types.is_floating(kind) or (pyarrow.types.is_integer(kind) and column.null_count):
        return pc.cast(column, pyarrow.float64()).to_numpy()
    if pyarrow.types.is_integer(kind):
        return column.to_numpy()
    if pyarrow.types.is_nested(kind) or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return None
    if pyarrow.types.is_boolean(kind):
        return np.array([{True: "yes", False: "no", None: ""}[one] for one in column.to_pylist()])
    return np.array(["" if one is None else str(one) for one in column.to_pylist()])
