"""Tars in WebDataset form: the members of one example share a name up to the first dot, its key.

Nothing vanishes: several images of one key are several images, a label may lie anywhere in its tar,
and what cannot be used is listed.

Read with `tarfile` and not by the builder of `datasets`, which ends in silence at a damaged header,
unpacks and parses what nobody asked for (gzip, torch files, JSON), and copies all images for random
access.
"""

from __future__ import annotations

import os
import re
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow

from nearfar.data import left_out
from nearfar.data.left_out import NO_IMAGE
from nearfar.data.pictures import suffixes
from nearfar.data.sources.encoded import EncodedImage, EncodedSource, Row, Stamp
from nearfar.data.sources.files import is_hidden
from nearfar.data.sources.rows import hub_name
from nearfar.data.sources.splits import shard_splits
from nearfar.data.table import Lookup, cut, digest
from nearfar.data.text import text_of
from nearfar.messages import first_line, raise_as_value_error, say_once

LABEL = "cls"
ADDRESS = "hf://datasets/"
_LONGEST_NAME = 1000  # characters of the name of a member
_MOST_BYTES = 2**30  # of an encoded image
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)


class Place(NamedTuple):
    """Place of the bytes of a member."""

    offset: int
    size: int


class Member(NamedTuple):
    """A member that may be of use: its name, the key and the field in lower case, and its number
    among neighbours.

    Members that follow each other with the same key have the same `run`.
    """

    name: str
    key: str
    field: str
    run: int
    place: Place


class Example(NamedTuple):
    """An image of a tar: its name, its place and that of its label, or what is wrong there."""

    name: str
    image: Place | None
    label: Place | None
    problem: str = ""


