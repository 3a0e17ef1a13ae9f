"""The table of a data set: a row for each image, from the headers alone, saved on disk and brought
up to date.

Columns: `ref`, the file that holds the image (below the root of its source, as bytes), and `place`,
the byte of a tar or the row of a table at which it stands there (-1: it is the whole file); `name`,
`split`, `label`; `height`, `width`, `bands`, `bits` (16 for all above 8), `pages` (or frames, of
which the first is read) and `bytes` of the encoded image; `mtime`, `ctime`, `inode` and `size` of
its file; `digest` of the encoded image, null for files above 64 KiB until it is asked for;
`problem`: why it cannot be read, else null; `passing`: whether that comes from the machine, so that
the next scan looks again.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.feather
from jaxtyping import Shaped, UInt8

from nearfar.atomic import replacing

_WHOLE = 2**22  # bytes of a file that is read at once
_UNPRINTABLE = (
    "Cc",
    "Cs",
    "Zl",
    "Zp",
)  # control characters, bytes that are not UTF-8, separators of lines
NO_DIGEST = 32 * "0"  # of an image whose content is not known
LIMIT = 8 * 2**30  # bytes of pixels of a data set, by default
COMMON = {
    *("ref", "place", "split", "height", "width", "bands", "bits", "pages", "bytes"),
    *("mtime", "ctime", "inode", "size", "digest", "problem", "passing"),
    *("taken", "camera", "latitude", "longitude"),
}  # columns that mean the same for all sources
SMALL = 96  # images that mostly have one size up to this many pixels keep it
USUAL = 224


class Lookup(Sequence[bytes | str]):
    """Encoded images, or paths, that are read when they are asked for: image i is
    `get(places[i])`.
    """

    def __init__(self, get: Callable[[Any], Any], places: Sequence[Any]) -> None:
        self.get, self.places = get, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> bytes | str:  # type: ignore[override]
        return self.get(self.places[index])


def digest(content: bytes | Iterable[bytes]) -> str:
    """The digest of bytes, or of pieces that follow each other: 32 hexadecimal digits."""
    hashed = blake2b(digest_size=16)
    for part in [content] if isinstance(content, bytes) else content:
        hashed.update(part)
    return hashed.hexdigest()


def digest_of_file(path: str | Path) -> str:
    """The digest of a whole file; empty for what cannot be read and for what is no file, such as a
    pipe.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb", buffering=0) as file:
            return digest(iter(lambda: file.read(2**20), b""))
    except (OSError, ValueError):  # ValueError: a name with a null character
        return ""


def as_bytes(digests: Iterable[str | None]) -> UInt8[np.ndarray, "digests 16"]:
    """Digests as bytes: zeros where one is not known."""
    marks = bytes.fromhex("".join(known or NO_DIGEST for known in digests))
    return np.frombuffer(marks, np.uint8).reshape(-1, 16).copy()


def printable(name: str) -> str:
    r"""A name that fits on one line of UTF-8: line breaks, control characters and other bytes as
    "\n" or "\xff".
    """
    if name.isascii() and name.isprintable():
        return name
    return "".join(
        _escaped(char) if unicodedata.category(char) in _UNPRINTABLE else char for char in name
    )


def cut(text: str, most: int) -> str:
    """A text from a file with its printable characters alone, and at most so many of them."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how Python holds a byte of a file name that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def read_small(data: bytes | str, most: int = _WHOLE) -> bytes | str:
    """The bytes of a file of at most 4 MiB, which readers would open several times; the path of a
    larger one; anything else as it is.
    """
    if not isinstance(data, str):
        return data
    with open(data, "rb", buffering=0) as file:
        return file.read() if os.fstat(file.fileno()).st_size <= most else data


def readable(table: pyarrow.Table) -> np.ndarray:
    """The positions of the rows without a problem."""
    return np.flatnonzero(table["problem"].is_null().to_numpy())


def rows_at(table: pyarrow.Table, rows: Shaped[np.ndarray, " rows"]) -> pyarrow.Table:
    """The rows at these positions, which ascend: a copy, unless they are all there are."""
    return table if len(rows) == len(table) else table.take(rows)


def most_common_size(natives: Shaped[np.ndarray, "images 2"]) -> int:
    """The size for images of these (height, width): their shorter side if most share one of at most
    96, else 224.
    """
    sizes, counts = np.unique(natives, axis=0, return_counts=True)
    most = sizes[counts.argmax()] if len(sizes) else np.array([USUAL, USUAL])
    return (
        int(most.min())
        if len(sizes) and 2 * counts.max() > len(natives) and most.max() <= SMALL
        else USUAL
    )


def most_common_side(table: pyarrow.Table) -> int:
    """The shorter side of most images; `SMALL` if none can be read."""
    sides = np.stack([table[name].to_numpy()[readable(table)] for name in ("height", "width")], 1)
    size = most_common_size(sides)
    return size if size < USUAL or not len(sides) else int(np.median(sides.min(1)))


def most_common_channels(bands: Shaped[np.ndarray, " images"]) -> int:
    """Return the number of channels that most images have; 3 if grayscale and colour are mixed, and
    the larger of two equal numbers.
    """
    channels, counts = np.unique(bands, return_counts=True)
    if set(channels.tolist()) <= {1, 3}:
        return int(channels.max(initial=1)) if len(channels) else 3
    return int(channels[::-1][counts[::-1].argmax()])


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder that is given, else $XDG_CACHE_HOME/nearfar, or ~/.cache/nearfar."""
    if given is not None:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "nearfar"


