"""Number of threads that torch computes with: the fastest number, measured once in a process.

threadpoolctl and torch set a number that somebody knows; the fastest one on a shared machine has to
be measured.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

Mapped = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""The interface of `map` with one argument."""

_FASTER = 1.15  # how much faster another number of threads must be to be taken
_ROUNDS, _REPEATS = 5, 4  # trials of each number, and steps of a trial
_chosen: int | None = None  # the number that `use_threads` holds, or else the one that was measured


def fastest_threads() -> int:
    """Return the number of threads with the best median time: all, one less, half of them or one.

    The threads of a step wait for each other hundreds of times. Where another process has one of
    the cores, each wait can last until the system gives the core back: on two cores two threads are
    then several times slower than one. The number that the user chose by OMP_NUM_THREADS, or that
    is in use already, is not tried against others.
    """
    global _chosen
    if _chosen is None:
        _chosen = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else _measured()
    return _chosen


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with this number of threads in the `with` block, and take it for the fastest one
    meanwhile.
    """
    global _chosen
    before, outer = torch.get_num_threads(), _chosen
    torch.set_num_threads(count)
    _chosen = count
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _chosen = outer


@contextmanager
def map_in_threads(count: int) -> Iterator[Mapped]:
    """Open a `map` that works in as many threads, each of which computes alone.

    They wait for each other once in a call, not in every operation, and are fast where another
    process has one of the cores, too. What is computed does not depend on their number.
    """
    with use_threads(1), ThreadPoolExecutor(count) as pool:
        yield pool.map


def _measured() -> int:
    """The fastest number of threads; the one in use unless another is clearly faster."""
    now = torch.get_num_threads()
    seconds: dict[int, list[float]] = {
        count: [] for count in sorted({1, now // 2, now - 1, now} - {0})
    }
    if len(seconds) == 1:
        return now
    for _ in range(_ROUNDS):
        for count, taken in seconds.items():
            taken.append(
                _trial(
                    count,
                    at_most=2
                    * min((min(times) for times in seconds.values() if times), default=1.0),
                )
            )
    torch.set_num_threads(now)
    medians = {count: statistics.median(taken) for count, taken in seconds.items()}
    best = min(medians, key=lambda count: medians[count])
    return best if medians[now] > _FASTER * medians[best] else now


def _trial(threads: int, at_most: float) -> float:
    """Seconds for one forward and backward of a small convolution with batch normalisation, up to
    about `at_most`.
    """
    torch.set_num_threads(threads)
    images = torch.ones(16, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    kernel = torch.ones(64, 64, 3, 3, requires_grad=True)
    began, done = time.perf_counter(), -1  # the first one sets up
    with torch.enable_grad():
        while done < 1 or (done < _REPEATS and time.perf_counter() - began < _REPEATS * at_most):
            if done == 0:
                started = time.perf_counter()
            F.batch_norm(
                F.conv2d(images, kernel, padding=1), None, None, training=True
            ).sum().backward()
            done += 1
    return (time.perf_counter() - started) / done
