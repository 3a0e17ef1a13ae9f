"""What training data is, in a few bytes: so that a run that goes on notices data that has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data import columns, sources
from nearfar.data.arrays import array_marks
from nearfar.data.cache import default_folder
from nearfar.data.digests import digest, digest_of_file, digests
from nearfar.data.images import Images
from nearfar.data.locating import encoded_source
from nearfar.data.objects import describe, is_array
from nearfar.data.path_tables import PathTable
from nearfar.data.tables import Tables

CHUNK = 256  # rows of an array or table under one mark
VERSION = 2  # raise it when marks mean something else


@dataclass(frozen=True)
class Fingerprint:
    """Marks of what data consists of, by name: of files, or of rows in chunks ("0 to 255"). `count`: of `kind`s."""

    kind: str
    count: int
    marks: dict[str, str]
    version: int = VERSION

    def difference(self, now: Fingerprint) -> str:
        """What has changed since, such as "2 files added, 1 removed: first cats/9.png"; empty where nothing has."""
        if (self.kind, self.marks) == (now.kind, now.marks):
            return ""
        if self.kind != now.kind or (self.kind != "file" and self.count != now.count):
            return f"{_counted(self.count, self.kind)} before, {_counted(now.count, now.kind)} now"
        changes = {
            "added": now.marks.keys() - self.marks.keys(),
            "removed": self.marks.keys() - now.marks.keys(),
            "changed": {name for name in self.marks.keys() & now.marks.keys() if self.marks[name] != now.marks[name]},
        }
        if self.kind != "file":
            first = next(name for name in self.marks if name in changes["changed"])
            return f"{self.kind}s changed: first among {first}"
        first = min(set[str]().union(*changes.values()))
        (number, what), *more = [(len(names), what) for what, names in changes.items() if names]
        said = [f"{_counted(number, 'file')} {what}", *(f"{number} {what}" for number, what in more)]
        return f"{', '.join(said)}: first {first}"

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        with replacing(path) as unfinished:
            unfinished.write_text(json.dumps(asdict(self)) + "\n")  # ASCII: names need not be UTF-8

    @classmethod
    def load(cls, path: Path) -> Fingerprint:
        """Read what `save` wrote; raises ValueError for anything else."""
        try:
            values = json.loads(path.read_text())
            if values.setdefault("version", 1) == VERSION:
                read = cls(**values)
                if not (isinstance(read.kind, str) and isinstance(read.count, int) and isinstance(read.marks, dict)):
                    raise TypeError("values of other types")
                return read
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} does not hold the fingerprint of data; remove it to go on unchecked") from error
        raise ValueError(f"{path} is from another version of nearfar; remove it to go on unchecked")


def fingerprint_of(source: Any, split: str | None = None) -> Fingerprint | None:
    """The fingerprint of data as `open_images` takes it; None where its images must be read first.

    All bytes count: of files, of the images in a .npz file, of the encoded images in a table, of an array. Labels and
    times do not, so that a copy of the data is the same data. Files are read where their digests are not in nearfar's
    cache, or their size or times have changed; nothing is decoded.
    """
    if is_array(source):
        images = source[0] if isinstance(source, tuple) else source
        array = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
        return _of_rows("image", ([f"{array.dtype}", part] for part in _pieces(array)), len(array))
    if sources.are_several(source):
        return _of_several(source, split)
    name = describe(source)
    if name == "digits":
        return Fingerprint("file", 0, {})
    if isinstance(source, (str, os.PathLike)) and name.lower().endswith((".npy", ".npz")):
        path = sources.existing(name)
        marks = array_marks(path, split) or digests(path.parent, [path.name], [], default_folder())
        return Fingerprint("file", 1, marks)
    found = encoded_source(source)
    if found is None:
        return None
    chosen = sources.choose_splits(found.splits, split, name)
    if isinstance(found, Tables):
        tables = [found.tables[part] for part in chosen]
        return _of_rows("row", (cells for table in tables for cells in _cells(table, found)), sum(map(len, tables)))
    by_path = found.digests(chosen, default_folder())
    names = [file for part in chosen for file in found.splits[part]]
    marks = {file: by_path[os.path.join(found.root, file)] for file in names}  # type: ignore[attr-defined]
    if isinstance(found, PathTable):
        marks[found.file.name] = found.digest(chosen)  # the order of the images is that of the table
    return Fingerprint("file", len(names), marks)


def _of_several(given: Sequence[Any], split: str | None) -> Fingerprint:
    """The fingerprints of several sources as one; of rows, which not all may have, one mark for each source."""
    marks: dict[str, str] = {}
    count = 0
    for number, one in enumerate(given, 1):
        found = fingerprint_of(one, split)
        assert found is not None  # for paths and names there always is one
        own = found.marks if found.kind == "file" else {f"{one}": digest(repr(found).encode(), size=64)}
        marks |= {f"source {number}: {name}": mark for name, mark in own.items()}
        count += found.count
    return Fingerprint("file", count, marks)


def fingerprint_of_images(images: Images) -> Fingerprint:
    """The fingerprint of images that were read already: of their pixels, or of their names where none are kept."""
    if not images.stored:
        return _of_rows("image", ([name] for name in images.names), len(images))
    return _of_rows("image", ([part] for part in _pieces(images.pixels.numpy())), len(images))


def _counted(number: int, kind: str) -> str:
    return f"{number} {kind}" + ("" if number == 1 else "s")


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    return (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def _of_rows(kind: str, chunks: Iterable[list[Any]], count: int) -> Fingerprint:
    """One mark for each chunk of CHUNK rows."""
    marks = {}
    for number, chunk in enumerate(chunks):
        said = [
            str(part.shape).encode() + part.tobytes()
            if isinstance(part, np.ndarray)
            else repr(part).encode(errors="surrogateescape")
            for part in chunk
        ]
        marks[f"{number * CHUNK} to {min(count, (number + 1) * CHUNK) - 1}"] = digest(said, size=8)
    return Fingerprint(kind, count, marks)


def _cells(table: Any, found: Tables) -> Iterator[list[Any]]:
    """For chunks of rows: every encoded image, or the digest of the file that it names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    image = columns.image_column(table.features, found.name)
    cells = columns.undecoded(table, image).select_columns([image]).with_format("arrow")
    for rows in cells.iter(CHUNK):
        column = rows.column(0).combine_chunks()
        parts: list[Any] = []
        if pa.types.is_struct(column.type):
            paths = pc.struct_field(column, "path").to_pylist()
            column = pc.struct_field(column, "bytes")
            empty = column.is_null().to_pylist()
            parts.append([digest_of_file(path) for path, none in zip(paths, empty, strict=True) if none and path])
        yield [*parts, [cell and digest(cell) for cell in column.to_pylist()]]
