"""Images in WebDataset tars that are read in passing, for data larger than the disk or its cache,
and their batches.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
from jaxtyping import Int64
from torch import Tensor

from nearfar.data.batches import Crop, CropDataset, loaded, own_rows
from nearfar.data.cache import Store
from nearfar.data.decoding import raise_pixel_limit
from nearfar.data.images import Images
from nearfar.data.left_out import describe_left_out
from nearfar.data.opening import open_rows
from nearfar.data.scanning import Scanned
from nearfar.data.sources import describe
from nearfar.data.sources.concatenated import Concatenated, Part
from nearfar.data.sources.outside import Outside
from nearfar.data.sources.rows import HUB
from nearfar.data.sources.splits import choose_splits, say_splits
from nearfar.data.sources.tars import HubTars, Tars, opened
from nearfar.data.table import LIMIT, digest, digest_of_file, printable, readable, skipped
from nearfar.data.value_range import EIGHT_BITS, ValueRange, parse_request

HEAD = 512  # images at the beginning that are decoded in memory
CHUNK = 64  # images that are read one after the other
_READ_WHOLE = 2**33  # bytes of tars, up to which all count for the table of a stream
_ENDS = 2**12  # bytes


class _Head:
    """The first images of a stream, as a source."""

    def __init__(self, names: list[str], images: list[bytes]) -> None:
        self.names, self.images = names, images

    def scan(self) -> pyarrow.Table:
        return pyarrow.table({"name": self.names, "place": range(len(self.names))})

    def read(self, rows: pyarrow.Table) -> list[bytes]:
        return [self.images[place] for place in rows["place"].to_pylist()]


class Stream:
    """Images of one size in tars, of which nothing is stored but where each lies.

    - `head`: the first 512 images, decoded; `mean`, `std`, `image_size` and `channels` are theirs
    - `skipped`: (name, reason) of what is damaged in the tars and of what cannot be decoded of the
      head
    - `side`: pixels of the shorter side of the first image, before it was resized
    - `split`, `source`: as of `Images`
    - `table`: a row for each tar with its digest; beyond 8 GiB by sizes and ends, so that not every
      change is noticed

    `len` is the number of images; they are numbered as they lie in the tars, and `first` is the
    first one that is not held out. They are read in chunks of 64, of which `chunks_held` stay in
    memory. `StreamBatches` reads them.

    >>> stream = open_stream("photos.tar", image_size=32)
    >>> len(stream), stream.head.pixels.shape
    (25, torch.Size([25, 3, 32, 32]))
    """

    def __init__(
        self, tars: Tars, places: pyarrow.Table, head: Images, table: pyarrow.Table
    ) -> None:
        assert head.table is not None
        self.tars, self.places, self.head, self.table, self.first = tars, places, head, table, 0
        rows = readable(head.table)
        self.side = min(head.table[name][int(rows[0])].as_py() for name in ("width", "height"))
        self.form, self.split, self.source, self.skipped = (
            head.form,
            head.split,
            head.source,
            head.skipped,
        )
        self.image_size, self.channels, self.value_range = head.form
        self.mean, self.std = head.mean, head.std
        files = places["ref"].combine_chunks().dictionary_encode().indices.to_numpy()
        starts = np.flatnonzero(np.diff(files, prepend=-1))
        ends = np.append(starts[1:], len(places))
        self.chunks = np.concatenate(
            [np.arange(start, end, CHUNK) for start, end in zip(starts, ends, strict=True)]
        )
        self.chunks_held = 2
        self._held: dict[int, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self.places) - self.first

    def __repr__(self) -> str:
        shape = f"{len(self)} images, {self.channels} x {self.image_size} x {self.image_size}"
        return f"Stream({shape}, {len(self.table)} tars)"

    def encoded(self, number: int) -> bytes:
        """The encoded image of that number; ValueError if its tar has become shorter."""
        chunk = int(np.searchsorted(self.chunks, number, side="right")) - 1
        start, stop = np.append(self.chunks[chunk : chunk + 2], len(self.places))[:2].tolist()
        if chunk not in self._held:
            while len(self._held) >= self.chunks_held:
                del self._held[next(iter(self._held))]
            self._held[chunk] = _read(self.tars, self.places.slice(start, stop - start))
        return self._held[chunk][number - start]

    def split_holdout(self, count: int, seed: int) -> tuple[Stream, Images]:
        """(the rest, the first `count` images of the head); ValueError for more than there are in
        it.
        """
        if not 0 <= count <= len(self.head):
            raise ValueError(
                f"of a stream 0 to {len(self.head)} images can be held out, the first "
                f"ones, not {count}"
            )
        other = copy.copy(self)
        other.first = int(readable(self.head.table)[count - 1]) + 1 if count else 0
        return other, self.head.subset(range(count))

    @property
    def line(self) -> str:
        """The images found, in one line; of what cannot be decoded, the head alone is known."""
        line = f"{self.source}: {len(self)} images found"
        if self.skipped:
            line += f", {len(self.skipped)} left out: {describe_left_out(self.skipped)}"
        return line

    def normalised_by(self, mean: Sequence[float], std: Sequence[float]) -> Stream:
        """The same images with another `mean` and `std`; ValueError unless there is one number for
        each channel.
        """
        other = copy.copy(self)
        other.head = self.head.normalised_by(mean, std)
        other.mean, other.std = other.head.mean, other.head.std
        return other


def open_stream(
    source: Any,
    *,
    split: str | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    value_range: ValueRange = None,
    show_channels: Sequence[int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    max_pixels: int | None = None,
) -> Stream:
    """Open tars to read in passing; see `open_images` for the arguments.

    All headers of the tars are read once; where the images lie is saved in the cache. Size and
    channels are chosen as by `open_images`, from the head alone. Raises ValueError for anything but
    tars, and for a value range or channels to show: all images of a stream become pictures of 8
    bits.

    >>> open_stream("photos.tar", image_size=32).image_size
    32
    """
    raise_pixel_limit(max_pixels)
    form = parse_request(image_size, channels, EIGHT_BITS)
    if value_range not in (None, EIGHT_BITS) or show_channels is not None:
        raise ValueError(
            "`value_range` and `show_channels` do not go with `stream`, whose images become 8 bits"
        )
    scanned = scanned_stream(source, cache_dir)
    name, opened = scanned.name, scanned.sources[0]
    assert isinstance(opened, Tars)
    splits, table, places = _places(scanned, split)
    if split is None:
        say_splits(name, opened.splits)
    held = _first_images(scanned, places, HEAD)
    chosen = Concatenated([Part(held, name, name, [""], held.table)])
    head = open_rows(chosen, 1, form, Store(scanned.folder, LIMIT), name, cached=False)
    problems = [(printable(file), why) for file, why in opened.left_out(splits)]
    head.skipped = [*problems, *skipped(table), *head.skipped]
    head.split, head.source = splits[0] or None if len(splits) == 1 else None, name
    return Stream(
        opened,
        places,
        head,
        _marks(opened, [file for part in splits for file in opened.splits[part]]),
    )


def scanned_stream(source: Any, cache_dir: str | os.PathLike[str] | None = None) -> Scanned:
    """Return tars, ready to be scanned, headers of their images included; one that is already is
    returned as it is. Raises ValueError for anything but tars.
    """
    if isinstance(source, Scanned):
        return source
    on_hub = isinstance(source, str) and source.startswith(HUB)
    scanned = Scanned(HubTars(source) if on_hub else source, cache_dir=cache_dir)
    tars, scanned.name = scanned.sources[0], describe(source)
    if not isinstance(tars, Tars) or not tars.splits:
        raise ValueError(
            f"a stream is read from one tar or folder of tars in WebDataset form, and "
            f"{scanned.name} is none"
        )
    tars.headers = True
    return scanned


def glance(scanned: Scanned, split: str | None) -> tuple[int, pyarrow.Table]:
    """Return how many images a stream has, and a table of the first ones by their headers."""
    _, _, places = _places(scanned, split)
    return len(places), _first_images(scanned, places, CHUNK).table


def _places(scanned: Scanned, split: str | None) -> tuple[list[str], pyarrow.Table, pyarrow.Table]:
    """Return the splits to read, the table of their images, and where the readable ones lie."""
    tars = scanned.sources[0]
    assert isinstance(tars, Tars)
    splits = choose_splits(tars.splits, split, scanned.name)
    table = tars.table.filter(pc.is_in(tars.table["split"], pyarrow.array(splits)))
    places = table.take(readable(table)).select(["ref", "place", "bytes", "name"])
    if not len(places):
        raise ValueError(
            f"'{scanned.name}' holds no images"
            + "".join(f"; {': '.join(entry)}" for entry in skipped(table)[:1])
        )
    return splits, table, places


def _first_images(scanned: Scanned, places: pyarrow.Table, count: int) -> Outside:
    """Read the first images of a stream, as a source."""
    tars, first = scanned.sources[0], places.slice(0, count)
    assert isinstance(tars, Tars)
    return Outside(_Head(first["name"].to_pylist(), _read(tars, first)), scanned.name)


def _read(tars: Tars, places: pyarrow.Table) -> list[bytes]:
    """Encoded images, one tar after the other."""
    encoded = []
    columns = (places[name].to_pylist() for name in ("ref", "place", "bytes"))
    for ref, rows in groupby(zip(*columns, strict=True), itemgetter(0)):
        path = tars.path(os.fsdecode(ref))
        with opened(path) as file:
            for _, place, size in rows:
                file.seek(place)
                encoded.append(file.read(size))
                if len(encoded[-1]) < size:
                    raise ValueError(
                        f"'{path}' has changed since it was opened: some of its images are missing"
                    )
    return encoded


def _marks(tars: Tars, names: list[str]) -> pyarrow.Table:
    """The table of a stream: what each tar is, the same for a copy."""
    if isinstance(tars, HubTars):
        marks = [tars.marks[name] for name in names]
    else:
        paths = [tars.path(name) for name in names]
        whole = sum(map(os.path.getsize, paths)) <= _READ_WHOLE
        marks = [digest_of_file(path) for path in paths] if whole else []
        for path in () if whole else paths:
            size = os.path.getsize(path)
            with open(path, "rb") as file:
                start = file.read(_ENDS)
                file.seek(max(0, size - _ENDS))
                marks.append(digest([str(size).encode(), start, file.read()]))
    return pyarrow.table({"name": [printable(name) for name in names], "digest": marks})


class StreamBatches:
    """Batches from a stream: crops of its images, one per view, or whole images where `crops` is
    None.

    In every epoch the chunks of 64 images that a stream consists of are shuffled, and cut evenly
    among the processes and the workers of each; so every image is seen once, but for the incomplete
    last batch. A worker shuffles its images again, within every `buffer` of them, and makes batches
    of them. All of this is a pure function of the seed and the step: to go on, nothing else is
    needed, and at most one buffer is read again.

    failed: called with the name of an image that cannot be decoded, and why; another one of the
    batch is taken in its place. Other arguments as of `Batches`; each of `workers` (0: this
    process) reads for itself. Raises ValueError for fewer images than a batch, and in an epoch for
    tars that have changed and for a batch without a readable image.
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
        failed: Callable[[str, str], None] | None = None,
    ) -> None:
        self.seed, self.workers, self.buffer, self.failed = seed, workers, buffer, failed
        self.stream = copy.copy(stream)
        self.stream.chunks_held = buffer // CHUNK + 2
        self.own, self.pin = own_rows(batch_size, len(stream), rank, world_size), pin
        self.steps = len(stream) // batch_size
        self.dataset = CropDataset(self.stream.encoded, stream.form, seed, crops)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Int64[Tensor, " batch"]]]:
        """(crops by view, or pixels, and the numbers of the images) for every step from `start`
        on.
        """
        for made, index, failed in loaded(
            self.dataset, epoch, self._order(epoch)[start:], self.workers, self.pin
        ):
            for row, why in failed.items():
                name = self.stream.places["name"][row].as_py()
                if len(failed) == len(index):
                    raise ValueError(
                        f"none of the {len(index)} images of a batch can be read: {name}: {why}"
                    )
                if self.failed is not None:
                    self.failed(name, why)
            yield made, index

    def _order(self, epoch: int) -> Int64[np.ndarray, "steps batch"]:
        """This process's images for every step of an epoch."""
        stream, steps, batch = self.stream, self.steps, self.own.stop - self.own.start
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(len(stream.chunks))
        count = np.diff(np.append(stream.chunks, len(stream.places)))[shuffled]
        images = np.repeat(stream.chunks[shuffled] - (count.cumsum() - count), count) + np.arange(
            count.sum()
        )
        images = images[images >= stream.first][steps * self.own.start : steps * self.own.stop]
        order = np.empty((steps, batch), np.int64)
        block = max(1, self.buffer // batch) * batch
        lanes = max(
            1, self.workers
        )  # a worker makes one of so many batches, from chunks that no other one reads
        for lane in range(lanes):
            mine, images = np.split(images, [len(order[lane::lanes]) * batch])
            for start in range(0, len(mine), block):
                address = [self.seed, epoch, self.own.start, lane, start]
                np.random.default_rng(address).shuffle(mine[start : start + block])
            order[lane::lanes] = mine.reshape(-1, batch)
        return order
