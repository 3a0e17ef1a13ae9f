"""`open_images` and `scan`: any source to `Images`, or to the table of all of them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow

from nearfar.data import sources
from nearfar.data.cache import Store
from nearfar.data.decoding import raise_pixel_limit
from nearfar.data.encoded import few_of, in_memory, open_encoded
from nearfar.data.images import Images, concat_images
from nearfar.data.scanning import Scanned, scanned
from nearfar.data.sources import arrays, is_array_file, short_names
from nearfar.data.sources.files import existing
from nearfar.data.sources.splits import choose_splits, say_splits
from nearfar.data.table import USUAL
from nearfar.data.value_range import EIGHT_BITS, FormatRequest, for_channels, parse_request, spread

CACHE_LIMIT = 8 * 2**30

Opener = Callable[[Scanned, FormatRequest], Images]
"""Opens one source."""


def open_images(
    source: Any,
    *,
    split: str | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    value_range: Any = None,
    show_channels: Sequence[int] | None = None,
    label_column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache: bool = True,
    cache_limit: int = CACHE_LIMIT,
    workers: int | None = None,
    few: int | None = None,
    max_pixels: int | None = None,
) -> Images:
    """Open images from files, the Hub, or objects; files the second time from nearfar's own cache.

    source: one of
        - a folder (any depth), Parquet file or folder, WebDataset tar or folder of tars, .npy or
          .npz file, "digits", or "hf:owner/name" for a Hub data set (the only case that touches the
          network). Write "./digits" for a folder of that name
        - a .csv, .tsv or .parquet file with a column of paths of image files
        - an image file, or a list of them
        - a list of other paths and names: their images, one source after the other
        - an array or tensor [n,h,w], [n,h,w,c] or [n,c,h,w], or a pair (images, labels)
        - a `datasets.Dataset` or `DatasetDict` with a column of images; cached like files
        - a torch Dataset with a length, or a list, whose items are PIL images, uint8 arrays or
          tensors, or float tensors in 0..1, of any sizes, alone or first in a tuple with the label
          as its second; read into memory once
        - `Images`, which are returned as they are
        - any of these as `Scanned`, which is not looked for again
    split: "train", "test", ... or "all". None: "train" where the source has one, else everything.
    image_size: side in pixels. None: that of most images if they share one of at most 96, else 224.
        If a resize is needed, the shorter side becomes `image_size` (antialiased bicubic) and the
        centre is cut out.
    channels: None: 1 if all pictures are grayscale, else 3; as many as they have for arrays, and as
        most have for TIFF of other channels and DICOM. Grayscale and colour are made into each
        other.
    value_range: what stands for black and white in images of more than 8 bits, in their own
        numbers: LOW HIGH for all channels, or such a pair for each; "full" for the range of their
        type; "uint8" to make 8 bits of them. None: the 0.5 and 99.5 percentiles of each channel
        over 100 images (0 and 1 for floats that lie between), and 8 bits where pictures of 8 bits
        are among the files. Items of lists and torch Datasets become 8 bits.
    show_channels: one or three, counted from 1, that pictures of the images show. None: the first
        three, or the first.
    label_column: where the labels are; None finds a usual one (label, labels, class, cls,
        fine_label, ...).
    cache_dir: default $XDG_CACHE_HOME/nearfar or ~/.cache/nearfar. Arrays are not cached: .npy
        files are mapped as they are, everything else stays in memory. All data sets there may take
        $NEARFAR_CACHE_BYTES, 64 GiB by default; beyond that, those used longest ago are removed.
    cache, cache_limit: with cache=False, or beyond `cache_limit` bytes of pixels, images are
        checked once but their pixels not stored: train on such data with `Batches` of crops. A
        torch Dataset must fit into `cache_limit`.
    workers: decoding threads; None: one per core.
    few: open at most so many, evenly spaced, or the first ones of Parquet files and tars. Size,
        channels and value range are chosen from these alone, and nothing is cached.
    max_pixels: raises, for this process, how many pixels an image may have; None: 178 956 970, as
    Pillow allows.

    What is found and cannot be read is left out and listed in `.skipped`; `.line` counts it.
    ValueError or FileNotFoundError, one line, for a wrong path or object, a source without readable
    images, an unknown split or column.

    >>> images = open_images("photos", image_size=32)
    >>> images.pixels.shape, images.class_names
    (torch.Size([25, 3, 32, 32]), ['cat', 'dog'])
    """
    raise_pixel_limit(max_pixels)
    request = parse_request(image_size, channels, value_range)
    found = scanned(source, label_column, cache_dir)
    store = Store(found.folder, cache_limit, cache, workers)
    return _open(found, request, split, show_channels, store, few)


def _open(
    found: Scanned,
    request: FormatRequest,
    split: str | None,
    show_channels: Sequence[int] | None,
    store: Store,
    few: int | None = None,
) -> Images:
    """Open all images of a source, or a few of them, which are not stored."""
    if found.parts:

        def open_one(part: Scanned, form: FormatRequest) -> Images:
            share = None if few is None else -(-few // len(found.parts))
            return _open(part, form, split, show_channels, store, share)

        opened = _open_several(found, open_one, request)
        return opened if few is None else opened.subset(spread(len(opened), few))
    source, name, encoded = found.given, found.name, found.encoded
    if isinstance(source, Images):
        images = _as_they_are(source, split, request)
        images = images if show_channels is None else copy.copy(images)
    elif sources.is_array(source):
        images = arrays.from_memory(source, split, request)
    elif name == "digits" and isinstance(source, str):
        images = arrays.digits(split, request)
    elif is_array_file(source):
        images = arrays.from_file(existing(name), split, request, found.label_column)
    elif encoded is not None:
        splits = choose_splits(encoded.splits, split, name)
        if split is None:
            say_splits(name, encoded.splits)
        if few is None:
            images = open_encoded(found, splits, request, store)
        else:
            images = in_memory(few_of(encoded, splits, few), name, request)
            images.split = splits[0] or None if len(splits) == 1 else None
    elif sources.has_items(source):
        choose_splits([""], split, name)
        images = arrays.from_items(source, name, request, store)
    else:
        raise ValueError(
            f"cannot open images from {name}; give a path, an array or a tensor, a pair "
            f"(images, labels), "
            "a datasets.Dataset, or a map-style torch Dataset with __len__"
        )
    images.source = name
    if not isinstance(source, Images):
        images.splits = found.splits
    if show_channels is not None or not isinstance(source, Images):
        images.shown = shown_positions(show_channels, images.channels)
    return images if few is None or encoded is not None else images.subset(spread(len(images), few))


def shown_positions(show_channels: Sequence[int] | None, channels: int) -> list[int] | None:
    """The positions of the channels to show, which are counted from 1; None: the first three, or
    the first of two.

    ValueError unless they are one or three of those there are.
    """
    if show_channels is None:
        return [0] if channels == 2 else [0, 1, 2] if channels > 3 else None
    if len(show_channels) not in (1, 3) or not all(
        1 <= number <= channels for number in show_channels
    ):
        raise ValueError(
            f"show_channels must be one or three numbers from 1 to {channels}, got "
            f"{list(show_channels)}"
        )
    return [number - 1 for number in show_channels]


def _as_they_are(images: Images, split: str | None, request: FormatRequest) -> Images:
    """`images`, or ValueError where something else is asked for."""
    image_size, channels, value_range = request
    if isinstance(value_range, list):
        value_range = for_channels(value_range, images.channels)
    for name, wanted, opened in (
        ("image_size", image_size, images.image_size),
        ("channels", channels, images.channels),
        ("split", split, images.split),
        ("value_range", value_range, images.value_range or EIGHT_BITS),
    ):
        if wanted is not None and wanted != opened:
            raise ValueError(
                f"these images were opened with {name} {opened}, and {name} {wanted} is asked for"
            )
    return images


def _open_several(found: Scanned, open_one: Opener, request: FormatRequest) -> Images:
    """Open several sources with one size, number of channels and value range, and join them.

    size: None: that of all sources if it is the same, else 224. channels: None: 1 if all are
    grayscale, else those of the others. value_range: None: from the lowest to the highest of all; 8
    bits if one of them has these. Raises ValueError for a source that is given twice, and for
    channels that do not go together.
    """
    short = short_names(found.given)
    parts = [open_one(part, request) for part in found.parts]
    size, channels, _ = request
    if channels is None:
        wide = sorted({part.channels for part in parts} - {1}) or [1]
        if len(wide) > 1:
            which = " and ".join(
                f"'{name}' has {part.channels}" for name, part in zip(short, parts, strict=True)
            )
            raise ValueError(f"images of other numbers of channels do not go together: {which}")
        channels = wide[0]
    if size is None:
        sizes = {part.image_size for part in parts}
        size = sizes.pop() if len(sizes) == 1 else USUAL
    ranges = [value_range for part in parts if (value_range := part.value_range) is not None]
    if len(ranges) < len(parts):
        common: list[float] | str | None = EIGHT_BITS if ranges else None
    elif len({len(value_range) for value_range in ranges}) > 1:  # grayscale and colour
        common = [
            min(min(value_range[::2]) for value_range in ranges),
            max(max(value_range[1::2]) for value_range in ranges),
        ]
    else:
        common = np.where(
            np.arange(len(ranges[0])) % 2, np.max(ranges, 0), np.min(ranges, 0)
        ).tolist()
    stored_as = (size, channels, None if common == EIGHT_BITS else common)
    fitting = [
        part if part.form == stored_as else open_one(scan, FormatRequest(size, channels, common))
        for scan, part in zip(found.parts, parts, strict=True)
    ]
    return concat_images(fitting, short)


def scan(
    source: Any,
    split: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> pyarrow.Table | None:
    """The table of a source, see `nearfar.data.table`, from headers alone; None for one whose
    images must be read.

    These are arrays and objects: `open_images(source).table` then. Arguments and errors as of
    `open_images`.

    >>> scan("photos").num_rows
    25
    """
    return scanned(source, cache_dir=cache_dir).table(split)


def list_splits(source: Any) -> list[str]:
    """The splits that `open_images(source, split=...)` knows; empty if the source is not divided.

    >>> list_splits("photos")
    []
    """
    return scanned(source).splits
