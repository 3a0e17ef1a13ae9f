"""The pixel cache: decoded images as a memory-mapped file of uint8 or uint16, written once, complete or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

ELSEWHERE = "set XDG_CACHE_HOME to another folder (in Python also cache_dir)"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_PLAIN = "plain"
FORMAT = 3  # raise it when decoding or this layout changes: older caches are then not found


@dataclass
class Entry:
    """What the cache knows about a data set, besides its pixels.

    `rows`: position of each kept image among the source's records; `labels`: -1 where one is missing;
    `mean`, `std`: per channel in 0..1; `stored`: whether pixels are kept; `checksum`: of the file of pixels;
    `value_range`: low and high of every channel, in the files' own numbers, where pixels are uint16.
    """

    image_size: int
    channels: int
    names: list[str]
    rows: list[int]
    labels: list[int] | None
    class_names: list[str] | None
    skipped: list[tuple[str, str]]
    mean: list[float]
    std: list[float]
    stored: bool
    checksum: str = ""
    value_range: list[float] | None = None
    format: int = field(default=FORMAT)


def default_folder() -> Path:
    """$XDG_CACHE_HOME/nearfar, or ~/.cache/nearfar."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "nearfar"


def key(parts: Any) -> str:
    """A file name made from everything the pixels depend on (JSON values)."""
    text = json.dumps([FORMAT, parts], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def pixels_file(wide: bool) -> str:
    """The name of the file of pixels: of uint16, or of uint8."""
    return "pixels.u16" if wide else "pixels.u8"


def is_plain(folder: Path) -> bool:
    """Whether a cache is noted to begin with a picture of 8 bits; see `note_plain`."""
    return (folder / _PLAIN).is_file()


def note_plain(part: Path) -> None:
    """Note in a cache that is being written that its first image is a picture of 8 bits, which one need not look up."""
    (part / _PLAIN).touch()


def read(folder: Path) -> tuple[Entry, Shaped[Tensor, "images channels size size"] | None] | None:
    """A finished cache: its entry and its memory-mapped pixels (None where not stored). None if absent or damaged.

    All pixels are read once for their checksum: 0.15 s for each GB that the system holds in memory already.
    """
    try:
        values = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
        values["skipped"] = [(name, reason) for name, reason in values["skipped"]]
        entry = Entry(**values)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if not entry.stored:
        return entry, None
    shape = (len(entry.names), entry.channels, entry.image_size, entry.image_size)
    wide = entry.value_range is not None
    pixels, count = folder / pixels_file(wide), int(np.prod(shape)) * (1 + wide)
    if entry.format != FORMAT or not pixels.is_file() or pixels.stat().st_size != count:
        return None
    return (entry, mapped(folder, shape, wide)) if checksum(pixels) == entry.checksum else None


def checksum(path: Path) -> str:
    """A hash of the sums of a file's 64-bit words in parts of 1 MB: damage shows, at the speed of memory."""
    digest = hashlib.blake2b(digest_size=16)
    if path.stat().st_size:
        whole = np.memmap(path, np.uint8, mode="r")
        for start in range(0, len(whole), 2**20):
            part = whole[start : start + 2**20]
            digest.update(part[: len(part) // 8 * 8].view(np.uint64).sum().tobytes())
            digest.update(part[len(part) // 8 * 8 :].tobytes())
    return digest.hexdigest()


def mapped(folder: Path, shape: tuple[int, ...], wide: bool = False) -> Shaped[Tensor, "images channels size size"]:
    """The pixels of a finished cache, memory-mapped; writing to them changes this process's copy alone."""
    size = int(np.prod(shape)) * (1 + wide)
    pixels = torch.from_file(str(folder / pixels_file(wide)), shared=False, size=size, dtype=torch.uint8)
    return (pixels.view(torch.uint16) if wide else pixels).view(shape)


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """Hold the lock of one cache: of several processes that want it, one builds and the others wait for it."""
    from filelock import FileLock  # comes with torch

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_suffix(".lock"))
        lock.acquire()
    except OSError as error:
        raise ValueError(f"cannot write to the cache folder '{folder.parent}' ({error}); {ELSEWHERE}") from error
    try:
        for leftover in folder.parent.glob(f"{folder.name}.part-*"):  # from builds that were killed: we hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        lock.release()


def write(folder: Path, fill: Callable[[Path], Entry]) -> None:
    """Run `fill` on a new folder (it writes the pixels there), then give that its final name in one step."""
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        entry = fill(part)
        if entry.stored:
            entry.checksum = checksum(part / pixels_file(entry.value_range is not None))
        with open(part / "entry.json", "w", encoding="utf-8") as file:
            written = asdict(entry)
            json.dump({name: written[name] for name in written if (name, written[name]) != ("value_range", None)}, file)
            file.flush()
            os.fsync(file.fileno())
        if folder.exists():  # damaged, or it would have been read
            shutil.rmtree(folder)
        os.rename(part, folder)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise ValueError(f"cannot write the cache in '{folder.parent}' ({error}); {ELSEWHERE}") from error
        raise
