"""What the cache holds: its size, and how it is emptied."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

_KEY = re.compile(r"([0-9a-f]{32})(\.part-\w+)?")
_FILES = re.compile(r"entry\.json|pixels\.\w+|plain")


def sizes(folder: Path) -> dict[Path, int]:
    """Return the data sets in a cache folder, those of builds that were killed too, with their sizes in bytes.

    Only folders of the form that `nearfar.data.cache` writes: its names, holding its files and nothing else.
    """
    return {path: sum(file.stat().st_size for file in path.iterdir()) for path in _ours(folder)}


def empty(folder: Path) -> int:
    """Remove the data sets in a cache folder; returns the bytes that this frees.

    What another process is building stays. So do the locks, empty files that others may wait for.
    """
    from filelock import FileLock, Timeout  # comes with torch

    freed = 0
    for path, size in sizes(folder).items():
        lock = FileLock(folder / f"{path.name[:32]}.lock")
        try:
            with lock.acquire(timeout=0):
                shutil.rmtree(path)
                freed += size
        except Timeout:
            continue
    return freed


def _ours(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _KEY.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            files = list(path.iterdir())
            if all(_FILES.fullmatch(file.name) and file.is_file() and not file.is_symlink() for file in files):
                yield path
