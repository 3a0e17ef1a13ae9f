"""`Stream`: images in WebDataset tars that are read in passing, for data larger than the disk or its cache."""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from nearfar.data import cache, sources
from nearfar.data.building import USUAL, Progress
from nearfar.data.columns import printable
from nearfar.data.decode import formats, to_pil
from nearfar.data.fingerprint import Fingerprint
from nearfar.data.images import Images
from nearfar.data.locating import encoded_source
from nearfar.data.objects import describe, from_items
from nearfar.data.opening import CACHE_LIMIT, check_size
from nearfar.data.shard_files import hub_files, opened
from nearfar.data.stream_index import CHUNK, FORMAT, Chunks, indexed
from nearfar.data.tars import Tars, examples
from nearfar.data.value_range import EIGHT_BITS, ValueRange
from nearfar.messages import first_line

HEAD = 512  # images at the beginning that are decoded in memory


class Stream:
    """Images of one size in tars, of which nothing is kept but where every 64th begins.

    - `head`: the first 512 images, decoded; `mean`, `std`, `image_size` and `channels` are theirs
    - `skipped`: (name, reason) of what is damaged in the tars and of what cannot be decoded of the head
    - `side`: pixels of the shorter side of the first image, before it was resized
    - `split`, `source`: as of `Images`
    - `fingerprint`: of the tars; beyond 8 GiB by their sizes and ends, so that not every change is noticed

    `len` is the number of images; `StreamBatches` reads them.
    """

    def __init__(
        self, files: list[str], chunks: Chunks, head: Images, rows: list[int], side: int, fingerprint: Fingerprint
    ) -> None:
        self.files, self.chunks, self.head, self.rows = files, chunks, head, rows
        self.side, self.fingerprint = side, fingerprint
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
        return _read(self.files, self.chunks, chunk, start, stop)


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

    All headers are read once; where the images lie is kept in the cache, a few bytes for every 64 of them. Size and
    channels are chosen as by `open_images`, from the head alone. Raises ValueError for anything but tars, and for a
    value range or channels to show: all images of a stream become pictures of 8 bits.
    """
    check_size(image_size)
    if value_range not in (None, EIGHT_BITS) or show_channels is not None:
        raise ValueError("--value-range and --show-channels do not go with --stream, whose images become 8 bits")
    name = describe(source)
    found = HubTars(name) if isinstance(source, str) and name.startswith(sources.HUB) else encoded_source(source)
    if not isinstance(found, Tars) or not found.splits:
        raise ValueError(f"a stream is read from one tar or folder of tars in WebDataset form, and {name} is none")
    splits = sources.choose_splits(found.splits, split, name)
    names = [one for part in splits for one in found.splits[part]]
    files = [f"{found.root}/{one}" for one in names]
    folder = Path(cache_dir).expanduser() if cache_dir is not None else cache.default_folder()
    key = cache.key(["stream", FORMAT, CHUNK, f"{found.root}", found.states(splits)])
    chunks, problems = indexed(folder / "streams" / key, files, names, progress)
    if not len(chunks.count):
        raise ValueError(f"'{name}' holds no images" + "".join(f"; {one}: {why}" for one, why in problems[:1]))
    head, rows, side = _decoded_head(files, chunks, name, image_size, channels)
    head.skipped = [*found.problems, *problems, *head.skipped]
    head.split, head.source = splits[0] or None if len(splits) == 1 else None, name
    fingerprint = Fingerprint("file", len(names), dict(zip(names, found.marks(splits, folder), strict=True)))
    return Stream(files, chunks, head, rows, side, fingerprint)


class HubTars(Tars):
    """The tars of a data set on the Hub, which are not downloaded."""

    def __init__(self, name: str) -> None:
        address, self.files = hub_files(name, ".tar")
        splits = sources.shard_splits(list(self.files), name) if self.files else {}
        super().__init__(Path(), splits, sources.in_none(list(self.files), splits))
        sources.say_splits(name, splits)
        self.root = address  # type: ignore[assignment]

    def states(self, splits: Sequence[str]) -> list[Any]:
        return [self.files[name] for split in splits for name in self.splits[split]]

    def marks(self, splits: Sequence[str], folder: Path) -> list[str]:
        return self.states(splits)


def _read(files: list[str], chunks: Chunks, chunk: int, start: int, stop: int) -> Iterator[tuple[int, str, bytes]]:
    path, skip = files[chunks.shard[chunk]], int(chunks.skip[chunk])
    number = int(chunks.first[chunk]) + start
    with opened(path) as file:
        there = examples(file, path, os.path.basename(path), int(chunks.place[chunk]))
        sound = (example for example in there if not example.wrong())
        for example in islice(sound, skip + start, skip + stop):
            image = example.image()
            assert image is not None  # or something would be wrong
            yield number, example.name, image.bytes_in(file)
            number += 1
    if number < int(chunks.first[chunk]) + stop:
        raise ValueError(f"'{path}' has changed since it was opened: some of its images are no longer there")


def _decoded_head(
    files: list[str], chunks: Chunks, name: str, image_size: int | None, channels: int | None
) -> tuple[Images, list[int], int]:
    """The first images, decoded, which ones they are, and the shorter side of the first."""
    found: list[tuple[str, bytes]] = []
    for chunk in range(len(chunks.count)):
        stop = min(int(chunks.count[chunk]), HEAD - len(found))
        found += [(one, data) for _, one, data in _read(files, chunks, chunk, 0, stop)]
        if len(found) == HEAD:
            break
    pictures = _Pictures([data for _, data in found], 2 * (image_size or USUAL))
    head = from_items(pictures, name, image_size, channels, CACHE_LIMIT, None)
    rows = [int(number) for number in head.names]
    head.names = [printable(found[row][0]) for row in rows]
    head.skipped = [(printable(found[int(number)][0]), why) for number, why in head.skipped]
    with Image.open(io.BytesIO(found[rows[0]][1]), formats=formats()) as first:
        return head, rows, min(first.size)


class _Pictures(Sequence[Image.Image]):
    """Encoded images, each decoded when it is asked for."""

    def __init__(self, encoded: list[bytes], at_least: int) -> None:
        self.encoded, self.at_least = encoded, at_least

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        try:
            return to_pil(self.encoded[index], self.at_least)[0]
        except Exception as error:  # decoders raise anything on damaged data
            raise ValueError(reason(error)) from error


def reason(error: BaseException) -> str:
    """Why an image cannot be decoded, in one line that is the same every time."""
    unknown = isinstance(error, UnidentifiedImageError)  # it names an address in memory
    return "not an image of a known format" if unknown else first_line(error)
