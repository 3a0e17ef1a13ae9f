"""Batches of images in an order that depends only on the seed and the epoch: whole images, or crops
of their files.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from nearfar.data.decoding import pixels_of, reason, whole, whole_planes
from nearfar.data.images import Images
from nearfar.data.pictures import to_array
from nearfar.data.resources import in_order
from nearfar.data.value_range import PixelFormat
from nearfar.views.sampling import BOX_NUMBERS, sample_boxes

Range = tuple[float, float]
Crop = tuple[int, Range, Range]
Pixels = Shaped[Tensor, "batch channels size size"]
Made = TypeVar("Made")


def rank_rows(total: int, rank: int, world_size: int) -> slice:
    """The rows of a batch of `total` that belong to `rank`: contiguous, and of nearly equal number.

    Where `total` does not divide by `world_size`, the first ranks have one more each.
    """
    base, more = divmod(total, world_size)
    start = rank * base + min(rank, more)
    return slice(start, start + base + (rank < more))


def own_rows(batch_size: int, images: int, rank: int, world_size: int) -> slice:
    """The `rank_rows` of every batch from so many images; ValueError for numbers that do not go
    together.
    """
    if not 0 <= rank < world_size <= batch_size <= images:
        given = f"{rank}, {world_size}, {batch_size} and {images}"
        raise ValueError(f"need 0 <= rank < world_size <= batch_size <= images, got {given}")
    return rank_rows(batch_size, rank, world_size)


class Batches:
    """Shuffled batches: of stored images, gathered ahead by one thread, or of crops of their files,
    made by workers.

    `batch_size` counts the images of one step over all `world_size` processes; each gets its
    `rank_rows`. The order is a pure function of (seed, epoch). `len` is the number of steps in an
    epoch; an incomplete last batch is left out.

    crops: (size in pixels, range of the crop's share of the image's area, range of its width to
    height) for each view. The box of a view is a pure function of (seed, epoch, image, view):
    neither the number of workers nor of processes changes it; it is sampled as `make_views` samples
    its boxes. Crops are resized once, antialiased. workers: processes that decode for crops (0: in
    this one). pin: put batches in page-locked memory (for a GPU). Raises ValueError for crops of
    images that have no original files (arrays), and in an epoch for a file that has become
    unreadable.

    >>> batches = Batches(open_images("photos", image_size=16), batch_size=8, seed=0)
    >>> len(batches)
    3
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        crops: Sequence[Crop] | None = None,
        workers: int = 2,
        pin: bool = False,
    ) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.own = own_rows(batch_size, len(images), rank, world_size)
        self.workers, self.pin = workers, pin
        self.beside: Callable[[int], None] | None = None
        self.dataset: CropDataset | None = None
        if crops is not None:
            if images.originals is None:
                raise ValueError("these images have no original files to crop from")
            self.dataset = CropDataset(images.originals.__getitem__, images.form, seed, crops)

    def __len__(self) -> int:
        return len(self.images) // self.batch_size

    def epoch(
        self, epoch: int, start: int = 0
    ) -> Iterator[tuple[Pixels | list[Pixels], Int64[Tensor, " batch"]]]:
        """(images, their positions) for every step from `start` on: exactly the rest of an
        uninterrupted epoch.

        With crops one tensor for each view, uint8 or float in 0..1.
        """
        if self.dataset is None:
            yield from self._ahead(epoch, start, self._gathered)
            return
        steps = self._steps(epoch, start)
        for views, index, failed in loaded(self.dataset, epoch, steps, self.workers, self.pin):
            for row, why in failed.items():
                name = self.images.names[row]
                raise ValueError(
                    f"'{name}' was readable when the data was opened and is not now: {why}"
                )
            yield views, index

    def positions(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " batch"]]:
        """The positions of the images of every step from `start` on, for images that lie elsewhere
        already.
        """
        return self._ahead(epoch, start, lambda index: index.pin_memory() if self.pin else index)

    def _steps(self, epoch: int, start: int) -> Int64[Tensor, "steps own"]:
        order = torch.from_numpy(
            np.random.default_rng([self.seed, epoch]).permutation(len(self.images))
        )
        steps = order[: len(self) * self.batch_size].view(len(self), self.batch_size)
        return steps[start:, self.own]

    def _ahead(
        self, epoch: int, start: int, make: Callable[[Int64[Tensor, " batch"]], Made]
    ) -> Iterator[Made]:
        """Yield what a thread makes of the positions of every step, a few steps ahead."""

        def made(numbered: tuple[int, Int64[Tensor, " batch"]]) -> Made:
            step, index = numbered
            if self.beside is not None:
                self.beside(step)
            return make(index)

        steps = enumerate(self._steps(epoch, start), epoch * len(self) + start)
        with contextlib.closing(in_order(([numbered] for numbered in steps), made, 1)) as ahead:
            for [batch] in ahead:
                yield batch

    def _gathered(self, index: Int64[Tensor, " batch"]) -> tuple[Pixels, Int64[Tensor, " batch"]]:
        pixels = self.images.gather(index)
        return pixels.pin_memory() if self.pin else pixels, index


