"""The command that makes hard links of copies with the same bytes: it frees space, and every name
stays.

nearfar link photos-duplicates.csv
nearfar link runs/photos/duplicates.csv --json
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from nearfar.progress import log, tracked

SAME = "same file"
ALREADY = "a hard link to it before"
OTHER_KIND = "symbolic links, or no regular files"
OTHER_SYSTEM = "on another file system than the kept file"
OTHER_RIGHTS = "with other permissions, another owner or other attributes than the kept file"
OTHER_BYTES = "with other bytes than the kept file by now"
CHANGED = "changed meanwhile"
STORED = "in the store of git or git-annex"
ANNEXED = "in a git-annex repository, where `git annex add` shares equal bytes"
BLANK = "that show nothing"
STORES = ("/.git/", "/annex/objects/")
"""Parts of a path that a file must not have; a bare repository has no .git."""
BLOCK = 2**20  # bytes compared at a time
UNFINISHED = ".nearfar-link-"  # then 16 random digits: a name that stands for one step


class NotLinked(Exception):
    """A copy stays the file that it is, for the reason in the message."""


def link_copies(table: str | Path) -> dict[str, Any]:
    """Make hard links of copies that have the same bytes as a kept file: frees space, keeps names.

    It acts on what `nearfar duplicates` found, once you have looked: without this command nothing
    is changed. Each copy is compared with its kept file again, byte for byte, and then replaced by
    a hard link to it in one step, so that every name leads to the same bytes before and after,
    however it is interrupted. Copies in other folders, classes and splits are linked too, since no
    name is lost. Two linked names are one file: they have one time of modification, that of the
    kept file, and whoever writes into one in place changes both. Copies on another file system, or
    with other permissions, are linked to the first of these. Left as they are: files on other
    file systems, with other permissions, owner or extended attributes, images that show nothing
    (empty masks, to be drawn on), symbolic links, and the files of git-annex.

    Args:
        table: the .csv beside the page of `nearfar duplicates`, or a file with its --json output.

    Returns:
        "linked": the copies that are hard links now, by their paths; "freed": bytes on the disk;
        "already": how many were links before; "shared": of those linked, how many had further
        names, which hold their bytes until they are linked too; "left": the reason for each copy
        that stays as it is, by its path.

    Raises:
        ValueError: for another table, and one of images that are no files.
    """
    pairs, left = _pairs(Path(table))
    linked, freed, already, shared = list[str](), 0, 0, 0
    further: dict[str, list[str]] = {}  # copies beside a kept file, which others can be linked to
    for copy, kept in tracked(pairs, "linking copies"):
        beside = further.setdefault(kept, [])
        try:
            size = _link_to_first(copy, [kept, *beside])
        except NotLinked as reason:
            if str(reason) == ALREADY:
                already += 1
            else:
                left[copy] = str(reason)
            if str(reason) in (OTHER_SYSTEM, OTHER_RIGHTS):
                beside.append(copy)
            continue
        linked.append(copy)
        shared += size is None
        freed += size or 0
    total = len(linked) + already + len(left)
    log.info(
        "%d of %d copies became hard links to the kept file: %s freed, no name lost",
        len(linked),
        total,
        decimal(freed),
    )
    if already:
        log.info("%d were hard links to it before", already)
    if shared:
        log.info(
            "%d had further names, which hold their bytes: run `nearfar duplicates` and this "
            "command again for these",
            shared,
        )
    if left:
        reasons = (f"{count} {reason}" for reason, count in Counter(left.values()).most_common())
        log.info("%d left as they are: %s", len(left), ", ".join(reasons))
    return {
        "linked": linked,
        "freed": freed,
        "already": already,
        "shared": shared,
        "left": left,
    }


def _pairs(table: Path) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the copies with the kept file of each, and those to leave with the reason."""
    from nearfar.neighbours.removal import NOTHING
    from nearfar.tools.result import read_table

    columns = read_table(table)
    kept = columns.get("archive_path", columns.get("of"))
    if kept is None or not {"kind", "why", "path"} <= columns.keys():
        raise ValueError(
            f"{table} is not what `nearfar duplicates` writes of images in files: it needs the "
            "columns kind, of, why and path"
        )
    rows = zip(columns["path"], kept, columns["kind"], columns["why"], strict=True)
    same = [(path, of, why) for path, of, kind, why in rows if kind == SAME]
    left = {path: BLANK for path, _, why in same if why == NOTHING}
    return [(path, of) for path, of, why in same if why != NOTHING], left


