"""`Images`: decoded images with their names, labels and statistics, of one source or of several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow
import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from nearfar.data.bits import floats, pieces
from nearfar.data.cache import moments_of, statistics
from nearfar.data.decoding import header, pages_are_channels, pixels_of
from nearfar.data.left_out import Count
from nearfar.data.resources import usable_cores
from nearfar.data.table import (
    Lookup,
    as_bytes,
    concat_columns,
    concat_tables,
    digest,
    readable,
)
from nearfar.data.thumbnails import KeptPictures
from nearfar.data.value_range import PixelFormat
from nearfar.progress import log
from nearfar.views import eight_bits, resize_square, with_channels

AT_ONCE = 8192  # digests that are texts at a time
Originals = Sequence[bytes | str]
Statistics = tuple[list[float], list[float]]


@dataclass
class Stored:
    """The images of one source: their pixels, or None, and how to come to their encoded form, or
    None.

    reopen: maps the pixels of a cache again, in another process; without it they are sent along.
    statistics: mean and standard deviation of each channel, if they are known.
    """

    pixels: Shaped[Tensor, "stored channels size size"] | None
    count: int
    originals: Callable[[], Originals | None] | None = None
    reopen: Callable[[], Tensor] | None = None
    statistics: Statistics | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) if self.reopen is None else vars(self) | {"pixels": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.reopen is not None:
            self.pixels = self.reopen()


class Images:
    """Square images of one size; image i has the name `names[i]` and, where labelled, the label
    `labels[i]`.

    - `pixels` [images, channels, size, size], uint8, or uint16 whose full range stands for 0..1:
      memory-mapped where the source allows; else ValueError
    - `value_range`: what became 0 and 1, low and high of every channel in the source's own numbers;
      None for uint8
    - `labels` int64 [images] (-1: missing) or None; `class_names` or None
    - `skipped`: (name, reason) of everything that was found and left out; `left_out` counts it by
      kinds, and `line` says in one line what was read
    - `splits`: those that the source has
    - `mean`, `std`: per channel in 0..1; a subset keeps those of the whole, so that it is
      normalised alike
    - `split`: the split that was read, or None
    - `shown`: the channels that pictures of them show, one or three; None: all of one or three
    - `source`: what was opened, in a few words; a path or name as it was given
    - `kept`: the images shrunk to 16 pixels by area and as pages show them, in the files of a walk;
      else None
    - `columns`: a table with a row for each image, what else a table of paths says of it; None for
      other sources
    - `table`: the table of the whole source, see `nearfar.data.table`; digests of images
      in memory are those of their pixels

    They can be pickled, for other processes: pixels in memory are sent along, a mapped cache is
    mapped again there.

    >>> images = Images(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), names=["a", "b"])
    >>> len(images), images.image_size
    (2, 8)
    """

    def __init__(
        self,
        stored: Shaped[Tensor, "stored channels size size"] | Sequence[Stored],
        *,
        names: list[str],
        form: PixelFormat | None = None,
        labels: Int64[np.ndarray, " images"] | None = None,
        class_names: list[str] | None = None,
        skipped: Sequence[tuple[str, str]] = (),
        measured: int | None = None,
        split: str | None = None,
        source: str = "images",
        columns: pyarrow.Table | None = None,
        table: pyarrow.Table | None = None,
    ) -> None:
        """form: None for that of uint8 pixels. measured: so many of the first parts have the
        statistics that count; None: all.
        """
        if form is None:
            assert isinstance(stored, Tensor)
            form = PixelFormat(stored.shape[2], stored.shape[1])
        self.names, self.form = names, form
        self.image_size, self.channels, self.value_range = form
        self.labels, self.class_names, self.skipped, self.split = (
            labels,
            class_names,
            list(skipped),
            split,
        )
        self.source, self.columns = source, columns
        self.splits: list[str] = []
        self.shown: list[int] | None = None
        self.left_out_of: dict[str, list[tuple[str, str]]] = {}
        self._parts = [Stored(stored, len(stored))] if isinstance(stored, Tensor) else list(stored)
        self._rows: Int64[np.ndarray, " images"] | None = (
            None  # among those of all parts; None: all
        )
        self._table, self._measured = table, measured
        self.kept: KeptPictures | None = None
        self._undigested = True  # digests of pixels in memory are computed when they are asked for
        self._read: Int64[np.ndarray, " images"] | None = (
            None  # among the readable rows of the table; None: all
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("pixels", "originals")
        }

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        shape = f"{len(self)} images, {self.channels} x {self.image_size} x {self.image_size}"
        classes = (
            "unlabelled"
            if self.labels is None
            else f"{len(np.unique(self.labels[self.labels >= 0]))} classes"
        )
        return f"Images({shape}, {classes}, {len(self.skipped)} skipped)"

    @property
    def described(self) -> str:
        """The source in a few words."""
        return self.source

    @property
    def left_out(self) -> dict[str, int]:
        """Numbers of files, members and rows that were left out, by the kind of the reason."""
        return self._count.left_out

    @property
    def of_splits(self) -> str:
        """The splits that were read, such as "the split train of train, test"; "" of a source
        without splits.
        """
        return self._count.of_splits

    @property
    def where(self) -> str:
        """The source and what was read of it: "photos, the split train of train, test"."""
        return self._count.where

    @property
    def _count(self) -> Count:
        return Count(self.source, len(self), self.skipped, self.split, self.splits)

    @property
    def line(self) -> str:
        """A line of what was read: the number of images, the splits, and what was left out, by
        kinds and endings.
        """
        line = self._count.line
        if of_pages := self._of_pages():
            line += f"; the first page or frame is read of {of_pages} with several"
        return line

    def _of_pages(self) -> int:
        """Number of images that are the first of several pages or frames."""
        if self._table is None or "pages" not in self._table.column_names:
            return 0
        table = self._table.take(self.table_rows)
        bands, pages = (table[name].fill_null(1).to_numpy() for name in ("bands", "pages"))
        return int(((pages > 1) & ~pages_are_channels(bands, pages, self.channels)).sum())

    @property
    def stored(self) -> bool:
        """Return whether pixels are stored; if not, crops and `gather` decode the originals each
        time.
        """
        return all(part.pixels is not None for part in self._parts)

    @cached_property
    def pixels(self) -> Shaped[Tensor, "images channels size size"]:
        """The pixels of all; a copy in memory unless they lie one after the other in one source."""
        if not self.stored:
            raise ValueError(
                "the pixels of these images are not stored (cache=False, or more than "
                "cache_limit): train on Batches "
                "of crops and read pixels in pieces with gather, or raise cache_limit"
            )
        rows = np.arange(len(self)) if self._rows is None else self._rows
        first = int(rows[0]) if len(rows) else 0
        if np.array_equal(rows, np.arange(first, first + len(rows))):
            for part in self._parts:
                if part.pixels is not None and first + len(rows) <= part.count:
                    return part.pixels[first : first + len(rows)]
                first -= part.count
                if first < 0:  # they lie in several parts
                    break
        return torch.from_numpy(self._taken(rows))

    def _taken(
        self, rows: Int64[np.ndarray, " rows"]
    ) -> Shaped[np.ndarray, "rows channels size size"]:
        """Copies of the stored pixels of some images."""
        pixels = [part.pixels.numpy() for part in self._parts if part.pixels is not None]
        if len(pixels) == 1:
            return np.ascontiguousarray(
                pixels[0][rows]
            )  # np.take would copy all of an array with channels last
        out = np.empty((len(rows), *pixels[0].shape[1:]), pixels[0].dtype)
        starts = np.cumsum([0, *map(len, pixels)])
        for stored, start in zip(pixels, starts, strict=False):
            own = (rows >= start) & (rows < start + len(stored))
            out[own] = stored[rows[own] - start]
        return out

    @property
    def table(self) -> pyarrow.Table:
        if self._table is None:
            pixels = self.pixels.numpy() if self.stored else [None] * len(self)
            digests = [image if image is None else _pixel_digest(image) for image in pixels]
            columns = {"name": self.names, "digest": pyarrow.array(digests, pyarrow.string())}
            self._table = pyarrow.table(
                columns | {"problem": pyarrow.nulls(len(self), pyarrow.string())}
            )
        elif self._undigested:
            self._table = self._with_digests(self._table)
        self._undigested = False
        return self._table

    def _with_digests(self, table: pyarrow.Table) -> pyarrow.Table:
        """The table with digests of the pixels that are in memory, to which their source gave
        none.
        """
        rows = readable(table)
        if not (missing := table["digest"].is_null().to_numpy()[rows]).any():
            return table
        known, start = table["digest"].to_pylist(), 0
        for part in self._parts:
            of_part = np.flatnonzero(missing[start : start + part.count])
            for at in of_part.tolist() if part.pixels is not None else ():
                assert part.pixels is not None
                known[rows[start + at]] = _pixel_digest(part.pixels[at].numpy())
            start += part.count
        place = table.schema.get_field_index("digest")
        return table.set_column(place, "digest", pyarrow.array(known, pyarrow.string()))

    @property
    def table_rows(self) -> Int64[np.ndarray, " images"]:
        """The row of each image in `table`."""
        rows = readable(self.table if self._table is None else self._table)
        return rows if self._read is None else rows[self._read]

    @property
    def digests(self) -> list[str | None]:
        """The digest of each encoded image, or of its pixels in memory; None where it is not
        known.
        """
        known = self.table["digest"].take(self.table_rows).to_pylist()
        return [known_digest or None for known_digest in known]

    @property
    def marks(self) -> UInt8[np.ndarray, "images 16"]:
        """The same as bytes, zeros where a digest is not known: a tenth of the memory."""
        known, rows = self.table["digest"], self.table_rows
        marks: np.ndarray = np.empty((len(rows), 16), np.uint8)
        for start in range(0, len(rows), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            marks[some] = as_bytes(known.take(rows[some]).to_pylist())
        return marks

    def native_sizes(self, rows: Sequence[int] | np.ndarray) -> Int64[np.ndarray, "rows 2"]:
        """Height and width of encoded images before they were resized, upright, by position.

        They come from the table; a file is read only where the table does not say.
        """
        places = self.table_rows[np.asarray(rows, np.int64)]
        height, width = (self.table[name].take(places).to_pylist() for name in ("height", "width"))
        for at, row in enumerate(rows):
            if None in (height[at], width[at]):
                assert self.originals is not None
                height[at], width[at] = header(self.originals[int(row)])[:2]
        return np.stack([height, width], 1)

    @property
    def split_names(self) -> list[str]:
        """The split of each image of a source that was opened whole; "" for none."""
        if self._table is None or "split" not in self._table.column_names:
            return [self.split or ""] * len(self)
        return [split or "" for split in self._table["split"].take(self.table_rows).to_pylist()]

    @property
    def label_names(self) -> list[str]:
        """The label of each image in words; "" for none."""
        if self.labels is None:
            return [""] * len(self)
        names = self.class_names or []
        return [
            "" if number < 0 else names[number] if number < len(names) else str(number)
            for number in self.labels.tolist()
        ]

    @property
    def mean(self) -> list[float]:
        return self._moments[0]

    @property
    def std(self) -> list[float]:
        return self._moments[1]

    @cached_property
    def originals(self) -> Originals | None:
        """The encoded images by index (bytes or file paths); None for arrays, which have no other
        form.
        """
        parts = list[Originals]()
        for part in self._parts:
            own = None if part.originals is None else part.originals()
            if own is None:
                return None
            parts.append(own)
        if len(parts) == 1 and self._rows is None:
            return parts[0]
        places = np.arange(len(self)) if self._rows is None else self._rows
        starts = np.cumsum([0, *map(len, parts)])
        return Lookup(partial(_of_part, parts, starts), places.tolist())

    def gather(self, index: Int64[Tensor, " batch"]) -> Shaped[Tensor, "batch channels size size"]:
        """The images at these positions, copied: uint8, or float32 in 0..1; decoded now where no
        pixels are stored.
        """
        if self.stored:
            return floats(
                self._taken(index.numpy() if self._rows is None else self._rows[index.numpy()])
            )
        if len(index) == 0:
            kind = torch.uint8 if self.value_range is None else torch.float32
            return torch.empty(0, self.channels, self.image_size, self.image_size, dtype=kind)
        originals = self.originals
        assert originals is not None
        with ThreadPoolExecutor(usable_cores()) as pool:
            return torch.stack(
                list(pool.map(lambda i: pixels_of(originals[i], self.form), index.tolist()))
            )

    def pictures(
        self, index: Int64[Tensor, " batch"], size: int | None = None
    ) -> UInt8[Tensor, "batch shown side side"]:
        """The images at these positions as they are shown: uint8, one or three channels, those of
        `shown`.

        size: pixels of a side that are enough, so that kept thumbnails stand for images that are
        not stored. Default: all that they have.
        """
        kept = self._kept_pictures
        if kept and size is not None and min(size, self.image_size) <= kept.side:
            return kept.thumbnails(index.numpy())
        pixels = self.gather(index)
        return eight_bits(pixels[:, self.shown] if self.shown else pixels)

    def with_pictures(self, index: Int64[Tensor, " some"]) -> Images:
        """Return the same images, with the kept thumbnails of some of them in memory, if `pictures`
        takes these.
        """
        if self._kept_pictures is None:
            return self
        other = copy.copy(self)
        other.kept = self._kept_pictures.in_memory(index.numpy())
        return other

    @property
    def _kept_pictures(self) -> KeptPictures | None:
        """The kept thumbnails; None where they do not show what `pictures` returns."""
        return None if self.stored or self.shown else self.kept

    def subset(self, indices: Sequence[int] | np.ndarray | Tensor) -> Images:
        """The images at `indices`, in that order, renumbered from 0. Nothing is copied until
        `pixels` is asked for.
        """
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(chosen) and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise ValueError(
                f"subset: positions must lie in 0..{len(self) - 1}, got "
                f"{chosen.min()}..{chosen.max()}"
            )
        chosen = chosen % max(len(self), 1)
        other = copy.copy(self)
        other._moments = self._moments
        for of_all in ("pixels", "originals"):
            vars(other).pop(of_all, None)
        other.names = [self.names[i] for i in chosen]
        other.kept = None if self.kept is None else self.kept.subset(chosen)
        other.labels = None if self.labels is None else self.labels[chosen]
        other.columns = None if self.columns is None else self.columns.take(chosen)
        other._rows = chosen if self._rows is None else self._rows[chosen]
        if self._table is not None:  # else the subset makes its own
            other._read = chosen if self._read is None else self._read[chosen]
        return other

    def by_split(self) -> list[Images]:
        """The images of each of several splits that were opened together; else these."""
        if not self.left_out_of:
            return [self]
        owner, parts = np.array(self.split_names), []
        for split, skipped in self.left_out_of.items():
            part = self.subset(np.flatnonzero(owner == split))
            part.split, part.skipped, part.left_out_of = split, skipped, {}
            parts.append(part)
        return parts

    def normalised_by(self, mean: Sequence[float], std: Sequence[float]) -> Images:
        """The same images with another `mean` and `std`; ValueError unless there is one number for
        each channel.
        """
        if not len(mean) == len(std) == self.channels or min(std) <= 0:
            raise ValueError(
                f"{self.channels} channels need as many means and stds (above 0), got "
                f"{mean} and {std}"
            )
        other = copy.copy(self)
        other._moments = (list(mean), list(std))
        return other

    def split_holdout(self, count: int, seed: int) -> tuple[Images, Images]:
        """(the rest, `count` random images held out), each in the original order; a pure function
        of `seed`.
        """
        if not 0 <= count < len(self):
            raise ValueError(f"split_holdout: count must lie in 0..{len(self) - 1}, got {count}")
        order = np.random.default_rng(seed).permutation(len(self))
        return self.subset(np.sort(order[count:])), self.subset(np.sort(order[:count]))

    def sampled(self, count: int | None, seed: int) -> Images:
        """At most `count` of them, a random sample in the original order; None: all."""
        return (
            self
            if count is None or count >= len(self)
            else self.subset(sample(len(self), count, seed))
        )

    @cached_property
    def _moments(self) -> Statistics:
        """Mean and standard deviation over all parts, of which each image weighs the same."""
        parts = [part for part in self._parts[: self._measured] if part.count]
        every = [self._statistics_of(part) for part in parts]
        if len(every) == 1:
            return every[0]
        count = np.array([part.count for part in parts])[:, None]
        share = count / count.sum()
        means, stds = (np.array(numbers) for numbers in zip(*every, strict=True))
        mean = (share * means).sum(0)
        variance = (share * (stds**2 + (means - mean) ** 2)).sum(0)
        return mean.tolist(), np.sqrt(variance).tolist()

    def _statistics_of(self, part: Stored) -> Statistics:
        if part.statistics is None:
            assert part.pixels is not None
            moments: np.ndarray = np.zeros((2, self.channels), dtype=np.int64)
            for piece in pieces(part.pixels):
                moments = moments + moments_of(piece.numpy())
            pixels = part.count * self.image_size**2
            part.statistics = statistics(moments, pixels, self.form.white)
        return part.statistics


def sample(total: int, count: int | None, seed: int) -> Int64[np.ndarray, " chosen"]:
    """At most `count` of `total` positions, drawn at random, in order; a pure function of `seed`.
    None: all.
    """
    return np.sort(np.random.default_rng(seed).permutation(total)[:count])


def divisors(std: Sequence[float]) -> list[float]:
    """Standard deviations to divide by: 1 in place of the 0 of a channel that is constant over all
    images.
    """
    return [deviation or 1.0 for deviation in std]


def say_sample(count: int, total: int, seed: int) -> None:
    """Log that `count` of the images, a random sample, stand for all."""
    log.info("`limit`: %d of %d images, a random sample (seed %d)", count, total, seed)


def _pixel_digest(image: np.ndarray) -> str:
    return digest(str(image.shape).encode() + image.tobytes())


def _of_part(parts: Sequence[Originals], starts: np.ndarray, place: int) -> bytes | str:
    owner = int(np.searchsorted(starts, place, side="right")) - 1
    return parts[owner][place - int(starts[owner])]


def stacked(first: Images, second: Images) -> Images:
    """The images of two sources in one form, without labels, one source after the other."""
    both = [first, second]
    whole = Images(
        [stored for part in both for stored in part._parts],
        names=first.names + second.names,
        form=first.form,
        skipped=first.skipped + second.skipped,
        split=first.split if first.split == second.split else None,
        source=f"{first.source} + {second.source}",
        columns=concat_columns([part.columns for part in both], [len(part) for part in both]),
        table=concat_tables([part.table for part in both], [part.source for part in both]),
    )
    starts = [0, sum(stored.count for stored in first._parts)]
    rows = [np.arange(len(part)) if part._rows is None else part._rows for part in both]
    whole._rows = np.concatenate([own + start for own, start in zip(rows, starts, strict=True)])
    starts = [0, len(readable(first.table))]
    rows = [np.arange(len(part)) if part._read is None else part._read for part in both]
    whole._read = np.concatenate([own + start for own, start in zip(rows, starts, strict=True)])
    whole.shown = first.shown
    whole.splits = list(dict.fromkeys(first.splits + second.splits))
    return whole


def photographs(
    count: int, image_size: int, channels: int
) -> UInt8[Tensor, "count channels size size"]:
    """Squares cut from the two photographs that come with scikit-learn, the same at every call.

    They differ in size and place; channels beyond colour repeat it in turn. Meant to try a net on
    what images look like, where the data of a run may be far away.
    """
    from sklearn.datasets import load_sample_images

    given = [torch.tensor(photo).permute(2, 0, 1) for photo in load_sample_images().images]
    generator, squares = np.random.default_rng(0), []
    for number in range(count):
        photo = given[number % len(given)]
        side = int(generator.integers(96, min(photo.shape[1:])))
        top, left = (int(generator.integers(0, length - side + 1)) for length in photo.shape[1:])
        squares.append(
            resize_square(photo[None, :, top : top + side, left : left + side], image_size)
        )
    images = torch.cat(squares)
    return (
        with_channels(images, channels)
        if channels in (1, 3)
        else images[:, [i % 3 for i in range(channels)]]
    )