def with_problems(table: pyarrow.Table, problems: Mapping[int, str]) -> pyarrow.Table:
    """The table with the problems of further rows, by position."""
    if not problems:
        return table
    column = table["problem"].to_pylist()
    for row, why in problems.items():
        column[row] = why
    return table.set_column(
        table.schema.get_field_index("problem"), "problem", pyarrow.array(column, pyarrow.string())
    )


def skipped(table: pyarrow.Table) -> list[tuple[str, str]]:
    """(name, problem) of the rows with one."""
    wrong = table.filter(table["problem"].is_valid())
    return list(zip(wrong["name"].to_pylist(), wrong["problem"].to_pylist(), strict=True))


def difference(before: pyarrow.Table, now: pyarrow.Table) -> str:
    """Describe the changes between two tables, in one line such as "2 images added, 1 removed:
    first cats/9.png".

    Names and digests count, and their order; labels and times do not, so that a copy of the data is
    the same data.

    >>> table = scan("photos")
    >>> difference(table, table.slice(1))
    '1 image removed: first cat/1.png'
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
    (number, change), *more = [(len(names), change) for change, names in changes.items() if names]
    counts = [
        f"{number} image{'' if number == 1 else 's'} {change}",
        *(f"{number} {change}" for number, change in more),
    ]
    return f"{', '.join(counts)}: first {first}"


def write_feather(table: pyarrow.Table, path: Path) -> None:
    """Write a table to a new file, without compression: a damaged length of what is compressed may
    ask for any memory.
    """
    pyarrow.feather.write_feather(table, path, compression="uncompressed")


def read_feather(path: Path) -> pyarrow.Table:
    """Read what `write_feather` wrote; a damaged file raises OSError, ValueError or an
    ArrowException, and takes no more memory than it is long. A table that others compressed is read
    too, and may ask for any.
    """
    if not path.is_file():  # a pipe may never end
        raise ValueError("it is not a regular file")
    table = pyarrow.feather.read_table(pyarrow.BufferReader(path.read_bytes()))
    table.validate(full=True)  # in a damaged file texts may lie anywhere in memory
    return table


def save_table(table: pyarrow.Table, path: Path) -> None:
    """Write the table of a data set, for `difference` with a later one."""
    with replacing(path) as unfinished:
        write_feather(table, unfinished)


def load_table(path: Path) -> pyarrow.Table:
    """Read what `save_table` wrote; ValueError, one line, for anything else."""
    try:
        table = read_feather(path)
        texts = table["name"].type == table["digest"].type == pyarrow.string()
        if texts and not table["name"].null_count:
            return table
    except (OSError, ValueError, KeyError, pyarrow.ArrowException):
        pass
    raise ValueError(f"{path} does not hold the table of a data set; remove it to go on unchecked")


def concat_columns(
    tables: Sequence[pyarrow.Table | None], lengths: Sequence[int]
) -> pyarrow.Table | None:
    """The rows of all tables, without a value where a table lacks a column; None stands for a table
    without columns.

    Columns of types that do not go together become text. None if all are.
    """
    names = dict.fromkeys(
        name for table in tables if table is not None for name in table.column_names
    )
    columns = {}
    for name in names:
        parts = []
        for table, length in zip(tables, lengths, strict=True):
            if table is None or name not in table.column_names:
                table = pyarrow.table({name: pyarrow.nulls(length)})
            parts.append(table.select([name]))
        try:
            columns[name] = pyarrow.concat_tables(parts, promote_options="permissive")[name]
        except pyarrow.ArrowException:
            texts = [
                None if value is None else str(value)
                for part in parts
                for value in part[name].to_pylist()
            ]
            columns[name] = pyarrow.array(texts, pyarrow.string())
    return pyarrow.table(columns) if columns else None


def concat_tables(tables: Sequence[pyarrow.Table], short: Sequence[str]) -> pyarrow.Table:
    """Tables as one, without labels, which may differ, and without columns of the sources' own.

    short: the source of each, which stands in front of names where there are several.
    """
    parts, several = [], len(set(short)) > 1
    for table, before in zip(tables, short, strict=True):
        names: Any = table["name"]
        if several:
            inside = [inside_source(before, name) for name in names.to_pylist()]
            names = pyarrow.array(inside, pyarrow.string())
        others = table.select([name for name in table.column_names if name in COMMON])
        parts.append(others.append_column("name", names))
    return pyarrow.concat_tables(parts, promote_options="permissive")


def inside_source(source: str, name: str) -> str:
    """The name of an image with its source in front; a source that is an image file itself has no
    other name.
    """
    return source if source.rpartition("/")[2] == name else f"{source}/{name}"


def as_arrays(table: pyarrow.Table) -> dict[str, np.ndarray]:
    """The columns as arrays: numbers as float64, NaN where there is none (whole numbers without
    gaps as they are).

    All else as text, "" where there is none. Lists, structs and bytes are left out.
    """
    arrays = {name: _values(table[name]) for name in table.column_names}
    return {name: values for name, values in arrays.items() if values is not None}


def _values(column: pyarrow.ChunkedArray) -> np.ndarray | None:
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pyarrow.types.is_floating(kind) or (pyarrow.types.is_integer(kind) and column.null_count):
        return pc.cast(column, pyarrow.float64()).to_numpy()
    if pyarrow.types.is_integer(kind):
        return column.to_numpy()
    if (
        pyarrow.types.is_nested(kind)
        or pyarrow.types.is_binary(kind)
        or pyarrow.types.is_large_binary(kind)
    ):
        return None
    words = {True: "yes", False: "no"} if pyarrow.types.is_boolean(kind) else {}
    texts = ["" if value is None else words.get(value, str(value)) for value in column.to_pylist()]
    return np.array(texts, dtype=object)  # each of its own length: one long text widens no other
