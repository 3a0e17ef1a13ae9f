"""What the cache holds: its size, its limit, and how it is emptied."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from nearfar.data import cache

LIMIT = 64 * 2**30  # bytes that all data sets may take: eight of the largest that `open_images` keeps by default
VARIABLE = "NEARFAR_CACHE_BYTES"
_KEY = re.compile(r"([0-9a-f]{32})(\.part-\w+)?")
_NOTE = re.compile(rf"[0-9a-f]{{32}}(\.arrow|{re.escape(cache.NOTE)})")
_FILES = re.compile(r"entry\.json|images\.arrow|labels-\w+\.json|plain|pixels\.\w+")


def sizes(folder: Path) -> dict[Path, int]:
    """Return what a cache folder holds, what is left of builds that were killed too, with the sizes in bytes.

    Data sets are folders; beside them lie files: tables of digests, and notes of what was asked for. Only what has the
    form that nearfar writes counts: its names, and folders that hold its files and nothing else.
    """
    found = {}
    for path in _ours(folder):
        with contextlib.suppress(OSError):  # removed meanwhile
            found[path] = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    return found


def empty(folder: Path) -> int:
    """Remove all that a cache folder holds; returns the bytes that this frees.

    What another process is building stays. So do the locks, empty files that others may wait for.
    """
    return sum(size for path, size in sizes(folder).items() if _removed(path))


def limit() -> int:
    """Bytes that a cache folder may hold: $NEARFAR_CACHE_BYTES, or 64 GiB; ValueError for what is no such number."""
    given = os.environ.get(VARIABLE, str(LIMIT))
    if not given.isdecimal():
        raise ValueError(f"{VARIABLE} must be a number of bytes, such as {LIMIT}, got '{given}'")
    return int(given)


def tidy(folder: Path, built: Path, lineage: str) -> None:
    """Remove the earlier states of a data set that was just built, and what was used longest ago beyond the limit.

    What this process has opened stays, and what others are building. What others have opened they keep until they end,
    but on Windows, where it cannot be removed.
    """
    stay = {built, *cache.used}
    for path in cache.states(folder, lineage):
        if path not in stay:
            _removed(path)
    there = sizes(folder)
    excess = sum(there.values()) - limit()
    for path in sorted(there, key=_last_used):
        if excess > 0 and path.suffix != cache.NOTE and path not in stay and _removed(path):
            excess -= there[path]


def _last_used(path: Path) -> float:
    try:
        return (path / cache.ENTRY if path.is_dir() else path).stat().st_mtime
    except OSError:  # left by a build that was killed
        return 0.0


def _removed(path: Path) -> bool:
    """Remove a data set or a file unless another process is building it; whether it is gone."""
    from filelock import FileLock, Timeout  # comes with torch

    try:
        with FileLock(path.parent / f"{path.name[:32]}.lock").acquire(timeout=0):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except (Timeout, OSError):
        return False
    return True


def _ours(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink():
            continue
        if _NOTE.fullmatch(path.name) and path.is_file():
            yield path
        elif _KEY.fullmatch(path.name) and path.is_dir():
            files = list(path.glob("*"))
            if all(_FILES.fullmatch(file.name) and file.is_file() and not file.is_symlink() for file in files):
                yield path