def loaded(
    dataset: CropDataset, epoch: int, steps: Iterable[Sequence[int] | Any], workers: int, pin: bool
) -> Iterator[tuple[Any, Int64[Tensor, " batch"], dict[int, str]]]:
    """Iterate over the crops of the images of every step, their positions, and why some of them
    cannot be read.
    """
    return iter(
        DataLoader(
            dataset,
            batch_sampler=([(epoch, int(i)) for i in index] for index in steps),
            num_workers=workers,
            collate_fn=dataset.join,
            pin_memory=pin,
            generator=torch.Generator(),  # or each epoch would take numbers from the global one
        )
    )


class CropDataset(Dataset[Any]):
    """Dataset of the crops of each image, by (epoch, position): one for every view, or its pixels
    without `crops`.

    get: gives the encoded image at a position.
    """

    def __init__(
        self,
        get: Callable[[int], bytes | str],
        form: PixelFormat,
        seed: int,
        crops: Sequence[Crop] | None,
    ) -> None:
        for size, scale, ratio in crops or ():
            if size < 1 or not 0 < scale[0] <= scale[1] <= 1 or not 0 < ratio[0] <= ratio[1]:
                raise ValueError(
                    f"a crop needs size >= 1, 0 < scale <= 1 and ratio > 0, got "
                    f"{(size, scale, ratio)}"
                )
        if crops is not None and not crops:
            raise ValueError("crops must name at least one view")
        self.get, self.form, self.seed, self.crops = get, form, seed, crops
        if (
            crops is not None
        ):  # decoding may shrink a JPEG: the smallest crop still has the pixels of its view
            self.at_least = math.ceil(
                max(size * math.sqrt(max(r[1], 1 / r[0]) / s[0]) for size, s, r in crops)
            )

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, list[Tensor] | str]:
        epoch, index = key
        data = self.get(index)
        try:
            if self.crops is None:
                return index, [pixels_of(data, self.form)]
            return index, self._views(self._whole(data), epoch, index)
        except Exception as error:  # decoders raise anything on damaged data
            return index, reason(error)

    def _views(self, image: Image.Image | Tensor, epoch: int, index: int) -> list[Tensor]:
        height, width = (
            image.shape[1:] if isinstance(image, Tensor) else (image.height, image.width)
        )
        views = []
        for view, (size, scale, ratio) in enumerate(self.crops or ()):
            state = np.random.SeedSequence([self.seed, epoch, index, view]).generate_state(
                1, np.uint64
            )
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
                views.append(torch.tensor(to_array(smaller, self.form.channels)))
        return views

    def _whole(self, data: bytes | str) -> Image.Image | Shaped[Tensor, "channels height width"]:
        """A Pillow image of 8 bits, or the planes of any other."""
        _, channels, value_range = self.form
        if value_range is not None:
            return whole_planes(data, channels, value_range)
        return whole(data, channels, value_range, self.at_least)

    def join(
        self, items: list[tuple[int, list[Tensor] | str]]
    ) -> tuple[Any, Tensor, dict[int, str]]:
        """One batch; another image stands in for one that cannot be read. A process may have no
        share of the last one.

        Views are a list with one tensor for each; without crops there is one tensor.
        """
        failed = {index: made for index, made in items if isinstance(made, str)}
        whole = [(index, made) for index, made in items if not isinstance(made, str)]
        if whole:
            spare = itertools.cycle(whole)
            items = [next(spare) if index in failed else (index, made) for index, made in items]
            views = [torch.stack(crops) for crops in zip(*(made for _, made in items), strict=True)]
        else:
            kind = torch.uint8 if self.form.value_range is None else torch.float32
            sizes = [self.form.size] if self.crops is None else [size for size, _, _ in self.crops]
            views = [torch.empty(0, self.form.channels, size, size, dtype=kind) for size in sizes]
        index = torch.tensor([index for index, _ in items], dtype=torch.int64)
        return views if self.crops is not None else views[0], index, failed