class Tars(EncodedSource):
    """Tars of examples such as 000001.jpg and 000001.cls, the label: a whole number or a text.

    `headers`: only find out where the images are, and read none of them.
    """

    whole, headers = False, False

    def address(self) -> list[Any]:
        return [*super().address(), self.label_column, self.headers]

    def scan_file(self, file: str) -> list[Row]:
        if not self.headers:
            return super().scan_file(file)
        with opened(self.path(file)) as tar:
            examples = [
                (example.image or Place(-1, 0), example) for example in self._examples(tar, file)
            ]
        return [
            Row(at.offset, bytes=at.size, problem=example.problem or None, name=example.name)
            for at, example in examples
        ]

    def images(self, file: str) -> Iterator[EncodedImage]:
        with opened(self.path(file)) as tar:
            for example in self._examples(tar, file):
                if example.image is None:
                    yield EncodedImage(None, -1, example.name, None, example.problem)
                else:
                    label = None
                    if example.label is not None:
                        text = _member(
                            tar, example.label._replace(size=min(example.label.size, 4096))
                        )
                        label = _label_in(text)
                    yield EncodedImage(
                        _member(tar, example.image), example.image.offset, example.name, label
                    )

    def _examples(self, tar: BinaryIO, file: str) -> Iterator[Example]:
        return examples(tar, self.path(file), file, self.label_column or LABEL, not self.headers)

    def say_unlabelled(self, names: Sequence[str]) -> None:
        folders = {name.rpartition("/")[0] for name in names}
        if len(folders) > sum(map(len, self.splits.values())):
            say_once(
                f"images of '{self.root}' have no labels: these stand in "
                f".{self.label_column or LABEL} files beside them, and folders in a tar are "
                f"neither classes nor splits; unpack it for that"
            )

    def originals(self, rows: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        columns = (rows[name].to_pylist() for name in ("ref", "place", "bytes"))
        places = [
            (self.path(os.fsdecode(ref)), Place(*place))
            for ref, *place in zip(*columns, strict=True)
        ]
        return Lookup(_opened_member, places)


class HubTars(Tars):
    """The tars of a data set on the Hub, which are not downloaded; ValueError if the Hub cannot be
    reached.
    """

    def __init__(self, source: str) -> None:
        self.address_of_hub = ADDRESS + hub_name(source)
        with raise_as_value_error(f"cannot open '{source}' of the Hugging Face Hub"):
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
        super().__init__(Path(source), splits)

    def address(self) -> list[Any]:
        return [self.address_of_hub, self.headers]

    def path(self, file: str) -> str:
        return f"{self.address_of_hub}/{file}"

    def stamp(self, file: str) -> Stamp:
        return int(digest(self.marks[file].encode())[:15], 16), 0, 0, 0


def opened(path: str) -> BinaryIO:
    """Open a tar for reading, here or on the Hub; ValueError, one line, if it is missing."""
    with raise_as_value_error(f"cannot read '{path}'"):
        return _hub().open(path, "rb") if path.startswith(ADDRESS) else open(path, "rb")


def _hub() -> Any:
    import huggingface_hub

    return huggingface_hub.HfFileSystem()


def examples(
    file: BinaryIO, path: str, name: str, label: str, looking: bool = True
) -> Iterator[Example]:
    """The images of a tar in order, each with its label, and at last what is damaged or cannot be
    used.

    name: of the tar, for what is damaged. label: ending of the labels. looking: also take for
    images, by their first bytes, what has no ending that is known. The label of x/a.b.png is
    x/a.b.cls, else x/a.cls; of several of that name, as where tars were joined, the one beside the
    image. The file may be read elsewhere in between.
    """
    stem, label = os.path.splitext(name)[0], label.lower()
    images, labels, others = list[Member](), dict[str, list[Member]](), list[Member]()
    problems, run, last = list[Example](), 0, ""
    for member, problem in _members(file, path):
        if member is None:
            problems.append(Example(name, None, None, problem))
            continue
        if any(is_hidden(part) for part in member.name.split("/") if part.strip(".")):
            continue
        match = _KEY.fullmatch(member.name)
        key, field = (match[1], match[2].lower()) if match else (member.name, "")
        run, last = run + (key != last), key
        unused = Member(member.name, key, field, run, Place(member.offset_data, member.size))
        if problem:
            if _is_image(field):
                problems.append(Example(f"{stem}/{member.name}", None, None, problem))
        elif _is_image(field):
            images.append(unused)
        elif field == label or field.endswith(f".{label}"):
            labels.setdefault(f"{_stem(unused.name, label)}.{label}", []).append(unused)
        else:
            others.append(unused)
    images, left = _sorted_out(file, images, others, looking)
    problems += [Example(f"{stem}/{member.name}", None, None, why) for member, why in left]
    used = set[Place]()
    for image, shown in zip(images, _names(images), strict=True):
        own = _label_of(image, images, labels, label)
        used.update([] if own is None else [own])
        if image.place.size > _MOST_BYTES:
            size = f"{image.place.size:,} bytes are too many for an image"
            yield Example(f"{stem}/{shown}", None, None, size)
        else:
            yield Example(f"{stem}/{shown}", image.place, own)
    yield from problems
    for unused in (label for same in labels.values() for label in same):
        if unused.place not in used:
            yield Example(f"{stem}/{unused.name}", None, None, NO_IMAGE)


def _label_in(content: bytes) -> str | None:
    """The text of a label, with one form of accents; None for an empty one."""
    return unicodedata.normalize("NFC", text_of(content).strip("\ufeff \t\r\n")) or None


def _stem(name: str, ending: str) -> str:
    return name[: -len(ending) - 1]


def _label_of(
    image: Member, images: Sequence[Member], labels: dict[str, list[Member]], label: str
) -> Place | None:
    """The label of an image, by its own name, else by its key; of several the one beside it, or
    that of its number.
    """
    for name in (f"{os.path.splitext(image.name)[0]}.{label}", f"{image.key}.{label}"):
        same = labels.get(name, [])
        beside = [label for label in same if label.run == image.run]
        if len(same) == 1 or len(beside) == 1:
            return (beside or same)[0].place
        if len(same) > 1:
            twins = [member.place for member in images if member.name == image.name]
            return same[twins.index(image.place)].place if len(twins) == len(same) else None
    return None


def _names(images: Sequence[Member]) -> list[str]:
    """The names of images: their keys where these have one image alone, else those of the members;
    each once.
    """
    of_key: dict[str, set[str]] = {}
    for image in images:
        of_key.setdefault(image.key, set()).add(image.name)
    given: Counter[str] = Counter()
    names = []
    for image in images:
        shown = cut(image.key if len(of_key[image.key]) == 1 else image.name, _LONGEST_NAME)
        given[shown] += 1
        names.append(shown if given[shown] == 1 else f"{shown} ({given[shown]})")
    return names


def _sorted_out(
    file: BinaryIO, images: list[Member], others: Sequence[Member], looking: bool
) -> tuple[list[Member], list[tuple[Member, str]]]:
    """The images with those that are some by their first bytes, in order, and what is left out,
    with the reasons.

    Arrays, and files whose names say nothing, are parts of an example if an image has their key.
    """
    keys, kept, left = {image.key for image in images}, list(images), []
    for member in others:
        why = left_out.by_name(member.name)
        is_part = member.key in keys and (why is None or why == left_out.ARRAYS)
        if why is None and looking:
            head = _member(
                file, member.place._replace(size=min(member.place.size, left_out.LOOKED_AT))
            )
            why = left_out.by_content(member.name, head)
            if why is None:
                kept.append(member)
        if why and not is_part:
            left.append((member, why))
    return sorted(kept, key=lambda image: image.place.offset), left


def _opened_member(path_and_place: tuple[str, Place]) -> bytes:
    path, place = path_and_place
    with opened(path) as file:
        return _member(file, place)


def _member(file: BinaryIO, place: Place) -> bytes:
    """The bytes of a member: fewer if the file has become shorter."""
    file.seek(place.offset)
    return file.read(place.size)


def _members(file: BinaryIO, path: str) -> Iterator[tuple[tarfile.TarInfo | None, str]]:
    """The members of a tar, each with "" or what is wrong with it; (None, what is wrong) for
    damage.

    Reading goes on behind a damaged header with the next one that is whole. ValueError if there is
    none at all.
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
                        f"damaged at byte {end:,}: a member of impossible size; the rest "
                        f"is not read",
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
            f"cannot read '{path}': it is empty or not a tar (a compressed one must be "
            f"unpacked first)"
        )


def _any_set(file: BinaryIO, start: int, end: int) -> bool:
    """Return whether any byte from `start` to `end` is not zero."""
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
    """Describe a member that cannot be read as a file."""
    if member.issym() or member.islnk():
        return "a link inside the tar, which is not followed"
    if not member.isreg():
        return "not a file"
    return "a sparse file, which is not unpacked" if member.issparse() else ""


def _is_image(field: str) -> bool:
    return "." + field.rsplit(".", 1)[-1].lower() in suffixes()
