"""How many threads torch computes with: the fastest number, chosen once for a run, and now and then for features.

threadpoolctl and torch set a number that somebody knows; the fastest one on a shared machine has to be measured.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F

SECONDS = 5.0
"""Time between two trials; it grows while other processes take cores, since a trial with too many threads is slow."""
_LONGEST = 40.0
_FASTER = 1.15  # how much faster another number of threads must be to be taken
_ROUNDS = 5  # trials of each number before a run keeps one
_held = False  # whether `use_threads` holds the number


def fastest_threads() -> int:
    """Return the number of threads with the best median time: all, one less, half of them or one.

    The threads of a step wait for each other hundreds of times. Where another process has one of the cores, each wait
    can last until the system gives the core back: on two cores two threads are then several times slower than one.
    The number that the user chose by OMP_NUM_THREADS, or that is in use already, is not tried against others.
    """
    watch = Threads()
    return watch.before if watch.most == 1 else _fastest(watch.most, _ROUNDS)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with this number of threads in the `with` block, whatever the time or OMP_NUM_THREADS says."""
    global _held
    before, outer = torch.get_num_threads(), _held
    torch.set_num_threads(count)
    _held = True
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _held = outer


class Threads:
    """Adapts the number of torch's threads to the load of the machine while features are computed.

    From time to time a small convolution is tried with several numbers, and the fastest is kept; at the end of the
    `with` block all threads are there again, for who comes next. Sums of the forward pass rarely depend on the number,
    those of training do: a run keeps its number, see `use_threads`, and this class leaves it alone.
    """

    def __init__(self, device: str = "cpu") -> None:
        """device: what computes; only a CPU is watched over."""
        fixed = _held or "OMP_NUM_THREADS" in os.environ or device != "cpu"
        self.before = torch.get_num_threads()
        self.most = 1 if fixed else self.before
        self.wait, self.tried = SECONDS, float("-inf")

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        if self.most > 1:
            torch.set_num_threads(self.before)

    def adapt(self) -> None:
        """Try other numbers of threads, if it is time to, and keep the fastest; called at every batch."""
        if self.most == 1 or time.perf_counter() - self.tried < self.wait:
            return
        torch.set_num_threads(_fastest(self.most))
        self.wait = SECONDS if torch.get_num_threads() == self.most else min(2 * self.wait, _LONGEST)
        self.tried = time.perf_counter()


def _fastest(most: int, rounds: int = 1) -> int:
    """Return the fastest number of threads, the one in use unless another is clearly faster; it is left in use."""
    now = torch.get_num_threads()
    seconds: dict[int, list[float]] = {count: [] for count in sorted({1, most // 2, most - 1, most, now} - {0})}
    for _ in range(rounds):
        for count, taken in seconds.items():
            taken.append(_trial(count, at_most=2 * min((min(one) for one in seconds.values() if one), default=1.0)))
    torch.set_num_threads(now)
    medians = {count: statistics.median(taken) for count, taken in seconds.items()}
    best = min(medians, key=lambda count: medians[count])
    return best if medians[now] > _FASTER * medians[best] else now


def _trial(threads: int, at_most: float, repeats: int = 4) -> float:
    """Seconds for one forward and backward of a small convolution with batch normalisation, up to about `at_most`."""
    torch.set_num_threads(threads)
    images = torch.ones(16, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    kernel = torch.ones(64, 64, 3, 3, requires_grad=True)
    began, done = time.perf_counter(), -1  # the first one sets up
    with torch.enable_grad():
        while done < 1 or (done < repeats and time.perf_counter() - began < repeats * at_most):
            if done == 0:
                started = time.perf_counter()
            F.batch_norm(F.conv2d(images, kernel, padding=1), None, None, training=True).sum().backward()
            done += 1
    return (time.perf_counter() - started) / done
