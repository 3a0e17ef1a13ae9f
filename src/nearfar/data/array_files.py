"""Open .npy and .npz files: no pickle is loaded, and no memory is taken for what a header only claims."""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from nearfar.data.memory import machine_memory
from nearfar.messages import one_line


@contextmanager
def opened(path: Path) -> Iterator[np.ndarray | Arrays]:
    """The array of a .npy file, memory-mapped, or those of a .npz file by name, each read when it is asked for.

    What the first bytes say counts, not the name. ValueError of one line, also for what is raised while entered.
    """
    with one_line(f"cannot use '{path}'"), open(path, "rb") as file:
        start = file.read(6)
        if not start:
            raise ValueError("it is empty")
        if start == npy.MAGIC_PREFIX:
            file.seek(0)
            _check(file, os.path.getsize(path))
            yield np.load(path, mmap_mode="c", allow_pickle=False)
        elif start[:2] == b"PK":
            with zipfile.ZipFile(file) as archive:
                yield Arrays(archive)
        else:
            raise ValueError("it is neither a .npy nor a .npz file")


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a .npz file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, key: str) -> np.ndarray:
        member = self.archive.getinfo(self.members[key])
        with self.archive.open(member) as file:
            _check(file, member.file_size)
        available = machine_memory()["available"]
        if available is not None and member.file_size > available:
            needed, free = member.file_size / 2**30, available / 2**30
            raise ValueError(f"'{key}' needs {needed:.3g} GiB of memory, and {free:.3g} GiB are free: save it as .npy")
        with self.archive.open(member) as file:
            return npy.read_array(file, allow_pickle=False)

    def mark(self, key: str) -> str:
        """The size and CRC-32 of an array, which stand in the file: nothing is read."""
        member = self.archive.getinfo(self.members[key])
        return f"{member.file_size} {member.CRC:08x}"


def _check(file: Any, size: int) -> None:
    """ValueError unless the file of `size` bytes holds what the header of its array claims."""
    start = io.BytesIO(file.read(2**16))  # or a header that claims to be long would take memory
    read = npy.read_array_header_1_0 if npy.read_magic(start) == (1, 0) else npy.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape, _, kind = read(start)
    rest = size - start.tell()
    if kind.hasobject:
        raise ValueError("it holds Python objects, which would run code when they are loaded")
    if any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize > rest:
        raise ValueError(f"its header claims an array {list(shape)} of {kind}, and {rest:,} bytes follow")
