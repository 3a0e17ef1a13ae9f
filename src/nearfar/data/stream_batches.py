"""`StreamBatches`: batches from a `Stream`, in an order that depends only on the seed and the place in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from nearfar.data.columns import printable
from nearfar.data.crops import Crop, _Views
from nearfar.data.loader import rank_rows
from nearfar.data.streams import Stream, reason
from nearfar.data.wide import pixels_of

Failed = list[tuple[str, str]]


class StreamBatches:
    """Batches from a stream: crops of its images, one per view, or whole images where `crops` is None.

    In every pass the pieces of 64 images that a stream consists of are shuffled, and cut evenly among the processes and
    the workers of each; so every image is seen once, but for the incomplete last batch. A worker reads `buffer` images
    at a time (a multiple of its share of a batch), shuffles them and makes batches of them. All of this is a pure
    function of the seed and the step: to go on, nothing else is needed, and at most one buffer is read again.

    steps: of an epoch, which then may end within a pass or after several. `len` is the steps of an epoch. failed:
    called with the name of an image that cannot be decoded, and why; the next one of the buffer that can be is taken
    in its place. Other arguments as of `CroppingBatches`; each of `workers` (0: this process) reads for itself.
    Raises ValueError for fewer images than a batch, and in an epoch for tars that have changed.
    """

    def __init__(
        self,
        stream: Stream,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        crops: Sequence[Crop] | None = None,
        workers: int = 2,
        pin: bool = False,
        buffer: int = 1024,
        steps: int | None = None,
        failed: Callable[[str, str], None] | None = None,
    ) -> None:
        if not 1 <= batch_size <= len(stream):
            raise ValueError(
                f"batch_size must lie between 1 and the number of images ({len(stream)}), got {batch_size}"
            )
        self.steps_of_a_pass = len(stream) // batch_size
        self.steps = steps or self.steps_of_a_pass
        own = rank_rows(batch_size, rank, world_size)
        lanes = max(1, workers)
        batch = own.stop - own.start
        self.order = _Order(
            len(stream), seed, rank, self.steps_of_a_pass, own.start, batch, lanes, max(1, buffer // batch)
        )
        self.reader = _Reader(stream, self.order, None if crops is None else list(crops))
        self.workers, self.pin, self.failed = workers, pin and torch.cuda.is_available(), failed

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Int64[Tensor, " batch"]]]:
        """(crops by view, or pixels, and the numbers of the images) for every step from `start` on."""
        step, end = epoch * self.steps + start, (epoch + 1) * self.steps
        while step < end:
            number, first = divmod(step, self.steps_of_a_pass)
            last = min(self.steps_of_a_pass, first + end - step)
            yield from self._part_of_a_pass(number, first, last)
            step += last - first

    def _part_of_a_pass(self, number: int, first: int, last: int) -> Iterator[tuple[Any, Tensor]]:
        loader: DataLoader[Any] = DataLoader(
            _Part(self.reader, number, first, last),
            batch_size=None,
            num_workers=self.workers,
            collate_fn=_as_it_is,
            pin_memory=self.pin,
            generator=torch.Generator(),  # or each epoch would take numbers from the global one
        )
        for views, index, failed in loader:
            if self.failed is not None:
                for name, why in failed:
                    self.failed(name, why)
            yield views, index


@dataclass(frozen=True)
class _Order:
    """Which images a process sees when: the shuffled images of a pass are cut among processes, and then among lanes.

    A lane is what one worker reads: of every `lanes` steps one, and for them `block` batches at a time.
    """

    images: int
    seed: int
    rank: int
    steps: int
    before: int  # rows of a batch that belong to processes before this one
    batch: int  # rows of this process
    lanes: int
    block: int

    def of_step(self, step: int) -> tuple[int, int, int]:
        """The lane of a step, the block in it, and the batch in that."""
        return step % self.lanes, *divmod(step // self.lanes, self.block)

    def block_range(self, lane: int, block: int) -> tuple[int, int]:
        """The places of a block's images among the shuffled images of a pass."""
        steps = [len(range(one, self.steps, self.lanes)) for one in range(lane + 1)]
        start = self.steps * self.before + self.batch * sum(steps[:lane])
        length = self.block * self.batch
        return start + block * length, start + min((block + 1) * length, steps[lane] * self.batch)


