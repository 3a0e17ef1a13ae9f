"""Images in WebDataset tars that are read in passing, for data larger than the disk or its cache, and their batches."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from nearfar.atomic import replacing
from nearfar.data import cache
from nearfar.data.batches import Crop, CropViews, rank_rows
from nearfar.data.cache import Progress
from nearfar.data.decoding import pixels_of, reason
from nearfar.data.encoded import in_memory
from nearfar.data.images import Images
from nearfar.data.opening import check_size
from nearfar.data.sources import describe, encoded_source
from nearfar.data.sources.rows import HUB
from nearfar.data.sources.splits import choose_splits, prefix
from nearfar.data.sources.tars import HubTars, Tars, examples, opened
from nearfar.data.table import digest, digest_of_file, printable
from nearfar.data.value_range import EIGHT_BITS, ValueRange

HEAD = 512  # images at the beginning that are decoded in memory
CHUNK = 64  # images that are read one after the other
FORMAT = 2  # raise it when the kept table means something else
_READ_WHOLE = 2**33  # bytes of tars, up to which all count for the table of a stream
_ENDS = 2**12  # bytes

Failed = list[tuple[str, str]]


@dataclass(frozen=True)
class Chunks:
    """Rows of a stream's table that are read one after the other, from `first` on, so many as `count` says."""

    first: Int64[np.ndarray, " chunks"]
    count: Int64[np.ndarray, " chunks"]

    def without(self, images: int) -> Chunks:
        """All but so many of the first images."""
        gone = np.clip(images - self.first, 0, self.count)
        left = gone < self.count
        return Chunks((self.first + gone)[left], (self.count - gone)[left])


class Stream:
    """Images of one size in tars, of which nothing is kept but where each lies.

    - `head`: the first 512 images, decoded; `mean`, `std`, `image_size` and `channels` are theirs
    - `skipped`: (name, reason) of what is damaged in the tars and of what cannot be decoded of the head
    - `side`: pixels of the shorter side of the first image, before it was resized
    - `split`, `source`: as of `Images`
    - `table`: a row for each tar with its digest; beyond 8 GiB by sizes and ends, so that not every change is noticed

    `len` is the number of images; `StreamBatches` reads them.
    """

    def __init__(
        self, files: list[str], places: pyarrow.Table, head: Images, rows: list[int], side: int, table: pyarrow.Table
    ) -> None:
        self.files, self.places, self.head, self.rows, self.side, self.table = files, places, head, rows, side, table
        self.chunks = _chunks(places["shard"].to_numpy())
        self.image_size, self.channels, self.split = head.image_size, head.channels, head.split
        self.source, self.skipped, self.value_range = head.source, head.skipped, head.value_range

    def __len__(self) -> int:
        return int(self.chunks.count.sum())

    def __repr__(self) -> str:
        shape = f"{len(self)} images, {self.channels} x {self.image_size} x {self.image_size}"
        return f"Stream({shape}, {len(self.files)} tars)"

    @property
    def mean(self) -> list[float]:
        return self.head.mean

    @property
    def std(self) -> list[float]:
        return self.head.std

    def split_holdout(self, count: int, seed: int) -> tuple[Stream, Images]:
        """(the rest, the first `count` images of the head); ValueError for more than there are in it."""
        if not 0 <= count <= len(self.head):
            raise ValueError(f"of a stream 0 to {len(self.head)} images can be held out, the first ones, not {count}")
        rest = self.chunks.without(self.rows[count - 1] + 1) if count else self.chunks
        other = copy.copy(self)
        other.chunks = rest
        return other, self.head.subset(range(count))

    def normalised_by(self, mean: Sequence[float], std: Sequence[float]) -> Stream:
        """The same images with another `mean` and `std`; ValueError unless there is one number for each channel."""
        other = copy.copy(self)
        other.head = self.head.normalised_by(mean, std)
        return other

    def read(self, chunk: int, start: int, stop: int) -> Iterator[tuple[int, str, bytes]]:
        """(number, name, encoded image) of the images `start` to `stop` of a chunk."""
        first = int(self.chunks.first[chunk])
        return _read(self.files, self.places, first + start, first + stop)


