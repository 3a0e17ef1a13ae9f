"""As many threads for torch as are fastest at the moment: on a busy machine fewer than there are cores."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F

SECONDS = 5.0
"""Time between two trials; it grows while other processes take cores, since a trial with too many threads is slow."""
_LONGEST = 40.0
_FASTER = 1.15  # how much faster another number of threads must be to be taken


class Threads:
    """Watches over the number of torch's threads.

    The threads of a step wait for each other hundreds of times. Where another process has one of the cores, each wait
    can last until the system gives the core back: on two cores two threads are then several times slower than one.
    So from time to time a small convolution is tried with all, one less, half of the threads and one, and the fastest
    number is kept; at the end of the `with` block all threads are there again, for who comes next. A number that the
    user chose by OMP_NUM_THREADS is left alone.
    """

    def __init__(self, device: str = "cpu") -> None:
        """device: what computes; only a CPU is watched over."""
        fixed = "OMP_NUM_THREADS" in os.environ or device != "cpu"
        self.before = torch.get_num_threads()
        self.most = 1 if fixed else self.before
        self.wait, self.tried = SECONDS, float("-inf")

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        if self.most > 1:
            torch.set_num_threads(self.before)

    def adapt(self) -> None:
        """Try other numbers of threads, if it is time to, and keep the fastest; called at every step."""
        if self.most == 1 or time.perf_counter() - self.tried < self.wait:
            return
        now = torch.get_num_threads()
        seconds: dict[int, float] = {}
        for count in sorted({1, self.most // 2, self.most - 1, self.most, now} - {0}):
            seconds[count] = _trial(count, at_most=2 * min(seconds.values(), default=1.0))
        best = min(seconds, key=lambda count: seconds[count])
        torch.set_num_threads(best if seconds[now] > _FASTER * seconds[best] else now)
        self.wait = SECONDS if torch.get_num_threads() == self.most else min(2 * self.wait, _LONGEST)
        self.tried = time.perf_counter()


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
