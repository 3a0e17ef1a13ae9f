"""`Images`: decoded images with their names, labels and statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow
import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from nearfar.data.cache import moments_of, statistics
from nearfar.data.decoding import pixels_of
from nearfar.data.memory import usable_cores
from nearfar.data.table import Lookup, digest
from nearfar.data.value_range import floats
from nearfar.views import eight_bits, resize_square, with_channels

Originals = Sequence[bytes | str]


class Images:
    """Square images of one size; image i has the name `names[i]` and, where labelled, the label `labels[i]`.

    - `pixels` [images, channels, size, size], uint8, or uint16 whose full range stands for 0..1: memory-mapped where
      the source allows; else ValueError
    - `value_range`: what became 0 and 1, low and high of every channel in the source's own numbers; None for uint8
    - `labels` int64 [images] (-1: missing) or None; `class_names` or None
    - `skipped`: (name, reason) of every image that could not be read
    - `mean`, `std`: per channel in 0..1; a subset keeps those of the whole, so that it is normalised alike
    - `split`: the split that was read, or None
    - `shown`: the channels that pictures of them show, one or three; None: all of one or three
    - `source`: what was opened, in a few words; a path or name as it was given
    - `columns`: a table with a row for each image, what else a table of paths says of it; None for other sources
    - `table`: the table of the whole source, see `nearfar.data.table`; of arrays and objects only names and digests

    They can be pickled, for other processes: pixels in memory are sent along, a mapped cache is mapped again there.
    """

    def __init__(
        self,
        stored: Shaped[Tensor, "stored channels size size"] | None,
        *,
        names: list[str],
        image_size: int,
        channels: int,
        labels: Int64[np.ndarray, " images"] | None = None,
        class_names: list[str] | None = None,
        skipped: Sequence[tuple[str, str]] = (),
        statistics: tuple[list[float], list[float]] | None = None,
        originals: Callable[[], Originals] | None = None,
        split: str | None = None,
        rows: Int64[np.ndarray, " images"] | None = None,
        reopen: Callable[[], Tensor] | None = None,
        source: str = "images",
        columns: pyarrow.Table | None = None,
        value_range: list[float] | None = None,
        shown: list[int] | None = None,
        table: pyarrow.Table | None = None,
    ) -> None:
        self.names, self.image_size, self.channels = names, image_size, channels
        self.labels, self.class_names, self.skipped, self.split = labels, class_names, list(skipped), split
        self.source, self.columns, self.value_range = source, columns, value_range
        self.shown, self._table = shown, table
        self._stored, self._rows, self._reopen = stored, rows, reopen
        self._statistics, self._originals = statistics, originals

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("pixels", "originals")}
        return state if self._reopen is None else state | {"_stored": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._reopen is not None:
            self._stored = self._reopen()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        shape = f"{len(self)} images, {self.channels} x {self.image_size} x {self.image_size}"
        classes = "unlabelled" if self.labels is None else f"{len(np.unique(self.labels[self.labels >= 0]))} classes"
        return f"Images({shape}, {classes}, {len(self.skipped)} skipped)"

    @property
    def stored(self) -> bool:
        """Whether pixels are kept; if not, `CroppingBatches` and `gather` decode the originals each time."""
        return self._stored is not None

    @cached_property
    def pixels(self) -> Shaped[Tensor, "images channels size size"]:
        if self._stored is None:
            raise ValueError(
                "these images are not kept as pixels (cache=False, or more than cache_limit): train on CroppingBatches "
                "and read pixels in pieces with gather, or raise cache_limit"
            )
        if self._rows is None:
            return self._stored
        first, last = (int(self._rows[0]), int(self._rows[-1])) if len(self._rows) else (0, -1)
        if np.array_equal(self._rows, np.arange(first, last + 1)):
            return self._stored[first : last + 1]
        return torch.from_numpy(self._stored.numpy()[self._rows])  # torch has no index for uint16

    @property
    def table(self) -> pyarrow.Table:
        if self._table is None:
            rows = (None for _ in self.names) if self._stored is None else map(_digest, self.pixels.numpy())
            columns = {"name": self.names, "digest": pyarrow.array(rows, pyarrow.string())}
            self._table = pyarrow.table(columns | {"problem": pyarrow.nulls(len(self), pyarrow.string())})
        return self._table

    @property
    def mean(self) -> list[float]:
        return self._moments[0]

    @property
    def std(self) -> list[float]:
        return self._moments[1]

    @cached_property
    def originals(self) -> Originals | None:
        """The encoded images by index (bytes or file paths); None for arrays, which have no other form."""
        return self._originals() if self._originals is not None else None

    def gather(self, index: Int64[Tensor, " batch"]) -> Shaped[Tensor, "batch channels size size"]:
        """The images at these positions, copied: uint8, or float32 in 0..1; decoded now where no pixels are stored."""
        if self._stored is not None:
            rows = index if self._rows is None else torch.from_numpy(self._rows)[index]
            return floats(np.take(self._stored.numpy(), rows.numpy(), axis=0))
        if len(index) == 0:
            kind = torch.uint8 if self.value_range is None else torch.float32
            return torch.empty(0, self.channels, self.image_size, self.image_size, dtype=kind)
        originals = self.originals
        assert originals is not None
        with ThreadPoolExecutor(usable_cores()) as pool:
            form = self.image_size, self.channels, self.value_range
            return torch.stack(list(pool.map(lambda i: pixels_of(originals[i], *form), index.tolist())))

    def pictures(self, index: Int64[Tensor, " batch"]) -> UInt8[Tensor, "batch shown size size"]:
        """The images at these positions as they are shown: uint8, grey or three channels, those of `shown`."""
        pixels = self.gather(index)
        return eight_bits(pixels[:, self.shown] if self.shown else pixels)

    def subset(self, indices: Sequence[int] | np.ndarray | Tensor) -> Images:
        """The images at `indices`, in that order, renumbered from 0. Nothing is copied until `pixels` is asked for."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(chosen) and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise ValueError(f"subset: positions must lie in 0..{len(self) - 1}, got {chosen.min()}..{chosen.max()}")
        chosen = chosen % max(len(self), 1)
        return Images(
            self._stored,
            names=[self.names[i] for i in chosen],
            image_size=self.image_size,
            channels=self.channels,
            labels=None if self.labels is None else self.labels[chosen],
            class_names=self.class_names,
            skipped=self.skipped,
            statistics=self._moments,
            originals=None if self._originals is None else partial(_chosen, self, chosen),
            split=self.split,
            rows=chosen if self._rows is None else self._rows[chosen],
            reopen=self._reopen,
            source=self.source,
            columns=None if self.columns is None else self.columns.take(chosen),
            value_range=self.value_range,
            shown=self.shown,
            table=self._table,
        )

    def normalised_by(self, mean: Sequence[float], std: Sequence[float]) -> Images:
        """The same images with another `mean` and `std`; ValueError unless there is one number for each channel."""
        if not len(mean) == len(std) == self.channels or min(std) <= 0:
            raise ValueError(f"{self.channels} channels need as many means and stds (above 0), got {mean} and {std}")
        other = copy.copy(self)
        vars(other).pop("_moments", None)
        other._statistics = (list(mean), list(std))
        return other

    def split_holdout(self, count: int, seed: int) -> tuple[Images, Images]:
        """(the rest, `count` random images held out), each in the original order; a pure function of `seed`."""
        if not 0 <= count < len(self):
            raise ValueError(f"split_holdout: count must lie in 0..{len(self) - 1}, got {count}")
        order = np.random.default_rng(seed).permutation(len(self))
        return self.subset(np.sort(order[count:])), self.subset(np.sort(order[:count]))

    def sampled(self, count: int | None, seed: int) -> Images:
        """At most `count` of them, a random sample in the original order; None: all."""
        return self if count is None or count >= len(self) else self.subset(sample(len(self), count, seed))

    @cached_property
    def _moments(self) -> tuple[list[float], list[float]]:
        if self._statistics is not None:
            return self._statistics
        moments: np.ndarray = np.zeros((2, self.channels), dtype=np.int64)
        for piece in pieces(self.pixels):
            moments = moments + moments_of(piece.numpy())
        return statistics(moments, len(self) * self.image_size**2, 255 if self.value_range is None else 65535)


