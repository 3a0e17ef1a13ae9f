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

from nearfar.data.formats import suffixes
from nearfar.data.sources.files import Files
from nearfar.data.sources.rows import IMAGE_NAMES, hub_name
from nearfar.data.sources.splits import in_none, prefix, say_splits, shard_splits
from nearfar.data.table import Lookup, Named, Row, digest, looked_at
from nearfar.messages import first_line, one_line

LABEL = "cls"
ADDRESS = "hf://datasets/"
_MOST_BYTES = 2**30  # of an encoded image
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_WHOLE = re.compile(r"-?\d{1,18}")


class Place(NamedTuple):
    """Where the bytes of a member are."""

    offset: int
    size: int


class Example(NamedTuple):
    """One example: its fields by their endings, or what is wrong there."""

    name: str
    fields: dict[str, Place]
    problem: str = ""

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

    whole = False

    def __init__(
        self, root: Path | str, splits: dict[str, list[str]], problems: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(Path(root), splits, problems)

    def address(self, label_column: str | None) -> list[Any]:
        return [*super().address(label_column), label_column]

    def look(self, file: str, label_column: str | None) -> list[Row]:
        rows = []
        with opened(self.path(file)) as tar:
            for example in examples(tar, self.path(file), file):
                image, text = example.image(), example.fields.get(label_column or LABEL)
                if image is None or example.wrong():
                    rows.append(Row(-1, None, None, None, None, None, None, example.wrong(), example.name))
                else:
                    label = None if text is None else _text(tar, text)
                    rows.append(looked_at(_member(tar, image), image.offset, example.name, label))
        return rows

    def named(self, table: pyarrow.Table, splits: Sequence[str], label_column: str | None) -> Named:
        split_of = {os.fsencode(file): split for split in splits for file in self.splits[split]}
        parts = [split_of[ref] for ref in table["ref"].to_pylist()]
        names = [prefix(split) + name for split, name in zip(parts, table["name"].to_pylist(), strict=True)]
        labels = [None if text is None else _label(text) for text in table["label"].to_pylist()]
        texts = list(labels)
        if any(isinstance(label, str) for label in labels):
            others = (file for split in self.splits.keys() - set(splits) for file in self.splits[split])
            texts += [label for file in others for label in self._labels(file, label_column or LABEL)]
        if label_column is not None and all(label is None for label in labels):
            fields = self._first_fields(splits)
            if label_column not in fields:
                known = ", ".join(fields)
                raise ValueError(f"'{self.root}' has no column '{label_column}' for labels; its columns: {known}")
        return Named(names, parts, labels, None, texts)

    def _labels(self, file: str, label_column: str) -> list[int | str]:
        with opened(self.path(file)) as tar:
            fields = (example.fields.get(label_column) for example in examples(tar, self.path(file), file))
            return [_label(_text(tar, field)) for field in fields if field is not None]

    def _first_fields(self, splits: Sequence[str]) -> dict[str, Place]:
        for file in (file for split in splits for file in self.splits[split]):
            with opened(self.path(file)) as tar:
                for example in examples(tar, self.path(file), file):
                    if not example.problem:
                        return example.fields
        return {}

    def few(self, splits: Sequence[str], count: int) -> list[tuple[str, bytes | str | None]]:
        found: list[tuple[str, bytes | str | None]] = []
        for split, file in ((part, file) for part in splits for file in self.splits[part]):
            with opened(self.path(file)) as tar:
                for example in examples(tar, self.path(file), file):
                    image = None if example.wrong() else example.image()
                    found.append((prefix(split) + example.name, image and _member(tar, image)))
                    if len(found) == count:
                        return found
        return found

    def originals(self, table: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        columns = (table[name].to_pylist() for name in ("ref", "place", "bytes"))
        places = [(self.path(os.fsdecode(r)), Place(p, size)) for r, p, size in zip(*columns, strict=True)]
        return Lookup(_opened_member, places)


class HubTars(Tars):
    """The tars of a data set on the Hub, which are not downloaded; ValueError where the Hub cannot be reached."""

    def __init__(self, source: str) -> None:
        self.address_of_hub = ADDRESS + hub_name(source)
        with one_line(f"cannot open '{source}' of the Hugging Face Hub"):
            listed = _hub().find(self.address_of_hub, detail=True)
        inside = self.address_of_hub.removeprefix("hf://") + "/"
        files = {path.removeprefix(inside): f"{about['size']} {about.get('blob_id')}" for path, about in listed.items()}
        self.marks = {name: mark for name, mark in sorted(files.items()) if name.lower().endswith(".tar")}
        splits = shard_splits(list(self.marks), source) if self.marks else {}
        super().__init__(source, splits, in_none(list(self.marks), splits))
        self.root = Path(source)
        say_splits(source, splits)

    def path(self, file: str) -> str:
        return f"{self.address_of_hub}/{file}"

    def stamp(self, file: str) -> tuple[int, int]:
        return int(digest(self.marks[file].encode())[:15], 16), 0


def opened(path: str) -> BinaryIO:
    """Open a tar for reading, here or on the Hub; ValueError, one line, for one that is not there."""
    with one_line(f"cannot read '{path}'"):
        return _hub().open(path, "rb") if path.startswith(ADDRESS) else open(path, "rb")


def _hub() -> Any:
    import huggingface_hub

    return huggingface_hub.HfFileSystem()


def examples(file: BinaryIO, path: str, name: str) -> Iterator[Example]:
    """The examples of a tar with an image, and what is damaged or no file, in order.

    name: of the tar, for what is damaged. The file may be read elsewhere in between.
    """
    stem = Path(name).stem
    key, fields = "", dict[str, Place]()
    for member, problem in _members(file, path):
        found = _KEY.fullmatch(member.name) if member is not None else None
        hidden = member is not None and os.path.basename(member.name).startswith((".", "__"))
        if member is not None and not problem and (found is None or hidden):
            continue
        if (problem or (found and found[1] != key)) and any(map(_is_image, fields)):
            yield Example(f"{stem}/{key}", fields)
            fields = {}
        if problem:
            if member is None or (found and not hidden and _is_image(found[2])):
                yield Example(name if member is None else f"{stem}/{member.name}", {}, problem)
        elif found and member is not None:
            if found[1] != key:
                key, fields = found[1], {}
            fields.setdefault(found[2], Place(member.offset_data, member.size))
    if any(map(_is_image, fields)):
        yield Example(f"{stem}/{key}", fields)


def _opened_member(path_and_place: tuple[str, Place]) -> bytes:
    path, place = path_and_place
    with opened(path) as file:
        return _member(file, place)


def _member(file: BinaryIO, place: Place) -> bytes:
    """The bytes of a member: fewer where the file has become shorter."""
    file.seek(place.offset)
    return file.read(place.size)


def _members(file: BinaryIO, path: str) -> Iterator[tuple[tarfile.TarInfo | None, str]]:
    """The members of a tar, each with "" or what is wrong with it; (None, what is wrong) for damage.

    Reading goes on behind a damaged header with the next one that is whole. ValueError where there is none at all.
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


def _text(file: BinaryIO, place: Place) -> str:
    return _member(file, Place(place.offset, min(place.size, 4096))).decode("utf-8", "replace").strip()


def _label(text: str) -> int | str:
    return int(text) if _WHOLE.fullmatch(text) else text