@dataclass
class _Reader:
    stream: Stream
    order: _Order
    crops: list[Crop] | None
    shuffled: tuple[int, np.ndarray, np.ndarray] = field(default=(-1, np.empty(0), np.empty(0)))

    def block(self, number: int, lane: int, block: int) -> _Block:
        """Read and shuffle a block of the pass of that number."""
        if self.shuffled[0] != number:
            chunks = np.random.default_rng([self.order.seed, number]).permutation(len(self.stream.chunks.count))
            self.shuffled = number, chunks, self.stream.chunks.count[chunks].cumsum()
        _, chunks, ends = self.shuffled
        start, stop = self.order.block_range(lane, block)
        read: list[tuple[int, str, bytes]] = []
        for place in range(int(np.searchsorted(ends, start, side="right")), len(chunks)):
            began = int(ends[place] - self.stream.chunks.count[chunks[place]])
            if began >= stop:
                break
            read += self.stream.read(int(chunks[place]), max(start - began, 0), min(stop, int(ends[place])) - began)
        address = [self.order.seed, number, self.order.rank, lane, block]
        mixed = np.random.default_rng(address).permutation(len(read))
        seed = int(np.random.SeedSequence(address).generate_state(1, np.uint32)[0])
        return _Block([read[row] for row in mixed], number, seed, self.stream, self.crops)


class _Block:
    """Encoded images in the order in which they are used."""

    def __init__(
        self, read: list[tuple[int, str, bytes]], epoch: int, seed: int, stream: Stream, crops: list[Crop] | None
    ) -> None:
        self.numbers, names = [number for number, _, _ in read], [printable(name) for _, name, _ in read]
        self.names, self.encoded, self.epoch, self.stream = names, [data for _, _, data in read], epoch, stream
        self.views = None if crops is None else _Views(self.encoded, names, stream.channels, seed, crops, None)

    def batch(self, start: int, stop: int) -> tuple[Any, Tensor, Failed]:
        failed: Failed = []
        items = [self._readable(row, failed) for row in range(start, stop)]
        index = torch.tensor([self.numbers[row] for row, _ in items], dtype=torch.int64)
        if self.views is None:
            return torch.stack([made for _, made in items]), index, failed
        return self.views.join([(made, row) for row, made in items])[0], index, failed

    def _readable(self, row: int, failed: Failed) -> tuple[int, Any]:
        """What is made of an image, or of the next one that can be read."""
        for other in [*range(row, len(self.names)), *range(row)]:
            try:
                return other, self._made(other)
            except Exception as error:  # decoders raise anything on damaged data
                failed.append((self.names[other], reason(error.__cause__ or error)))
        raise ValueError(f"none of {len(self.names)} images that follow each other can be read: {self.names[row]}")

    def _made(self, row: int) -> Any:
        if self.views is not None:
            return self.views[self.epoch, row][0]
        return pixels_of(self.encoded[row], self.stream.image_size, self.stream.channels, None)


class _Part(IterableDataset[Any]):
    """The batches of some steps of a pass; a worker makes those of its lane."""

    def __init__(self, reader: _Reader, number: int, first: int, last: int) -> None:
        self.reader, self.number, self.first, self.last = reader, number, first, last

    def __iter__(self) -> Iterator[tuple[Any, Tensor, Failed]]:
        worker, order = get_worker_info(), self.reader.order
        held, block = None, None
        for step in range(self.first + (worker.id if worker else 0), self.last, order.lanes):
            lane, wanted, inside = order.of_step(step)
            if held != wanted or block is None:
                block = None  # before the next one is read: only one is held
                held, block = wanted, self.reader.block(self.number, lane, wanted)
            yield block.batch(inside * order.batch, (inside + 1) * order.batch)


def _as_it_is(item: Any) -> Any:
    return item
