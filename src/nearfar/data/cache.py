"""The pixel cache: decoded images as a memory-mapped file of uint8 or uint16, written once, complete or not at all.

A data set lies in a folder named by a hash of what its images hold, their names, size, channels and value range. Labels
are no part of it. What is asked for and found out only by decoding (a size that is not given) is noted in a small file
that names that folder.

A data set that was not finished has no entry.json and is not read. That of an earlier format, of pixels whose number
does not fit, or whose pixel file has another size or time of modification than when it was finished is decoded again.
Not detected: bytes that the disk itself damages, or that are changed while the time is put back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from nearfar.atomic import NotWrittenError, replacing
from nearfar.data.decode import Decoded
from nearfar.data.digests import digest

ELSEWHERE = "set XDG_CACHE_HOME to another folder (in Python also cache_dir)"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
FORMAT = 4  # raise it when decoding or this layout changes: older caches are then not found
ENTRY, TABLE, NOTE = "entry.json", "images.arrow", ".same"
COLUMNS = pyarrow.schema(
    {
        "name": pyarrow.string(),
        "problem": pyarrow.string(),
        "digest": pyarrow.string(),
        "width": pyarrow.int32(),
        "height": pyarrow.int32(),
        "colour": pyarrow.bool_(),
        "wide": pyarrow.bool_(),
    }
)
used: set[Path] = set()  # the data sets that this process has opened


@dataclass
class Entry:
    """What the cache knows about a data set, besides its pixels.

    `images`: a row for each image of the source, in its order: "name"; "problem", null where it could be decoded;
    "digest" of the encoded image where known; "width", "height", "colour" and "wide" as `Decoded` has them.
    `mean`, `std`: per channel in 0..1; `stored`: whether pixels are kept; `value_range`: low and high of every channel,
    in the files' own numbers, where pixels are uint16; `lineage`: the same for all states of one data set.
    """

    images: pyarrow.Table
    image_size: int
    channels: int
    mean: list[float]
    std: list[float]
    stored: bool
    value_range: list[float] | None = None
    lineage: str = ""

    @cached_property
    def rows(self) -> Int64[np.ndarray, " kept"]:
        """The positions of the images with pixels among all."""
        return np.flatnonzero(self.images["problem"].is_null().to_numpy())

    @cached_property
    def kept(self) -> pyarrow.Table:
        """The rows of `images` with pixels."""
        return self.images.take(self.rows)

    @cached_property
    def skipped(self) -> list[tuple[str, str]]:
        """(name, problem) of the others."""
        others = self.images.filter(self.images["problem"].is_valid())
        return list(zip(others["name"].to_pylist(), others["problem"].to_pylist(), strict=True))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.rows), self.channels, self.image_size, self.image_size


def default_folder() -> Path:
    """$XDG_CACHE_HOME/nearfar, or ~/.cache/nearfar."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "nearfar"


def key(parts: Any) -> str:
    """A file name made from everything the pixels depend on (JSON values)."""
    return digest(json.dumps([FORMAT, parts], sort_keys=True).encode())


def pixels_file(wide: bool) -> str:
    """The name of the file of pixels: of uint16, or of uint8."""
    return "pixels.u16" if wide else "pixels.u8"


def home_of(asked: Path) -> Path:
    """The folder of the data set that was found for what is asked: by its note, else the one of that very name."""
    try:
        return asked.with_name(asked.with_suffix(NOTE).read_text())
    except (OSError, ValueError):
        return asked


def read(folder: Path) -> tuple[Entry, Shaped[Tensor, "images channels size size"] | None] | None:
    """A finished data set: its entry and its memory-mapped pixels (None where not stored). None if absent or damaged.

    No pixels are read; see the head of this file for what is noticed.
    """
    found = _loaded(folder)
    if found is not None:
        used.add(folder)
        with contextlib.suppress(OSError):
            os.utime(folder / ENTRY)  # when it was used last
    return found


