"""Tars in WebDataset form: the members of one example share a name up to the first dot.

Read with `tarfile` and not by the builder of `datasets`, which ends in silence at a damaged header, unpacks and parses
what nobody asked for (gzip, torch files, JSON), and copies all images for random access.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from nearfar.data.columns import IMAGE_NAMES, Originals, Record
from nearfar.data.decode import suffixes
from nearfar.data.readers import Files, Reading, prefix, state
from nearfar.data.shard_files import opened
from nearfar.messages import first_line

LABEL = "cls"
_MOST_BYTES = 2**30  # of an encoded image
_READ_WHOLE = 2**33  # bytes of the tars of a stream
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_WHOLE = re.compile(r"-?\d{1,18}")


class Place(NamedTuple):
    """Where the bytes of a member are."""

    path: str
    offset: int
    size: int

    def bytes(self) -> bytes:
        """Read them: fewer where the file has become shorter."""
        with opened(self.path) as file:
            return self.bytes_in(file)

    def bytes_in(self, file: BinaryIO) -> bytes:
        """Read them from their file, which is open."""
        file.seek(self.offset)
        return file.read(self.size)


class Example(NamedTuple):
    """One example: its fields by their endings, and the byte of the tar at which it begins; or what is wrong there."""

    name: str
    fields: dict[str, Place]
    problem: str = ""
    start: int = 0

    def image(self) -> Place | None:
        """The image: the one with a usual ending, else the first by name."""
        images = sorted(field for field in self.fields if _is_image(field))
        return self.fields[next((name for name in IMAGE_NAMES if name in images), images[0])] if images else None

    def wrong(self) -> str:
        """Why it is not read; "" for an example that is."""
        image = self.image()
        if image is None:
            return self.problem
        return f"{image.size:,} bytes are too many for an image" if image.size > _MOST_BYTES else ""


class Tars(Files):
    """Tars of examples such as 000001.jpg and 000001.cls, the label: a whole number or a text."""

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        if label_column is not None:
            fields = next((example.fields for example in self._examples(split) if not example.problem), {})
            if label_column not in fields:
                known = ", ".join(fields)
                raise ValueError(f"'{self.root}' has no column '{label_column}' for labels; its columns: {known}")
        return Reading(self._records(split, label_column or LABEL), None, None)

    def originals(self, splits: Sequence[str], label_column: str | None, rows: list[int], scratch: Path) -> Originals:
        places = [example.image() for split in splits for example in self._examples(split)]
        return _Members([place for place in (places[row] for row in rows) if place is not None])

    def states(self, splits: Sequence[str]) -> list[Any]:
        """Size, time of change and a hash of both ends of each tar, without reading the whole."""
        return [state(f"{self.root}/{name}") for split in splits for name in self.splits[split]]

    def marks(self, splits: Sequence[str], folder: Path) -> list[str]:
        """What each tar is, the same for a copy: the digest of all its bytes, or beyond 8 GiB in all its size and ends.

        Digests are remembered in the cache `folder`.
        """
        states = self.states(splits)
        if sum(size for size, _, _ in states) <= _READ_WHOLE:
            return list(self.digests(splits, folder).values())
        return [f"{size} {digest}" for size, _, digest in states]

    def _records(self, split: str, label: str) -> Iterator[Record]:
        for example in self._examples(split):
            image, text = example.image(), example.fields.get(label)
            name, problem = prefix(split) + example.name, example.wrong()
            if image is None or problem:
                yield Record(name, None, None, problem)
            else:
                yield Record(name, image.bytes(), None if text is None else _label(text))

    def _examples(self, split: str) -> Iterator[Example]:
        for name in self.splits[split]:
            path = f"{self.root}/{name}"
            with opened(path) as file:
                yield from examples(file, path, name)


def examples(file: BinaryIO, path: str, name: str, start: int = 0) -> Iterator[Example]:
    """The examples of a tar with an image, and what is damaged or no file, in order.

    name: of the tar, for what is damaged. start: the byte at which an example begins, to read from there on.
    The file may be read elsewhere in between.
    """
    stem = Path(name).stem
    key, fields, begun = "", dict[str, Place](), start
    for member, problem in _members(file, path, start):
        found = _KEY.fullmatch(member.name) if member is not None else None
        hidden = member is not None and os.path.basename(member.name).startswith((".", "__"))
        if member is not None and not problem and (found is None or hidden):
            continue
        if (problem or (found and found[1] != key)) and any(map(_is_image, fields)):
            yield Example(f"{stem}/{key}", fields, start=begun)
            fields = {}
        if problem:
            if member is None or (found and not hidden and _is_image(found[2])):
                yield Example(name if member is None else f"{stem}/{member.name}", {}, problem)
        elif found and member is not None:
            if found[1] != key:
                key, fields = found[1], {}
            begun = begun if fields else member.offset
            fields.setdefault(found[2], Place(path, member.offset_data, member.size))
    if any(map(_is_image, fields)):
        yield Example(f"{stem}/{key}", fields, start=begun)


class _Members(Sequence[bytes | str]):
    """Images inside tars, read when they are asked for."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        return self.places[index].bytes()


