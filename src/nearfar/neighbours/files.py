"""The files of images: where they lie, how large they are, and which are the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from nearfar.data import Images
from nearfar.data.decoding import header
from nearfar.data.table import digest, digest_of_file
from nearfar.progress import tracked

ANNEX = ".git/annex/objects/"  # in a symbolic link of git-annex to the content of a file


class Facts(NamedTuple):
    """Size of an image in pixels and bytes; whether it is a symbolic link to a file; its pages or
    frames; whether git-annex holds its content, behind a symbolic link that does not count as one.
    """

    width: int
    height: int
    bytes: int
    link: bool = False
    pages: int = 1
    annexed: bool = False


def image_stats(images: Images, rows: Sequence[int]) -> dict[int, Facts]:
    """Size in pixels and bytes of the files of images, by position; zero bytes for one that exists
    as pixels alone.

    They come from the table of the data set; a file is read only where the table does not say.
    """
    originals = images.originals
    if originals is None:
        return {row: Facts(images.image_size, images.image_size, 0) for row in rows}
    places = images.table_rows[list(rows)]
    columns = [_of_table(images, name, places) for name in ("width", "height", "bytes", "pages")]
    paths, stats = paths_of(images), {}
    for row, *known in zip(rows, *columns, strict=True):
        path = paths[row]
        link = path is not None and os.path.islink(path)
        annexed = link and ANNEX in os.readlink(path or "").replace(os.sep, "/")
        if None not in known:
            width, height, size, pages = map(int, known)
        else:
            data = originals[row]
            shape = header(data)
            width, height, size, pages = shape.width, shape.height, _size(data), shape.pages
        stats[row] = Facts(width, height, size, link and not annexed, pages, annexed)
    return stats


def paths_of(images: Images) -> list[str | None]:
    """The file of each image, None for one that is none of its own; members of archives are not
    read to find out.
    """
    originals = images.originals
    if originals is None:
        return [None] * len(images)
    places = _of_table(images, "place", images.table_rows)
    paths = (
        originals[row] if place is None or place < 0 else None for row, place in enumerate(places)
    )
    return [data if isinstance(data, str) else None for data in paths]


def same_files(images: Images) -> np.ndarray:
    """For each image the first one with the same bytes, by the digests of the table.

    Without these the encoded images are compared, those alone of which another has the same size.
    """
    originals, first = images.originals, np.arange(len(images))
    if originals is None:
        return first
    seen: dict[str, int] = {}
    digests = _of_table(images, "digest", images.table_rows)
    unknown = [row for row, mark in enumerate(digests) if mark is None]
    if not unknown:
        for row, mark in enumerate(digests):
            first[row] = seen.setdefault(mark, row) if mark else row
        return first
    known_sizes = _of_table(images, "bytes", images.table_rows)
    sizes = np.array(
        [_size(originals[row]) if size is None else size for row, size in enumerate(known_sizes)]
    )
    _, inverse, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    ambiguous = np.flatnonzero(counts[inverse] > 1).tolist()
    for row in tracked(ambiguous, "comparing files"):
        mark = digests[row]
        if mark is None:
            data = originals[row]
            mark = digest(data) if isinstance(data, bytes) else digest_of_file(data)
        # what can no longer be read stays alone
        first[row] = seen.setdefault(mark, row) if mark else row
    return first


def _of_table(images: Images, name: str, places: Int64[np.ndarray, " rows"]) -> list[Any]:
    """A column of the table of a data set in these rows of it; None where it does not say."""
    table = images.table
    if name not in table.column_names:
        return [None] * len(places)
    return table[name].take(places).to_pylist()


def _size(data: bytes | str) -> int:
    return len(data) if isinstance(data, bytes) else os.path.getsize(data)