def _link_to_first(copy: str, places: Sequence[str]) -> int | None:
    """Link a copy to the first of several files that lies on its file system and has its
    permissions; returns and raises as `link_copy` does, and the reason for the first file.
    """
    reasons = []
    for place in places:
        try:
            return link_copy(copy, place)
        except NotLinked as reason:
            reasons.append(reason)
            if str(reason) not in (OTHER_SYSTEM, OTHER_RIGHTS):
                raise
    raise reasons[0]


def link_copy(copy: str, kept: str, system: Any = os) -> int | None:
    """Replace a file by a hard link to another one with the same bytes, in one step.

    Returns the bytes that this frees on the disk, None where further names of the copy hold them.
    Until the last step the file is what it was. Where the process is killed just before it, a
    further name of the kept file remains beside the copy, .nearfar-link- with 16 digits.

    system: what is asked for the calls of the operating system: the module os.

    Raises NotLinked, with the reason; the copy is then what it was.
    """
    try:
        return _link(copy, kept, system)
    except OSError as error:
        known = {errno.ENOENT: "that are gone", errno.EXDEV: OTHER_SYSTEM}
        reason = known.get(error.errno or 0, f"not linked ({os.strerror(error.errno or 0)})")
        raise NotLinked(reason) from error


def _link(copy: str, kept: str, system: Any) -> int | None:
    """Do what `link_copy` says; an OSError is not translated."""
    target, old = _examined(kept, system), _examined(copy, system)
    if (target.st_dev, target.st_ino) == (old.st_dev, old.st_ino):
        raise NotLinked(ALREADY)
    if target.st_dev != old.st_dev:
        raise NotLinked(OTHER_SYSTEM)
    if _rights(kept, target, system) != _rights(copy, old, system):
        raise NotLinked(OTHER_RIGHTS)
    with _opened(kept, target, system) as first, _opened(copy, old, system) as second:
        if target.st_size != old.st_size or not _are_equal(first, second, system):
            raise NotLinked(OTHER_BYTES)
        if os.name != "nt":  # where a file that is only read cannot be written through
            system.fsync(first)  # soon the only file with these bytes
    unfinished = os.path.join(os.path.dirname(copy), UNFINISHED + secrets.token_hex(8))
    try:
        system.link(kept, unfinished)
        if _state(system.lstat(unfinished)) != _state(target):
            raise NotLinked(CHANGED)
        if _state(system.lstat(copy)) != _state(old):
            raise NotLinked(CHANGED)
        system.replace(unfinished, copy)
    finally:
        with suppress(FileNotFoundError):  # since it has replaced the copy, or was never made
            system.unlink(unfinished)
    if old.st_nlink > 1:
        return None
    return 512 * old.st_blocks if hasattr(old, "st_blocks") else old.st_size


def _examined(path: str, system: Any) -> os.stat_result:
    """Return what is known of a regular file; NotLinked for others, and in a store."""
    known: os.stat_result = system.lstat(path)
    if not stat.S_ISREG(known.st_mode):
        raise NotLinked(OTHER_KIND)
    place = Path(os.path.realpath(path))
    if any(store in place.as_posix() for store in STORES):
        raise NotLinked(STORED)
    if _is_annexed(place.parent):
        raise NotLinked(ANNEXED)
    return known


def _is_annexed(folder: Path) -> bool:
    """Return whether a folder lies in the working tree of a git-annex repository: a file there may
    be a hard link to a read-only object.
    """
    return any((place / ".git" / "annex").is_dir() for place in (folder, *folder.parents))


def _rights(path: str, known: os.stat_result, system: Any) -> tuple[Any, ...]:
    """Return the permissions, the owner and the extended attributes of a file."""
    attributes = {}
    if hasattr(system, "listxattr"):
        with suppress(OSError):  # a file system without any
            names = system.listxattr(path, follow_symlinks=False)
            attributes = {
                name: system.getxattr(path, name, follow_symlinks=False) for name in names
            }
    return stat.S_IMODE(known.st_mode), known.st_uid, known.st_gid, attributes


def _state(known: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a name leads to another file, or a file is written."""
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns


@contextmanager
def _opened(path: str, known: os.stat_result, system: Any) -> Iterator[int]:
    """Open a file to read; NotLinked if it is another one than before, or was written."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    file = system.open(path, flags)
    try:
        if _state(system.fstat(file)) != _state(known):
            raise NotLinked(CHANGED)
        yield file
    finally:
        system.close(file)


def _are_equal(first: int, second: int, system: Any) -> bool:
    """Return whether two open files have the same bytes."""

    def blocks(file: int) -> Iterator[bytes]:
        while block := system.read(file, BLOCK):
            yield block

    return all(own == other for own, other in zip_longest(blocks(first), blocks(second)))
