"""Which columns of a `datasets` table are the image and the label; rows to records."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datasets import Dataset, Features

IMAGE_NAMES = ("image", "img", "images", "picture", "photo", "jpg", "png", "webp")
LABEL_NAMES = ("label", "labels", "class", "cls", "fine_label", "target", "y", "coarse_label")


_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")  # control characters, bytes that are not UTF-8, separators of lines


class Record(NamedTuple):
    """One image before decoding: its name, its encoded bytes or file path, and its label as the source has it.

    problem: why there is neither.
    """

    name: str
    data: bytes | str | None
    label: Any
    problem: str = "no image data here (a path that leads nowhere, outside the source, or to another machine)"


def printable(name: str) -> str:
    r"""A name that fits on one line of UTF-8: line breaks, control characters and other bytes as "\n" or "\xff"."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(_escaped(char) if unicodedata.category(char) in _UNPRINTABLE else char for char in name)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how Python keeps a byte of a file name that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def image_column(features: Features, source: object) -> str:
    """The column of type Image, else a struct with `bytes`, else binary with a usual name; ValueError if none."""
    import datasets

    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    structs = [name for name, kind in features.items() if isinstance(kind, Mapping) and "bytes" in kind]
    binary = [n for n, k in features.items() if getattr(k, "dtype", "") in ("binary", "large_binary")]
    for group in (images, structs, [name for name in binary if name in IMAGE_NAMES]):
        if group:
            return next((name for name in IMAGE_NAMES if name in group), group[0])
    raise ValueError(f"'{source}' has no column of images; its columns: {', '.join(features)}")


def label_column(features: Features, wanted: str | None, source: object) -> str | None:
    """`wanted`, else a column with a usual name (ClassLabel before whole numbers), else the only ClassLabel."""
    import datasets

    if wanted is not None:
        if wanted not in features:
            raise ValueError(f"'{source}' has no column '{wanted}' for labels; its columns: {', '.join(features)}")
        return wanted
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    whole = [n for n, k in features.items() if isinstance(k, datasets.Value) and k.dtype.lstrip("u").startswith("int")]
    for group in (classes, whole):
        for name in LABEL_NAMES:
            if name in group:
                return name
    return classes[0] if len(classes) == 1 else None


def class_names(features: Features, column: str | None) -> list[str] | None:
    """The class names written in the features, if the label column has them."""
    names = getattr(features[column], "names", None) if column is not None else None
    return list(names) if names else None


def to_records(
    rows: Iterable[Mapping[str, Any]], image: str, label: str | None, prefix: str, inside: Path | None
) -> Iterator[Record]:
    """Rows to records named by their number ("train/000123").

    A row with a path instead of bytes is read only from inside the folder `inside`; nothing is ever fetched.
    """
    for number, row in enumerate(rows):
        yield Record(f"{prefix}{number:06d}", encoded(row[image], inside), None if label is None else row[label])


class EncodedColumn(Sequence[bytes | str]):
    """Some rows of a table's image column, still encoded. Memory-mapped; can be sent to worker processes."""

    def __init__(self, table: Dataset, rows: list[int], inside: Path | None) -> None:
        self.column, self.rows, self.inside = image_column(table.features, "the data set"), rows, inside
        self.table = undecoded(table, self.column).select_columns([self.column])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return encoded(self.table[self.rows[index]][self.column], self.inside)


Originals = Sequence[bytes | str]


def encoded(cell: Any, inside: Path | None) -> bytes | str | None:
    """The bytes in a cell, or the path in it where that lies inside the folder `inside`; else None."""
    if cell is None or isinstance(cell, bytes):
        return cell
    if not isinstance(cell, Mapping):
        return None
    if isinstance(cell.get("bytes"), bytes):
        return cell["bytes"]
    path = cell.get("path")
    if not isinstance(path, str) or not path or inside is None or "\0" in path:
        return None
    full = os.path.realpath(inside / path)
    return full if Path(full).is_relative_to(os.path.realpath(inside)) and os.path.isfile(full) else None


def undecoded(table: Any, image: str) -> Any:
    """The table with its image column left encoded."""
    import datasets

    if isinstance(table.features[image], datasets.Image):
        return table.cast_column(image, datasets.Image(decode=False))
    return table