def open_stream(
    source: Any,
    *,
    split: str | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    value_range: ValueRange = None,
    show_channels: Sequence[int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Stream:
    """Open tars to read in passing; see `open_images` for the arguments.

    All headers of the tars are read once; where the images lie is kept in the cache. Size and channels are chosen as by
    `open_images`, from the head alone. Raises ValueError for anything but tars, and for a
    value range or channels to show: all images of a stream become pictures of 8 bits.
    """
    check_size(image_size)
    if value_range not in (None, EIGHT_BITS) or show_channels is not None:
        raise ValueError("--value-range and --show-channels do not go with --stream, whose images become 8 bits")
    name = describe(source)
    found = HubTars(name) if isinstance(source, str) and name.startswith(HUB) else encoded_source(source)
    if not isinstance(found, Tars) or not found.splits:
        raise ValueError(f"a stream is read from one tar or folder of tars in WebDataset form, and {name} is none")
    splits = choose_splits(found.splits, split, name)
    names = [one for part in splits for one in found.splits[part]]
    folder = Path(cache_dir).expanduser() if cache_dir is not None else cache.default_folder()
    places, problems = _places(found, splits, folder / "streams", progress)
    if not len(places):
        raise ValueError(f"'{name}' holds no images" + "".join(f"; {one}: {why}" for one, why in problems[:1]))
    files = [found.path(one) for one in names]
    first = list(_read(files, places, 0, min(HEAD, len(places))))
    head = in_memory([(one, data) for _, one, data in first], name, image_size, channels, EIGHT_BITS)
    assert head.table is not None
    rows = np.flatnonzero(head.table["problem"].is_null().to_numpy()).tolist()
    side = min(head.table["width"][rows[0]].as_py(), head.table["height"][rows[0]].as_py())
    head.skipped = [*found.problems, *problems, *head.skipped]
    head.split, head.source = splits[0] or None if len(splits) == 1 else None, name
    return Stream(files, places, head, rows, side, _marks(found, names))


def _chunks(shard: np.ndarray) -> Chunks:
    """Pieces of at most `CHUNK` rows of one tar."""
    starts = np.flatnonzero(np.diff(shard, prepend=-1))
    ends = np.append(starts[1:], len(shard))
    first = np.concatenate([np.arange(start, end, CHUNK) for start, end in zip(starts, ends, strict=True)])
    return Chunks(first, np.diff(np.append(first, len(shard))))


def _places(
    tars: Tars, splits: Sequence[str], folder: Path, progress: Progress | None
) -> tuple[pyarrow.Table, list[tuple[str, str]]]:
    """Where the images of the tars are, from the cache or from their headers; and what is damaged.

    The table has a row for each image: the number of its tar, `place` and `bytes` in that, and its name.
    """
    files = [(split, one) for split in splits for one in tars.splits[split]]
    marks = [tars.stamp(one) for _, one in files]
    home = folder / f"{cache.key(['stream', FORMAT, str(tars.root), files, marks])}.arrow"
    with cache.building(home):
        try:
            table = pyarrow.feather.read_table(home, memory_map=True)
            return table, [(name, why) for name, why in json.loads(table.schema.metadata[b"problems"])]
        except (OSError, ValueError, TypeError, KeyError, pyarrow.ArrowException):
            pass
        problems, columns = list[tuple[str, str]](), tuple[list[Any], ...]([] for _ in range(4))
        for shard, (split, one) in enumerate(files):
            path = tars.path(one)
            with opened(path) as file:
                for example in examples(file, path, one):
                    image = example.image()
                    if image is None or example.wrong():
                        problems.append((printable(example.name), example.wrong()))
                        continue
                    for column, value in zip(columns, (shard, *image, prefix(split) + example.name), strict=True):
                        column.append(value)
                    if progress is not None and len(columns[0]) % 1000 == 0:
                        progress(len(columns[0]), None)
        *numbers, names = columns
        table = pyarrow.table(
            {
                name: pyarrow.array(own, pyarrow.int64())
                for name, own in zip(("shard", "place", "bytes"), numbers, strict=True)
            }
        )
        table = table.append_column("name", pyarrow.array([printable(name) for name in names], pyarrow.string()))
        table = table.replace_schema_metadata({"problems": json.dumps(problems)})
        with replacing(home) as unfinished:
            pyarrow.feather.write_feather(table, unfinished)
    return table, problems


def _marks(tars: Tars, names: list[str]) -> pyarrow.Table:
    """The table of a stream: what each tar is, the same for a copy."""
    if isinstance(tars, HubTars):
        marks = [tars.marks[name] for name in names]
    else:
        sizes = [os.path.getsize(tars.path(name)) for name in names]
        whole = sum(sizes) <= _READ_WHOLE
        marks = [
            digest_of_file(tars.path(name)) if whole else _ends(tars.path(name), size)
            for name, size in zip(names, sizes, strict=True)
        ]
    return pyarrow.table({"name": [printable(name) for name in names], "digest": marks})


def _ends(path: str, size: int) -> str:
    with open(path, "rb") as file:
        start = file.read(_ENDS)
        file.seek(max(0, size - _ENDS))
        return digest([str(size).encode(), start, file.read()])


def _read(files: list[str], places: pyarrow.Table, start: int, stop: int) -> Iterator[tuple[int, str, bytes]]:
    rows = places.slice(start, stop - start)
    shards, *columns = (rows[name].to_pylist() for name in ("shard", "place", "bytes", "name"))
    for shard in dict.fromkeys(shards):
        with opened(files[shard]) as file:
            for number, (own, place, size, name) in enumerate(zip(shards, *columns, strict=True), start):
                if own != shard:
                    continue
                file.seek(place)
                data = file.read(size)
                if len(data) < size:
                    path = files[shard]
                    raise ValueError(
                        f"'{path}' has changed since it was opened: some of its images are no longer there"
                    )
                yield number, name, data


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
        self.numbers, names = [number for number, _, _ in read], [name for _, name, _ in read]
        self.names, self.encoded, self.epoch, self.stream = names, [data for _, _, data in read], epoch, stream
        self.views = None if crops is None else CropViews(self.encoded, names, stream.channels, seed, crops, None)

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
