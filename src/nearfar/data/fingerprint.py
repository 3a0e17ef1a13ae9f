"""What training data is, in a few bytes: so that a run that goes on notices data that has changed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data import columns, sources
from nearfar.data.images import Images
from nearfar.data.locating import encoded_source
from nearfar.data.objects import describe, is_array
from nearfar.data.path_tables import PathTable
from nearfar.data.readers import ImageFolder
from nearfar.data.tables import Tables

CHUNK = 256  # rows of an array or table under one mark
BLOCK = 4096  # bytes read at both ends of an image file: a PNG ends with a checksum, a changed JPEG has another size
SHARD_BLOCKS, SHARD_BLOCK = 64, 2**16  # and of a Parquet file or tar, evenly spaced


@dataclass(frozen=True)
class Fingerprint:
    """Marks of what data consists of, by name: of files, or of rows in chunks ("0 to 255"). `count`: of `kind`s."""

    kind: str
    count: int
    marks: dict[str, str]

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
            return cls(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} does not hold the fingerprint of data; remove it to go on unchecked") from error


def fingerprint_of(source: Any, split: str | None = None) -> Fingerprint | None:
    """The fingerprint of data as `open_images` takes it; None where its images must be read first.

    Nothing is decoded. Image files count by name, size and both ends; Parquet files and tars by name, size and blocks
    in between; tables by the length and end of each encoded image; arrays and array files by their whole content.
    Times are left out: a copy of the data is the same data.
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
        return Fingerprint("file", 1, {path.name: _whole(path)})
    found = encoded_source(source)
    if found is None:
        return None
    chosen = sources.choose_splits(found.splits, split, name)
    if isinstance(found, Tables):
        tables = [found.tables[part] for part in chosen]
        return _of_rows("row", (cells for table in tables for cells in _cells(table, found)), sum(map(len, tables)))
    names = [file for part in chosen for file in found.splits[part]]
    mark = _ends if isinstance(found, (ImageFolder, PathTable)) else _sampled
    with ThreadPoolExecutor(8) as pool:
        marks = pool.map(mark, (found.root / file for file in names))  # type: ignore[attr-defined]
        known = dict(zip(names, marks, strict=True))
    if isinstance(found, PathTable):
        known[found.file.name] = found.digest(chosen)  # the order of the images is that of the table
    return Fingerprint("file", len(names), known)


def _of_several(given: Sequence[Any], split: str | None) -> Fingerprint:
    """The fingerprints of several sources as one; of rows, which not all may have, one mark for each source."""
    marks: dict[str, str] = {}
    count = 0
    for number, one in enumerate(given, 1):
        found = fingerprint_of(one, split)
        assert found is not None  # for paths and names there always is one
        own = found.marks if found.kind == "file" else {f"{one}": hashlib.blake2b(repr(found).encode()).hexdigest()}
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
        digest = hashlib.blake2b(digest_size=8)
        for part in chunk:
            if isinstance(part, np.ndarray):
                digest.update(str(part.shape).encode())
                digest.update(part.tobytes())
            else:
                digest.update(repr(part).encode(errors="surrogateescape"))
        marks[f"{number * CHUNK} to {min(count, (number + 1) * CHUNK) - 1}"] = digest.hexdigest()
    return Fingerprint(kind, count, marks)


def _cells(table: Any, found: Tables) -> Iterator[list[Any]]:
    """For chunks of rows: the length and last bytes of every encoded image, or the mark of the file it names."""
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
            parts.append([_ends(Path(path)) for path, none in zip(paths, empty, strict=True) if none and path])
        yield [*parts, pc.binary_length(column).to_pylist(), pc.binary_slice(column, -64).to_pylist()]


def _ends(path: Path) -> str:
    return _sampled(path, 2, BLOCK)


def _sampled(path: Path, blocks: int = SHARD_BLOCKS, block: int = SHARD_BLOCK) -> str:
    """Size and a hash of evenly spaced blocks of a file, the first and the last among them."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return "no file"
        digest = hashlib.blake2b(digest_size=8)
        with open(path, "rb", buffering=0) as file:
            last = max(0, found.st_size - block)
            for start in sorted({last * number // (blocks - 1) for number in range(blocks)}):
                file.seek(start)
                digest.update(file.read(block))
    except OSError:
        return "unreadable"
    return f"{found.st_size} {digest.hexdigest()}"


def _whole(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        while part := file.read(2**22):
            digest.update(part)
    return f"{path.stat().st_size} {digest.hexdigest()}"
