"""`Batches`: shuffled batches of images in an order that depends only on the seed and the epoch."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from nearfar.data.images import Images


def rank_rows(total: int, rank: int, world_size: int) -> slice:
    """The rows of a batch of `total` that belong to `rank`: contiguous, and of nearly equal number.

    Where `total` does not divide by `world_size`, the first ranks have one more each.
    """
    base, more = divmod(total, world_size)
    start = rank * base + min(rank, more)
    return slice(start, start + base + (rank < more))


class Order:
    """Which images make up which step: a permutation per epoch, a pure function of (seed, epoch), cut into batches."""

    def __init__(
        self, count: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1, drop_last: bool = True
    ) -> None:
        if batch_size < 1 or batch_size > count:
            raise ValueError(f"batch_size must lie between 1 and the number of images ({count}), got {batch_size}")
        if not 0 <= rank < world_size or batch_size < world_size:
            raise ValueError(f"need 0 <= rank < world_size <= batch_size, got {rank}, {world_size}, {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last

    def __len__(self) -> int:
        return self.count // self.batch_size if self.drop_last else -(-self.count // self.batch_size)

    def steps(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " batch"]]:
        """This rank's image positions for step `start` and those after it."""
        permutation = torch.from_numpy(np.random.default_rng([self.seed, epoch]).permutation(self.count))
        for step in range(start, len(self)):
            batch = permutation[step * self.batch_size : (step + 1) * self.batch_size]
            yield batch[rank_rows(len(batch), self.rank, self.world_size)]


class Batches:
    """Shuffled batches of stored images, gathered ahead by one thread.

    `batch_size` counts the images of one step over all `world_size` processes; each gets its `rank_rows`.
    `len` is the number of steps in an epoch; with drop_last the incomplete last batch is left out.
    pin: put batches in page-locked memory (for CUDA). ahead: how many batches wait ready at most.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = True,
        *,
        pin: bool = False,
        ahead: int = 2,
    ) -> None:
        self.images, self.pin, self.ahead = images, pin and torch.cuda.is_available(), ahead
        self.order = Order(len(images), batch_size, seed, rank, world_size, drop_last)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(
        self, epoch: int, start: int = 0
    ) -> Iterator[tuple[Shaped[Tensor, "batch channels size size"], Int64[Tensor, " batch"]]]:
        """(images, their positions) for every step from `start` on: exactly the rest of an uninterrupted epoch."""
        ready: queue.Queue[tuple[Tensor, Tensor] | BaseException | None] = queue.Queue(maxsize=self.ahead)
        stop = threading.Event()

        def put(item: tuple[Tensor, Tensor] | BaseException | None) -> None:
            while not stop.is_set():
                try:
                    return ready.put(item, timeout=0.1)
                except queue.Full:
                    continue

        def gather() -> None:
            try:
                for index in self.order.steps(epoch, start):
                    if stop.is_set():
                        return
                    pixels = self.images.gather(index)
                    put((pixels.pin_memory() if self.pin else pixels, index))
                put(None)
            except BaseException as error:
                put(error)

        thread = threading.Thread(target=gather, name="nearfar-batches", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            if not sys.is_finalizing():  # at the end of Python 3.13 a daemon thread never returns
                thread.join()
