"""Names of images as people write them, and which image a name means: by the longest common end of
the path.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote, urlsplit

from nearfar.data.pictures import suffixes

_MOST = 64  # parts of a path


def plain_name(name: str) -> str:
    """A name with "/" between its parts and one form of accents; of an address, such as file://...,
    the path.
    """
    if "://" in name:
        scheme, _, rest = name.partition("://")
        name = unquote(rest if scheme == "file" else urlsplit(name).path)
    return unicodedata.normalize("NFC", name.replace("\\", "/"))


def spellings(name: str) -> Iterator[str]:
    """The ways in which the file system may write a name, as it stands first."""
    yield name
    plain = plain_name(name)
    yield from (name.strip(), plain, unicodedata.normalize("NFD", plain))
    if "://" in name:
        yield unquote(name.partition("://")[2])


def file_identity(path: str) -> tuple[int, int] | str:
    """Return an identity that all names of a file share, as links and bind mounts give them: its
    device and inode; the real path where there is no inode, and the path as it is of what is no
    file.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a name with a null character
        return path
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def parts_of(name: str) -> list[str]:
    """The parts of a path, without those that say nothing."""
    return [part for part in plain_name(name).split("/") if part not in ("", ".")]


def match(
    names: Sequence[str], images: Sequence[str], paths: Sequence[str] | None
) -> tuple[dict[int, int], str]:
    """The position of a name for each image that one means, and a line on how, or "".

    images: their names in the data. paths: their files, if they have some. A name means the one
    image whose path ends like it. The whole name must be in the path, or the image's whole name in
    it; or two parts at least, a folder and a file, are common. A file name alone is never enough
    where folders differ, but where all names are in one folder, and the images in none: a line says
    so. Endings of images may be missing or differ. What may mean several images, and several names
    for one, mean none.
    """
    row_of, line = _matched(names, images, paths, lambda part: part)
    left = [row for row in range(len(names)) if row not in set(row_of.values())]
    if left and len(row_of) < len(images):
        more, also = _matched([names[row] for row in left], images, paths, _without_ending)
        row_of |= {image: left[row] for image, row in more.items() if image not in row_of}
        line = line or also
    return row_of, line


def _without_ending(part: str) -> str:
    stem, ending = os.path.splitext(part)
    return stem if ending.lower() in suffixes() else part


def _matched(
    names: Sequence[str],
    images: Sequence[str],
    paths: Sequence[str] | None,
    key: Callable[[str], str],
) -> tuple[dict[int, int], str]:
    own = [parts_of(name) for name in images]
    full = own if paths is None else [parts_of(path) for path in paths]
    wanted = [parts_of(name) for name in names]
    for listed in (own, wanted, *([] if paths is None else [full])):
        for parts in listed:
            if parts:
                parts[-1] = key(parts[-1])
    flat = {tuple(parts[:-1]) for parts in wanted if parts}
    candidates: dict[int, list[tuple[int, int, bool]]] = {}
    opened = {row for row, parts in enumerate(wanted) if parts}
    for length in range(min(_MOST, max(map(len, wanted), default=0)), 0, -1):
        ends: dict[tuple[str, ...], int] = {}
        for row, parts in enumerate(full):
            if len(parts) >= length:
                end = tuple(parts[-length:])
                ends[end] = -1 if end in ends else row  # of two images
        for row in [row for row in opened if len(wanted[row]) >= length]:
            image = ends.get(tuple(wanted[row][-length:]))
            if image is None:
                continue
            opened.discard(row)  # longest end: a shorter one would say less
            whole = length == len(wanted[row]) or length >= max(2, len(own[image]))
            alone = len(own[image]) == 1 and len(flat) == 1  # a folder that was moved
            if image >= 0 and (whole or length > 1 or alone):
                candidates.setdefault(image, []).append((length, row, whole))
    row_of, moved = {}, None
    for image, several in candidates.items():
        several.sort(reverse=True)
        length, row, whole = several[0]
        if len(several) == 1 or several[1][0] < length:
            row_of[image] = row
            if not whole:
                moved = moved or (names[row], images[image])
    if moved is None:
        return row_of, ""
    return row_of, f"names agree at their ends alone: {moved[0]} is taken for {moved[1]}"
