"""Sources of encoded images, and the scan of their headers: see `nearfar.data.table` for the
columns.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow

from nearfar.atomic import replacing
from nearfar.data.decoding import header, reason
from nearfar.data.exif import TYPES
from nearfar.data.labels import check_alike, numbered
from nearfar.data.left_out import EMPTY, NO_DATA, is_passing
from nearfar.data.readers import quietly
from nearfar.data.resources import in_order
from nearfar.data.sources.source import Picture, Source, labels_as_column, numbered_names
from nearfar.data.table import (
    cache_folder,
    digest,
    digest_of_file,
    printable,
    read_feather,
    read_small,
    write_feather,
)
from nearfar.progress import progress, tracked

FORMAT = 9  # raise it when a column means something else
# nanoseconds: a file that changes twice within a step of the file system's clock keeps its times
SETTLED = 2 * 10**9
_THREADS = 4  # that wait for the disk while others look
_REPORTED = 256  # files between signs of life
_SMALL = 2**16  # bytes of files that are read, and hashed, whole for their headers


class Row(NamedTuple):
    """An image in a file, before it is decoded; name and label only if the file itself holds them.

    `passing`: its problem comes from the machine and not from the file, which is looked at again
    the next time.
    """

    place: int = -1
    height: int | None = None
    width: int | None = None
    bands: int | None = None
    bits: int | None = None
    pages: int | None = None
    bytes: int | None = None
    digest: str | None = None
    problem: str | None = None
    name: str | None = None
    label: str | None = None
    taken: datetime | None = None
    camera: str | None = None
    latitude: float | None = None
    longitude: float | None = None
    passing: bool = False


_TEXTS = ("digest", "problem", "name", "label")
_OTHERS = {
    "place": pyarrow.int64(),
    "bytes": pyarrow.int64(),
    "passing": pyarrow.bool_(),
    **TYPES,
}
ROWS = pyarrow.schema(
    [
        (name, pyarrow.string() if name in _TEXTS else _OTHERS.get(name, pyarrow.int32()))
        for name in Row._fields
    ]
)
_STAMP = [
    ("ref", pyarrow.binary()),
    *((name, pyarrow.int64()) for name in ("mtime", "ctime", "inode", "size")),
]
_FileStamp = tuple[bytes, int, int, int, int]
Keep = Callable[[pyarrow.ChunkedArray], None]
"""Saves the table of a scan with these digests."""
Stamp = tuple[int, int, int, int]
"""Identity and state of a file: times in nanoseconds, inode and size; zeros if unknown."""
SCANNED = pyarrow.schema([*_STAMP, *zip(ROWS.names, ROWS.types, strict=True)])


class EncodedImage(NamedTuple):
    """An image of a source: its bytes, the path of its own file or its numbers, or None and the
    problem.
    """

    data: Picture | None
    place: int = -1
    name: str | None = None
    label: str | None = None
    problem: str = (
        f"{NO_DATA} (a path that leads nowhere, outside the source, or to another machine)"
    )


class EncodedSource(Source):
    """Files below a root, by split; each is one image. What is in none of the splits has the name
    "", and comes last.

    `problems`: (name, reason) of what is left out. `label_column`: the column or ending of labels,
    if it is given.

    Subclasses for files with many images (`whole` is False) yield these from `images` with their
    places, and find them again in `originals`.
    """

    whole = True

    def __init__(
        self,
        root: Path,
        splits: dict[str, list[str]],
        problems: Sequence[tuple[str, str]] = (),
        label_column: str | None = None,
    ) -> None:
        self.root, self.splits, self.problems, self.label_column = (
            root.resolve(),
            splits,
            list(problems),
            label_column,
        )
        self.folder = cache_folder()
        self.keep: Keep | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"keep": None}

    def scan(self) -> pyarrow.Table:
        table, self.keep = scanned(self, self.folder)
        if self.whole:
            names = [name for split in self.splits for name in self.names(split)]
            labels = self.labels()
        else:
            names = self.names_inside(table["split"].to_pylist(), table["name"].to_pylist())
            labels = table["label"].to_pylist()
            if table["label"].null_count == len(table):
                self.say_unlabelled(names)
        numbers, classes = _numbers(self, table, labels or [None] * len(names))
        columns = {
            "name": pyarrow.array(map(printable, names), pyarrow.string()),
            "label": labels_as_column(numbers, classes),
        }
        for name, column in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        others = self.columns(list(self.splits))
        if others is None or not others.column_names:
            return table
        return table.append_column("columns", others.to_struct_array())

    def add_digests(self, wanted: np.ndarray) -> None:
        rows = undigested(self.table, wanted)
        if len(rows):
            self.table = with_digests(self, rows)
            if self.keep is not None:
                self.keep(self.table["digest"])

    def split_names(self) -> list[str]:
        return list(self.splits)

    def left_out(self, splits: Sequence[str]) -> list[tuple[str, str]]:
        why = self.in_no_split(splits)
        return [*self.problems, *([] if why is None else self.outside(why))]

    def outside(self, why: str) -> list[tuple[str, str]]:
        """(name, reason) of the files or rows that are in no split."""
        return [(name, why) for name in self.splits.get("", [])]

    def address(self) -> list[Any]:
        """Return all that the rows of the table depend on besides the files, as JSON."""
        files = list(dict.fromkeys(file for names in self.splits.values() for file in names))
        return [
            os.path.realpath(self.root),
            *(files if len(files) == 1 else ()),
        ]  # one of many, each a source

    def path(self, file: str) -> str:
        return f"{self.root}/{file}"

    def stamp(self, file: str) -> Stamp:
        """Times of modification and of any change of a file, its inode and its size; zeros if
        unknown.
        """
        try:
            status = os.stat(self.path(file))
        except (OSError, ValueError):  # ValueError: a name with a null character
            return 0, 0, 0, 0
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino & (2**63 - 1), status.st_size

    def splits_in(self, file: str) -> list[str] | None:
        """The split of each image of a file, by its place, where the file holds those of several;
        else None.
        """
        return None

    def images(self, file: str) -> Iterator[EncodedImage]:
        yield EncodedImage(self.path(file))

    def scan_file(self, file: str) -> list[Row]:
        """The rows of a file."""
        return [scan_image(image) for image in self.images(file)]

    def names(self, split: str) -> list[str]:
        """The names of the images of a split, if every file is one."""
        return self.splits[split]

    def names_inside(self, splits: Sequence[str], names: Sequence[str | None]) -> list[str]:
        """The names of images inside files, from their splits and the names that the files hold."""
        return numbered_names(splits, names)

    def labels(self) -> list[str | None] | None:
        """The labels of the images of all splits in order, as of `labels_of`, if every file is one;
        None: none.
        """
        return None

    def say_unlabelled(self, names: Sequence[str]) -> None:
        """Say why images with these names have no labels, where people may expect some."""

    def class_names(self) -> list[str] | None:
        """The classes in their order, where the source names them apart from the labels."""
        return None

    def label_kind(self, file: str) -> str:
        """Return the type in which a file stores its labels, where files may differ in that; else
        "".
        """
        return ""

    def columns(self, splits: Sequence[str]) -> pyarrow.Table | None:
        """Return the other columns of a table of paths, for the images of these splits."""
        return None

    def read(self, rows: pyarrow.Table) -> Iterable[bytes | str]:
        return self.originals(rows)

    def originals(self, rows: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        return [self.path(os.fsdecode(ref)) for ref in rows["ref"].to_pylist()]


def with_headers(table: pyarrow.Table, images: Iterable[Picture]) -> pyarrow.Table:
    """The table with what the headers of its images say, as columns; with problems of its own, a
    row is left alone.
    """
    rows = [
        scan_image(EncodedImage(image))
        for image in tracked(images, "looking at images", len(table))
    ]
    headers = pyarrow.Table.from_pylist([row._asdict() for row in rows], ROWS)
    for name in headers.column_names:
        if name not in ("place", "name", "label"):
            table = table.append_column(name, headers[name])
    return table


def scan_image(image: EncodedImage) -> Row:
    """Read the header of an encoded image, or the shape of one that is decoded."""
    row = Row(image.place, name=image.name, label=image.label)
    if image.data is None:
        return row._replace(problem=image.problem)
    try:
        data = image.data if isinstance(image.data, np.ndarray) else read_small(image.data, _SMALL)
        if isinstance(data, bytes):
            row = row._replace(bytes=len(data), digest=digest(data))
        elif isinstance(data, str):
            row = row._replace(bytes=os.path.getsize(data))
        if row.bytes == 0:
            return row._replace(problem=EMPTY)
        seen = header(data)._asdict()
        return row._replace(**seen.pop("exif")._asdict(), **seen)
    except Exception as error:  # readers raise anything on damaged data
        return row._replace(problem=reason(error), passing=is_passing(error))


def undigested(table: pyarrow.Table, wanted: np.ndarray) -> np.ndarray:
    """The positions of wanted rows that can be read and have no digest."""
    unknown = table["digest"].is_null().to_numpy() & table["problem"].is_null().to_numpy()
    return np.flatnonzero(unknown & wanted)


def with_digests(source: Source, rows: np.ndarray) -> pyarrow.Table:
    """The table of a source with the digests of the images at these rows, which are read whole."""
    table = source.table
    digests, done = table["digest"].to_pylist(), iter(rows.tolist())
    images = iter(source.read(table.take(rows)))
    chunks = iter(lambda: list(islice(images, 16)), [])
    with progress("hashing images", len(rows)) as bar:
        for part in in_order(chunks, _digest_of, _THREADS):
            for known in part:
                digests[next(done)] = known or None  # of what cannot be read
                bar.advance()
    column = pyarrow.array(digests, pyarrow.string())
    return table.set_column(table.schema.get_field_index("digest"), "digest", column)


def _digest_of(image: Picture) -> str:
    if isinstance(image, np.ndarray):
        return digest([str(image.shape).encode(), image.tobytes()])
    return digest(image) if isinstance(image, bytes) else digest_of_file(image)


def scanned(source: EncodedSource, folder: Path) -> tuple[pyarrow.Table, Keep]:
    """The rows of all splits of a source, with the split, and with names and labels as far as the
    files hold them; and what saves them with further digests.

    A table in the cache `folder` holds them: a file whose times have not changed is not opened
    again. One that changed less than two seconds ago is looked at the next time too, since its
    times may miss another change; and so is one with an image that could not be read for a reason
    that may pass. If the table cannot be written, that is all that is lost.
    """
    files = [(split, file) for split, names in source.splits.items() for file in names]
    if not source.whole:  # a file is scanned once, whatever splits its images are in
        files = [(split, file) for file, split in {file: split for split, file in files}.items()]
    kind = [FORMAT, type(source).__name__, *source.address()]
    home = folder / f"{digest(json.dumps(kind).encode())}.arrow"
    began = time.time_ns()
    saved = _saved(home)
    fresh, owners = list[Row](), list[_FileStamp]()
    with progress("looking at images", len(files)) as bar:
        stamps = []
        for place, (_, file) in enumerate(files):
            stamps.append((os.fsencode(file), *source.stamp(file)))
            if place % _REPORTED == 0:
                bar.update(0)
        known = _known(saved, source.whole)
        runs = [known.get(stamp) if stamp[1] > 0 else None for stamp in stamps]
        missing = [place for place, run in enumerate(runs) if run is None]
        bar.update(len(files) - len(missing))
        seen = _looked([files[place][1] for place in missing], source)
        for place, rows in zip(missing, seen, strict=True):
            start = len(saved) + len(fresh)
            runs[place] = range(start, start + len(rows))
            fresh += rows
            owners += [stamps[place]] * len(rows)
            bar.advance()
    rows_of_files = [run or range(0) for run in runs]
    chosen = pyarrow.array([row for run in rows_of_files for row in run], pyarrow.int64())
    every = pyarrow.concat_tables([saved, _table_of_rows(owners, fresh)])
    table = every.take(chosen).combine_chunks()
    if missing or len(table) != len(saved):
        _save(table, home, began, rows_of_files)
    splits, places = list[str](), iter(table["place"].to_pylist())
    for (split, file), run in zip(files, rows_of_files, strict=True):
        of_images = source.splits_in(file)
        own = [next(places) for _ in run]
        splits += [split if of_images is None else of_images[place] for place in own]

    def keep(digests: pyarrow.ChunkedArray) -> None:
        place = table.schema.get_field_index("digest")
        _save(table.set_column(place, "digest", digests), home, began, rows_of_files)

    return table.append_column("split", pyarrow.array(splits, pyarrow.string())), keep


def _table_of_rows(owners: Sequence[_FileStamp], rows: Sequence[Row]) -> pyarrow.Table:
    """Rows as a table, each with the stamp of its file; names as text that a table holds."""
    rows = [row if row.name is None else row._replace(name=printable(row.name)) for row in rows]
    columns: list[Any] = [*zip(*owners, strict=True), *zip(*rows, strict=True)]
    columns = columns or [[]] * len(SCANNED)
    arrays = [
        pyarrow.array(values, kind.type) for values, kind in zip(columns, SCANNED, strict=True)
    ]
    return pyarrow.table(arrays, SCANNED)


def _save(
    table: pyarrow.Table, home: Path, began: int, rows_of_files: Sequence[Sequence[int]]
) -> None:
    """Write what a scan found, for the next one; files that may still change get no time."""
    passing = _of_files_with(table["passing"].to_numpy(), rows_of_files)
    stays = (table["ctime"].to_numpy() < began - SETTLED) & ~passing
    settled = pyarrow.array(np.where(stays, table["mtime"].to_numpy(), -1))
    place = table.schema.get_field_index("mtime")
    with contextlib.suppress(OSError):
        home.parent.mkdir(parents=True, exist_ok=True)
        with replacing(home) as unfinished:
            write_feather(table.set_column(place, "mtime", settled), unfinished)


def _of_files_with(passing: np.ndarray, runs: Sequence[Sequence[int]]) -> np.ndarray:
    """Return whether each row is of a file with any row that is passing; the rows of the files
    follow each other.
    """
    owners = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    return np.isin(owners, owners[passing])


def _saved(home: Path) -> pyarrow.Table:
    """Read the table that an earlier scan saved; an empty one if it is missing or damaged."""
    try:
        table = read_feather(home)
        with contextlib.suppress(OSError):
            os.utime(home)  # when it was used last
        return table.cast(SCANNED)
    except (OSError, ValueError, pyarrow.ArrowException):
        return SCANNED.empty_table()


def _known(table: pyarrow.Table, whole: bool) -> dict[_FileStamp, range]:
    """The rows of each file by its name and stamp."""
    keys = list(zip(*(table[name].to_pylist() for name, _ in _STAMP), strict=True))
    first = [row for row, key in enumerate(keys) if whole or row == 0 or key != keys[row - 1]]
    return {keys[start]: range(start, stop) for start, stop in pairwise([*first, len(keys)])}


def _looked(files: list[str], source: EncodedSource) -> Iterator[list[Row]]:
    chunks = (files[start : start + 64] for start in range(0, len(files), 64))
    with quietly():
        scanned_files = in_order(chunks, source.scan_file, _THREADS)
        with contextlib.closing(scanned_files):
            for part in scanned_files:
                yield from part


def _numbers(
    source: EncodedSource, table: pyarrow.Table, labels: Sequence[str | None]
) -> tuple[pyarrow.Array, list[str] | None]:
    """Labels as numbers, and the names of the classes; ValueError where splits or files have other
    kinds of labels.
    """
    class_names = source.class_names()
    if class_names is None:
        kinds = {ref: source.label_kind(os.fsdecode(ref)) for ref in set(table["ref"].to_pylist())}
        parts: dict[str, list[str | None]] = {}
        for split, ref, label in zip(
            table["split"].to_pylist(), table["ref"].to_pylist(), labels, strict=True
        ):
            parts.setdefault(f"{split or 'files'} {kinds[ref]}".rstrip(), []).append(label)
        check_alike(parts, source.root)
    return numbered(labels, class_names)