def _members(file: BinaryIO, path: str, start: int = 0) -> Iterator[tuple[tarfile.TarInfo | None, str]]:
    """The members of a tar from a byte on, each with "" or what is wrong with it; (None, what is wrong) for damage.

    Reading goes on behind a damaged header with the next one that is whole. ValueError where there is none at all.
    """
    end, count = start, 0
    try:
        size = file.seek(0, os.SEEK_END)
        with _tar_from(file, start) as tar:
            while True:
                member = tar.next()
                tar.members = []  # type: ignore[attr-defined]
                start = member.offset if member is not None else size
                if start < end or (member is not None and member.size < 0):
                    yield None, f"damaged at byte {end:,}: a member of impossible size; the rest is not read"
                    return
                if _any_set(file, end, start):
                    yield None, f"damaged from byte {end:,} to {start:,}: what lay there is not read"
                if member is None:
                    if count and end == start:
                        yield None, "it ends without an end mark: it may have been cut off"
                    break
                count, end = count + 1, tar.offset
                yield member, _kind(member)
    except (OSError, tarfile.TarError, ValueError, ArithmeticError, RecursionError) as error:
        if count:
            yield None, f"damaged or cut off at byte {end:,}: {first_line(error)}"
            return
        raise ValueError(f"cannot read '{path}': {first_line(error)}") from error
    if not count:
        raise ValueError(f"cannot read '{path}': it is empty or not a tar (a compressed one must be unpacked first)")


def _tar_from(file: BinaryIO, start: int) -> tarfile.TarFile:
    file.seek(start)
    return tarfile.open(fileobj=file, mode="r:", ignore_zeros=True)


def _any_set(file: BinaryIO, start: int, end: int) -> bool:
    """Whether any byte from `start` to `end` is not zero."""
    file.seek(start)
    while start < end:
        block = file.read(min(end - start, 2**20))
        if not block:
            break
        if block.count(0) < len(block):
            return True
        start += len(block)
    return False


def _kind(member: tarfile.TarInfo) -> str:
    """What a member is that cannot be read as a file."""
    if member.issym() or member.islnk():
        return "a link inside the tar, which is not followed"
    if not member.isreg():
        return "not a file"
    return "a sparse file, which is not unpacked" if member.issparse() else ""


def _is_image(field: str) -> bool:
    return "." + field.rsplit(".", 1)[-1].lower() in suffixes()


def _label(place: Place) -> int | str:
    text = Place(place.path, place.offset, min(place.size, 4096)).bytes().decode("utf-8", "replace").strip()
    return int(text) if _WHOLE.fullmatch(text) else text
