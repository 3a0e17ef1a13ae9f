"""The usual names of columns: of paths and names of images, of images, labels, splits and vectors.

Names are compared by `normalized_name`: "File Paths", "filePath" and "file_path" are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_THINGS = ("", "image", "img", "picture", "pic", "photo", "frame", "file")
PATH_NAMES: tuple[str, ...] = (
    *(f"{thing}path" for thing in _THINGS),
    *(f"{thing}file" for thing in _THINGS[:-1]),
    *(f"{thing}filename" for thing in _THINGS[:-1]),
    *("fname", "relpath", "relativepath", "fullpath", "abspath", "absolutepath", "localpath"),
    *(_THINGS[1:-1]),
    *(f"{thing}{place}" for place in ("uri", "url") for thing in _THINGS),
    *(f"{thing}name" for thing in _THINGS[1:]),
    "basename",
    *(f"{thing}id" for thing in _THINGS[1:]),
    *("name", "key", "stem", "id", "uid", "uuid"),
)
"""Of columns that name images, those that lead to files first."""
IMAGE_NAMES = ("image", "img", "images", "picture", "photo", "jpg", "png", "webp")
LABEL_NAMES: tuple[str, ...] = (
    *("label", "class", "cls", "classname", "classlabel", "classid", "labelname", "labelid"),
    *("finelabel", "target", "y", "category", "categoryname", "categoryid", "coarselabel"),
)
SPLIT_NAMES: tuple[str, ...] = (
    *("split", "splitname", "datasplit", "traintestsplit", "subset", "partition"),
    *("dataset", "set", "phase", "usage", "fold"),
)
VECTOR_NAMES = ("embedding", "feature", "vector")
_SINGULAR = re.compile(r"(?<=ss)es$|(?<=[^s])s$")


def normalized_name(column: str) -> str:
    """A column's name in lower case, without anything between words and without the "s" of a
    plural.
    """
    name = re.sub(r"[\W_]+", "", column.lower())
    return name if name == "cls" else _SINGULAR.sub("", name)


def find_column(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """The column whose name stands first among the usual ones; of two that are written alike, the
    first.
    """
    return next(iter(find_columns(columns, usual)), None)


def find_columns(columns: Iterable[str], usual: Sequence[str]) -> list[str]:
    """All columns of a usual name, in the order of these names."""
    named: dict[str, list[str]] = {}
    for column in columns:
        named.setdefault(normalized_name(column), []).append(column)
    return [column for name in usual for column in named.get(name, ())]
