"""Who writes a run folder: one process at a time, and what a run that never began leaves behind.

filelock holds the lock; it does not say who holds it, nor wait for the workers of a killed owner.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nearfar.atomic import check_text
from nearfar.training.checkpoint import CHECKPOINT, is_moved
from nearfar.training.job import STARTING

LOCK = ".lock"  # held by the process that writes the folder; the file stays, the lock ends with the process
CONFIG, FINGERPRINT = "config.yaml", "fingerprint.json"  # the first is written last: with it a run has begun
_BEFORE_CHECKPOINT = {LOCK, CONFIG, FINGERPRINT, STARTING, "environment.json", "skipped.txt", "metrics.jsonl"}
_BEFORE_CHECKPOINT |= {"views.html", "views.json", "report.html", "checkpoints", "tensorboard"}
_PATIENCE = 15.0  # seconds in which the workers of a killed process end


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Be the only process that writes a run folder; raises ValueError that names the other one, if there is one.

    The lock is the system's: it ends with its process, however that ends.
    """
    from filelock import FileLock, Timeout  # comes with torch

    lock, note = FileLock(folder / LOCK), folder / LOCK
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not _is_gone(_owner(note)):
                raise
            lock.acquire(timeout=_PATIENCE)
        note.write_text(f"{os.getpid()} {platform.node()}\n")
    except Timeout as error:
        number, host = _owner(note)
        by = f"process {number} on {host}" if number else "another process"
        raise ValueError(f"{folder} is being written by {by}; let it end, or choose another --out") from error
    except OSError as error:
        if lock.is_locked:  # and the disk is full
            note.unlink()
            lock.release()
        raise ValueError(f"the run folder {folder} cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def beginning(folder: Path) -> Iterator[None]:
    """Own the folder of a new run; where an error comes before the run has begun, nothing is left of it.

    Raises ValueError where something lies there that is not from a run without a checkpoint.
    """
    check_text(folder)
    if not (folder / LOCK).is_file():  # else its owner is named first, if there is one
        must_be_free(folder)
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        home = folder.stat()
    except OSError as error:
        raise ValueError(f"the run folder {folder} cannot be made: {error.strerror}") from error
    try:
        with owned(folder):
            must_be_free(folder)
            try:
                yield
            except BaseException:
                if not is_moved(folder, home) and not (folder / CONFIG).exists():
                    clear(folder)
                    (folder / LOCK).unlink(missing_ok=True)
                raise
    except BaseException:
        if not is_moved(folder, home):
            with suppress(OSError):  # what is not empty stays
                for one in made:
                    one.rmdir()
        raise


def must_be_free(folder: Path) -> None:
    """Raise ValueError for a folder that holds anything but what a run writes before its first checkpoint."""
    if not folder.exists():
        return
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    ours = LOCK in there and all(name in _BEFORE_CHECKPOINT or _is_unfinished(name) for name in there)
    if (there and not ours) or (folder / CHECKPOINT).exists():
        raise ValueError(f"{folder} exists already; choose another --out, or go on with --resume {folder}")


def clear(folder: Path) -> None:
    """Remove what a run wrote that never came to a checkpoint, its settings first; the lock stays."""
    for name in sorted((path.name for path in folder.iterdir()), key=lambda name: name != CONFIG):
        path = folder / name
        if path.is_dir() and name in _BEFORE_CHECKPOINT:
            shutil.rmtree(path)
        elif name != LOCK and (name in _BEFORE_CHECKPOINT or _is_unfinished(name)):
            path.unlink()


def _is_unfinished(name: str) -> bool:
    """Whether a file is one that `atomic.replacing` had begun."""
    return name.startswith(".") and ".partial" in name


def _owner(note: Path) -> tuple[int, str]:
    """Process and machine that hold a lock; 0 where that is not known."""
    with suppress(OSError, ValueError):
        number, host = note.read_text().split()
        return int(number), host
    return 0, ""


def _is_gone(owner: tuple[int, str]) -> bool:
    """Whether a process of this machine has ended, and only what it started may hold its lock still."""
    number, host = owner
    if number == 0 or host != platform.node() or not hasattr(os, "fork"):
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
