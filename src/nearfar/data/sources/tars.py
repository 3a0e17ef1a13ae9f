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

import pyarrow

from nearfar.data.column_names import IMAGE_NAMES
from nearfar.data.formats import suffixes
from nearfar.data.scanning import Found, Row, Source
from nearfar.data.sources.rows import hub_name
from nearfar.data.sources.splits import in_none, say_splits, shard_splits
from nearfar.data.table import Lookup, digest
from nearfar.messages import first_line, one_line

LABEL = "cls"
ADDRESS = "hf://datasets/"
_MOST_BYTES = 2**30  # of an encoded image
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)


class Place(NamedTuple):
    """Where the bytes of a member are."""

    offset: int
    size: int


class Example(NamedTuple):
    """One example: its name, its image and its label, or what is wrong there."""

    name: str
    image: Place | None
    label: Place | None
    problem: str = ""


class Tars(Source):
    """Tars of examples such as 000001.jpg and 000001.cls, the label: a whole number or a text.

    `headers`: only find out where the images are, and read none of them.
    """

    whole, headers = False, False

    def address(self) -> list[Any]:
        return [*super().address(), self.label_column, self.headers]

    def look(self, file: str) -> list[Row]:
        if not self.headers:
            return super().look(file)
        with opened(self.path(file)) as tar:
            found = [(one.image or Place(-1, 0), one) for one in self._examples(tar, file)]
        return [
            Row(at.offset, bytes=at.size, problem=one.problem or None, name=one.name)
            for at, one in found
        ]

    def images(self, file: str) -> Iterator[Found]:
        with opened(self.path(file)) as tar:
            for one in self._examples(tar, file):
                if one.image is None:
                    yield Found(None, -1, one.name, None, one.problem)
                else:
                    label = None
                    if one.label is not None:
                        text = _member(tar, one.label._replace(size=min(one.label.size, 4096)))
                        label = text.decode("utf-8", "replace").strip() or None
                    yield Found(_member(tar, one.image), one.image.offset, one.name, label)

    def _examples(self, tar: BinaryIO, file: str) -> Iterator[Example]:
        return examples(tar, self.path(file), file, self.label_column or LABEL)

    def originals(self, table: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        columns = (table[name].to_pylist() for name in ("ref", "place", "bytes"))
        places = [
            (self.path(os.fsdecode(ref)), Place(*place))
            for ref, *place in zip(*columns, strict=True)
        ]
        return Lookup(_opened_member, places)


class HubTars(Tars):
    """The tars of a data set on the Hub, which are not downloaded; ValueError if the Hub cannot be reached."""

    def __init__(self, source: str) -> None:
        self.address_of_hub = ADDRESS + hub_name(source)
        with one_line(f"cannot open '{source}' of the Hugging Face Hub"):
            listed = _hub().find(self.address_of_hub, detail=True)
        inside = self.address_of_hub.removeprefix("hf://") + "/"
        files = {
            path.removeprefix(inside): f"{about['size']} {about.get('blob_id')}"
            for path, about in listed.items()
        }
        self.marks = {
            name: mark for name, mark in sorted(files.items()) if name.lower().endswith(".tar")
        }
        splits = shard_splits(list(self.marks), source) if self.marks else {}
        super().__init__(Path(source), splits, in_none(list(self.marks), splits))
        say_splits(source, splits)

    def address(self) -> list[Any]:
        return [self.address_of_hub, self.headers]

    def path(self, file: str) -> str:
        return f"{self.address_of_hub}/{file}"

    def stamp(self, file: str) -> tuple[int, int]:
        return int(digest(self.marks[file].encode())[:15], 16), 0


def opened(path: str) -> BinaryIO:
    """Open a tar for reading, here or on the Hub; ValueError, one line, if it is missing."""
    with one_line(f"cannot read '{path}'"):
        return _hub().open(path, "rb") if path.startswith(ADDRESS) else open(path, "rb")


def _hub() -> Any:
    import huggingface_hub

    return huggingface_hub.HfFileSystem()


def examples(file: BinaryIO, path: str, name: str, label: str) -> Iterator[Example]:
    """The examples of a tar with an image, and what is damaged or no file, in order.

    name: of the tar, for what is damaged. label: ending of the labels. The file may be read elsewhere in between.
    """
    stem = Path(name).stem
    key, fields = "", dict[str, Place]()
    for member, problem in _members(file, path):
        found = _KEY.fullmatch(member.name) if member is not None else None
        hidden = member is not None and os.path.basename(member.name).startswith((".", "__"))
        if member is not None and not problem and (found is None or hidden):
            continue
        if problem or (found and found[1] != key):
            yield from _whole_example(f"{stem}/{key}", fields, label)
            fields = {}
        if problem:
            if member is None or (found and not hidden and _is_image(found[2])):
                yield Example(
                    name if member is None else f"{stem}/{member.name}", None, None, problem
                )
        elif found and member is not None:
            key = found[1]
            fields.setdefault(found[2], Place(member.offset_data, member.size))
    yield from _whole_example(f"{stem}/{key}", fields, label)


def _whole_example(name: str, fields: dict[str, Place], label: str) -> Iterator[Example]:
    """The example of these members, with the image of a usual ending or else the first; none without an image."""
    images = sorted(field for field in fields if _is_image(field))
    if images:
        image = fields[next((one for one in IMAGE_NAMES if one in images), images[0])]
        if image.size > _MOST_BYTES:
            yield Example(name, None, None, f"{image.size:,} bytes are too many for an image")
        else:
            yield Example(name, image, fields.get(label))


def _opened_member(path_and_place: tuple[str, Place]) -> bytes:
    path, place = path_and_place
    with opened(path) as file:
        return _member(file, place)


def _member(file: BinaryIO, place: Place) -> bytes:
    """The bytes of a member: fewer if the file has become shorter."""
    file.seek(place.offset)
    return file.read(place.size)


def _members(file: BinaryIO, path: str) -> Iterator[tuple[tarfile.TarInfo | None, str]]:
    """The members of a tar, each with "" or what is wrong with it; (None, what is wrong) for damage.

    Reading goes on behind a damaged header with the next one that is whole. ValueError if there is none at all.
    """
    end = count = 0
    try:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as tar:
            while True:
                member = tar.next()
                tar.members = []  # type: ignore[attr-defined]
                start = member.offset if member is not None else size
                if start < end or (member is not None and member.size < 0):
                    yield (
                        None,
                        f"damaged at byte {end:,}: a member of impossible size; the rest is not read",
                    )
                    return
                if _any_set(file, end, start):
                    yield (
                        None,
                        f"damaged from byte {end:,} to {start:,}: what lay there is not read",
                    )
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
        raise ValueError(
            f"cannot read '{path}': it is empty or not a tar (a compressed one must be unpacked first)"
        )


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