def _loaded(folder: Path) -> tuple[Entry, Tensor | None] | None:
    try:
        values = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
        form, noted = values.pop("format"), values.pop("pixels")
        entry = Entry(images=pyarrow.feather.read_table(folder / TABLE, memory_map=False), **values)
        wide = entry.value_range is not None
        whole = [int(np.prod(entry.shape)) * (1 + wide), noted and noted[1]]
        if form != FORMAT or (entry.stored and not noted == whole == _state(folder / pixels_file(wide))):
            return None
        pixels = mapped(folder, entry.shape, wide) if entry.stored else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, pyarrow.ArrowException):
        return None
    return entry, pixels


def decoded_before(folder: Path, lineage: str) -> dict[str, Decoded]:
    """The images of an earlier state of a data set, the one used last, by the digests of what they came from."""
    for home in states(folder, lineage)[::-1]:
        entry, pixels = _loaded(home) or (None, None)
        if entry is not None and pixels is not None:
            names = ("digest", "width", "height", "colour", "wide")
            rows = zip(pixels.numpy(), *(entry.kept[name].to_pylist() for name in names), strict=True)
            return {digest: Decoded(one, (w, h), colour, wide) for one, digest, w, h, colour, wide in rows if digest}
    return {}


def states(folder: Path, lineage: str) -> list[Path]:
    """The states of a data set that a cache folder holds, those used last at the end."""
    found = []
    for entry in folder.glob(f"*/{ENTRY}"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if json.loads(entry.read_text(encoding="utf-8")).get("lineage") == lineage:
                found.append((entry.stat().st_mtime_ns, entry.parent))
    return [home for _, home in sorted(found)]


def _state(pixels: Path) -> list[int]:
    found = pixels.stat()
    return [found.st_size, found.st_mtime_ns]


def mapped(folder: Path, shape: tuple[int, ...], wide: bool = False) -> Shaped[Tensor, "images channels size size"]:
    """The pixels of a finished data set, memory-mapped; writing to them changes this process's copy alone."""
    size = int(np.prod(shape)) * (1 + wide)
    pixels = torch.from_file(str(folder / pixels_file(wide)), shared=False, size=size, dtype=torch.uint8)
    return (pixels.view(torch.uint16) if wide else pixels).view(shape)


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """Hold the lock of one data set: of several processes that want it, one builds and the others wait for it."""
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


def write(asked: Path, fill: Callable[[Path], tuple[Entry, str]]) -> Path:
    """Run `fill` on a new folder (it writes the pixels there), then give that its final name in one step.

    `fill` returns the entry and that name. A note leads there where something else was asked for. The lock of `asked`
    must be held. Returns the final folder.
    """
    part = Path(tempfile.mkdtemp(prefix=f"{asked.name}.part-", dir=asked.parent))
    try:
        entry, name = fill(part)
        home = asked.with_name(name)
        pyarrow.feather.write_feather(entry.images, part / TABLE)
        written = {one.name: getattr(entry, one.name) for one in fields(entry) if one.name != "images"}
        written["pixels"] = _state(part / pixels_file(entry.value_range is not None)) if entry.stored else None
        with open(part / ENTRY, "w", encoding="utf-8") as file:
            json.dump(written | {"format": FORMAT}, file)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.nullcontext() if home == asked else building(home):
            there = _loaded(home)
            if there is not None and there[0].stored >= entry.stored:  # the same images, for another request
                shutil.rmtree(part)
            else:
                if home.exists():
                    shutil.rmtree(home)
                os.rename(part, home)
        if home != asked:
            with replacing(asked.with_suffix(NOTE)) as unfinished:
                unfinished.write_text(name)
        return home
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and (error.errno in _NO_ROOM or isinstance(error, NotWrittenError)):
            raise ValueError(f"cannot write the cache in '{asked.parent}' ({error}); {ELSEWHERE}") from error
        raise
