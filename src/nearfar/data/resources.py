"""Resources for reading: cores, and memory that the threads of a process share.

Written here since psutil does not know the limit of a container, and the semaphores of Python lend
one unit at a time.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from nearfar.engine import each, engine

CGROUP = Path("/sys/fs/cgroup")
Given, Made = TypeVar("Given"), TypeVar("Made")


def usable_cores() -> int:
    """Return the number of cores this process may use: by its affinity, and by the limit of its
    container.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        cores = min(
            cores, max(1, math.ceil(int(quota) / int(period)))
        )  # "max" without a limit: ValueError
    return cores


def peak_memory() -> float:
    """Return the most memory that this process has had, in MB; NaN where the system does not
    tell.
    """
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    unit = 1e6 if sys.platform == "darwin" else 1e3  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def own_memory() -> float:
    """Return the memory that this process has for itself now, in MB: without files that it maps,
    such as libraries and stored pixels, and without what it shares with others; NaN where the
    system does not tell.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("RssAnon:"))
        return int(line.split()[1]) / 1e3  # kilobytes
    except (OSError, ValueError):  # other systems
        return math.nan


def in_order(
    chunks: Iterable[list[Given]], work: Callable[[Given], Made], threads: int
) -> Generator[list[Made], None, None]:
    """Yield the results of `work` for the items of each chunk, in threads or by an engine; in
    order, a few chunks ahead.
    """
    if engine() is not None:
        yield from each(partial(all_of, work), chunks)
        return
    stop = threading.Event()

    def work_on(chunk: list[Given]) -> list[Made]:
        return [work(item) for item in chunk if not stop.is_set()]

    waiting: deque[Future[list[Made]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for chunk in chunks:
                waiting.append(pool.submit(work_on, chunk))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()  # or Ctrl-C would wait for the rest of the chunks
            for future in waiting:
                future.cancel()


def all_of(work: Callable[[Given], Made], chunk: list[Given]) -> list[Made]:
    """Return the results of `work` for the items of a chunk."""
    return [work(item) for item in chunk]


def machine_memory() -> dict[str, int | None]:
    """Bytes of memory in "total", and those "available" to new work; None where that is not
    known.
    """
    total = available = None
    with suppress(OSError, ValueError, AttributeError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, KeyError, ValueError):
        available = 1024 * _numbers(Path("/proc/meminfo"))["MemAvailable:"]
    with suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        with suppress(OSError, KeyError):
            used -= _numbers(CGROUP / "memory.stat")[
                "inactive_file"
            ]  # given back where it is needed
        total = min(limit, total or limit)
        available = min(max(0, limit - used), limit if available is None else available)
    return {"total": total, "available": available}


def _numbers(file: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


class SharedMemory:
    """So many bytes for all threads together; more than all of it is lent to one thread alone."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                after_in_child=self._renew
            )  # the threads that hold some are not in the child

    def _renew(self) -> None:
        self.free, self._changed = self.total, threading.Condition()

    @contextmanager
    def lent(self, wanted: int) -> Iterator[None]:
        """Wait until `wanted` bytes are free and hold them while entered."""
        wanted = min(wanted, self.total)
        with self._changed:
            self._changed.wait_for(lambda: wanted <= self.free)
            self.free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self.free += wanted
                self._changed.notify_all()


_BYTES = 16  # for a number of an image, at most: as it is decoded, converted, turned and cut
_MEMORY = SharedMemory(2**30)  # an image of more than 67 million pixels is decoded alone


def memory_for(values: int) -> AbstractContextManager[None]:
    """Hold the memory that decoding an image of so many pixels takes, or so many numbers where it
    has many channels; all threads share it.
    """
    return _MEMORY.lent(_BYTES * values)