def sample(total: int, count: int | None, seed: int) -> Int64[np.ndarray, " chosen"]:
    """At most `count` of `total` positions, drawn at random, in order; a pure function of `seed`. None: all."""
    return np.sort(np.random.default_rng(seed).permutation(total)[:count])


def _digest(pixels: np.ndarray) -> str:
    return digest(str(pixels.shape).encode() + pixels.tobytes())


def pieces(pixels: Tensor) -> Iterator[Tensor]:
    """`pixels` in consecutive parts of about four million values: few enough to work on in wide types."""
    return iter(pixels.split(max(1, 2**22 // max(1, pixels[:1].numel()))))


def _chosen(images: Images, rows: np.ndarray) -> Originals:
    """The originals of some images."""
    whole = images.originals
    assert whole is not None
    return Lookup(whole.__getitem__, rows.tolist())


def photographs(count: int, image_size: int, channels: int) -> UInt8[Tensor, "count channels size size"]:
    """Squares cut from the two photographs that come with scikit-learn, the same at every call.

    They differ in size and place; channels beyond colour repeat it in turn. Meant to try a net on what images look
    like, where the data of a run may be far away.
    """
    from sklearn.datasets import load_sample_images

    given = [torch.tensor(photo).permute(2, 0, 1) for photo in load_sample_images().images]
    generator, squares = np.random.default_rng(0), []
    for number in range(count):
        photo = given[number % len(given)]
        side = int(generator.integers(96, min(photo.shape[1:])))
        top, left = (int(generator.integers(0, length - side + 1)) for length in photo.shape[1:])
        squares.append(resize_square(photo[None, :, top : top + side, left : left + side], image_size))
    images = torch.cat(squares)
    return with_channels(images, channels) if channels in (1, 3) else images[:, [i % 3 for i in range(channels)]]
