"""Batches of images in an order that depends only on the seed and the epoch: whole images, or crops of their files."""

from __future__ import annotations

import itertools
import math
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from nearfar.data.decoding import PICTURE, pixels_of, reason, to_array, to_pil, whole_planes
from nearfar.data.images import Images
from nearfar.views.sampling import BOX_NUMBERS, sample_boxes

AHEAD = 2  # batches that wait ready at most
Range = tuple[float, float]
Crop = tuple[int, Range, Range]


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
    pin: put batches in page-locked memory (for CUDA).
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
    ) -> None:
        self.images, self.pin = images, pin and torch.cuda.is_available()
        self.order = Order(len(images), batch_size, seed, rank, world_size, drop_last)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(
        self, epoch: int, start: int = 0
    ) -> Iterator[tuple[Shaped[Tensor, "batch channels size size"], Int64[Tensor, " batch"]]]:
        """(images, their positions) for every step from `start` on: exactly the rest of an uninterrupted epoch."""
        ready: queue.Queue[tuple[Tensor, Tensor] | BaseException | None] = queue.Queue(maxsize=AHEAD)
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


class CroppingBatches:
    """Batches of random-resized crops made from the original files, one per view, in worker processes.

    crops: (size in pixels, range of the crop's share of the image's area, range of its width to height) for each view.
    The box of a view is a pure function of (seed, epoch, image, view): neither the number of workers nor of processes
    changes it; it is sampled as `make_views` samples its boxes. Crops are resized once, antialiased. Order, `rank`,
    `world_size`, `drop_last`, `start` are as in `Batches`. workers: processes that decode (0: in this one). Raises
    ValueError for images that have no original files (arrays), and in an epoch for a file that has become unreadable.
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
        crops: Sequence[Crop],
        workers: int = 2,
        pin: bool = False,
    ) -> None:
        if images.originals is None:
            raise ValueError("these images have no original files to crop from; use Batches")
        self.images, self.workers, self.pin = images, workers, pin
        self.order = Order(len(images), batch_size, seed, rank, world_size, drop_last)
        get = images.originals.__getitem__
        self.takes = Takes(get, images.image_size, images.channels, images.value_range, seed, crops)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(
        self, epoch: int, start: int = 0
    ) -> Iterator[tuple[list[Shaped[Tensor, "batch channels size size"]], Int64[Tensor, " batch"]]]:
        """(one tensor per view, uint8 or float in 0..1, the images' positions) for every step from `start` on."""
        for views, index, failed in loaded(self.takes, epoch, self.order.steps(epoch, start), self.workers, self.pin):
            for row, why in failed.items():
                name = self.images.names[row]
                raise ValueError(f"'{name}' was readable when the data was opened and is not now: {why}")
            yield views, index


def loaded(
    takes: Takes, epoch: int, steps: Iterable[Sequence[int] | Any], workers: int, pin: bool
) -> Iterator[tuple[Any, Int64[Tensor, " batch"], dict[int, str]]]:
    """What `Takes` makes of the images of every step, their positions, and why some of them cannot be read."""
    return iter(
        DataLoader(
            takes,
            batch_sampler=([(epoch, int(i)) for i in index] for index in steps),
            num_workers=workers,
            collate_fn=takes.join,
            pin_memory=pin and torch.cuda.is_available(),
            generator=torch.Generator(),  # or each epoch would take numbers from the global one
        )
    )


class Takes(Dataset[Any]):
    """What a batch takes of each image, by (epoch, position): a crop for every view, or its pixels without `crops`.

    get: gives the encoded image at a position.
    """

    def __init__(
        self,
        get: Callable[[int], bytes | str],
        image_size: int,
        channels: int,
        value_range: list[float] | None,
        seed: int,
        crops: Sequence[Crop] | None,
    ) -> None:
        for size, scale, ratio in crops or ():
            if size < 1 or not 0 < scale[0] <= scale[1] <= 1 or not 0 < ratio[0] <= ratio[1]:
                raise ValueError(f"a crop needs size >= 1, 0 < scale <= 1 and ratio > 0, got {(size, scale, ratio)}")
        if crops is not None and not crops:
            raise ValueError("crops must name at least one view")
        self.get, self.seed, self.crops = get, seed, crops
        self.image_size, self.channels, self.value_range = image_size, channels, value_range
        if (
            crops is not None
        ):  # decoding may shrink a JPEG as long as the smallest crop still has the pixels of its view
            self.at_least = math.ceil(max(size * math.sqrt(max(r[1], 1 / r[0]) / s[0]) for size, s, r in crops))

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, list[Tensor] | str]:
        epoch, index = key
        data = self.get(index)
        try:
            if self.crops is None:
                return index, [pixels_of(data, self.image_size, self.channels, self.value_range)]
            return index, self._views(self._whole(data), epoch, index)
        except Exception as error:  # decoders raise anything on damaged data
            return index, reason(error)

    def _views(self, image: Image.Image | Tensor, epoch: int, index: int) -> list[Tensor]:
        height, width = image.shape[1:] if isinstance(image, Tensor) else (image.height, image.width)
        views = []
        for view, (size, scale, ratio) in enumerate(self.crops or ()):
            state = np.random.SeedSequence([self.seed, epoch, index, view]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state[0]))
            uniform = torch.rand(1, BOX_NUMBERS, generator=generator, dtype=torch.float64)
            [(top, left, tall, wide)] = sample_boxes(uniform, height, width, scale, ratio).tolist()
            if isinstance(image, Tensor):
                box = image[None, :, top : top + tall, left : left + wide]
                [crop] = F.interpolate(box, size=(size, size), mode="bilinear", antialias=True)
                views.append(crop)
            else:
                part = image.crop((left, top, left + wide, top + tall))
                smaller = part.resize((size, size), Image.Resampling.BILINEAR)
                views.append(torch.tensor(to_array(smaller, self.channels)))
        return views

    def _whole(self, data: bytes | str) -> Image.Image | Shaped[Tensor, "channels height width"]:
        """A Pillow image of 8 bits, or the planes of any other."""
        if self.value_range is not None or self.channels not in PICTURE:
            return whole_planes(data, self.channels, self.value_range)
        image = to_pil(data, self.at_least)
        return image.convert("L") if self.channels == 1 else image

    def join(self, items: list[tuple[int, list[Tensor] | str]]) -> tuple[Any, Tensor, dict[int, str]]:
        """One batch; another image stands in for one that cannot be read. A process may have no share of the last one.

        Views are a list with one tensor for each; without crops there is one tensor.
        """
        failed = {index: made for index, made in items if isinstance(made, str)}
        whole = [(index, made) for index, made in items if not isinstance(made, str)]
        if whole:
            spare = itertools.cycle(whole)
            items = [next(spare) if index in failed else (index, made) for index, made in items]
            views = [torch.stack(crops) for crops in zip(*(made for _, made in items), strict=True)]
        else:
            kind = torch.uint8 if self.value_range is None else torch.float32
            sizes = [self.image_size] if self.crops is None else [size for size, _, _ in self.crops]
            views = [torch.empty(0, self.channels, size, size, dtype=kind) for size in sizes]
        index = torch.tensor([index for index, _ in items], dtype=torch.int64)
        return views if self.crops is not None else views[0], index, failed
