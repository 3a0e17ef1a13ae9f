"""`open_images` and `scan`: any source to `Images`, or to the table of all of them.

One path: scan the source, choose the pixel format from its table, read pixels through the cache.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from torch import Tensor

from nearfar.atomic import write_file
from nearfar.data import cache as pixel_cache
from nearfar.data.bits import NEARLY_BLACK, are_gray, floats
from nearfar.data.cache import Store, moments_of, statistics
from nearfar.data.decoding import (
    PICTURE,
    decode,
    own_numbers,
    pages_are_channels,
    raise_pixel_limit,
    reason,
)
from nearfar.data.exif import TYPES, with_exif
from nearfar.data.images import Images, Stored
from nearfar.data.layouts import as_planes, to_pixels
from nearfar.data.left_out import is_damage, is_passing
from nearfar.data.readers import quietly
from nearfar.data.scanning import Scanned, Split, joined_table
from nearfar.data.sources.arrays import Items, check_fits_memory
from nearfar.data.sources.concatenated import Concatenated, Part
from nearfar.data.sources.encoded import EncodedSource
from nearfar.data.sources.source import Picture
from nearfar.data.sources.splits import say_splits
from nearfar.data.table import (
    LIMIT,
    concat_columns,
    most_common_channels,
    most_common_size,
    printable,
    readable,
    rows_at,
    skipped,
    with_problems,
)
from nearfar.data.value_range import (
    ANY_FORMAT,
    EIGHT_BITS,
    FormatRequest,
    PixelFormat,
    ValueRange,
    for_channels,
    of_sample,
    parse_request,
    spread,
    thinned,
)
from nearfar.messages import check_number, if_offered, say_once
from nearfar.views import eight_bits

LOOKED_AT, SMALL = 16, 64  # images that show whether there are colours, and pixels of a side
MEASURED = 256  # images that give the statistics where all are decoded later
_MIXED = "holds images of 8 bits and of more: all become 8 bits"
_DIVIDED = f"holds images of more than 8 bits: all become 8 bits, 16 {NEARLY_BLACK}"
_GRAY = "holds images in colour, and all become gray"
_NO_RANGE = "holds images of 8 bits alone, which have their full range and no other"
_AS_THEY_ARE = "; `value_range` keeps the others as they are"


def open_images(
    source: Any,
    *,
    split: str | tuple[str, ...] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    value_range: Any = None,
    show_channels: Sequence[int] | None = None,
    label_column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache: bool = True,
    cache_limit: int = LIMIT,
    workers: int | None = None,
    few: int | None = None,
    max_pixels: int | None = None,
    later: bool = False,
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
        Several, as a tuple, are opened one after the other, in the form of the first, with its
        `mean` and `std`.
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
    later: decode files only when their pixels are asked for, and store none: what turns out to be
        damaged then raises. `mean` and `std` are those of at most 256 images.

    What is found and cannot be read is left out and listed in `.skipped`; `.line` counts it.
    ValueError or FileNotFoundError, one line, for a wrong path or object, a source without readable
    images, an unknown split or column.

    >>> images = open_images("photos", image_size=32)
    >>> images.pixels.shape, images.class_names
    (torch.Size([25, 3, 32, 32]), ['cat', 'dog'])
    """
    raise_pixel_limit(max_pixels)
    check_number("few", few, 1, is_whole=True)
    request = parse_request(image_size, channels, value_range)
    scanned_source = scanned(source, label_column, cache_dir, request=request, limit=cache_limit)
    if isinstance(scanned_source, Images):
        images = _as_they_are(scanned_source, split, request)
        if show_channels is not None:
            images = copy.copy(images)
            images.shown = shown_positions(show_channels, images.channels)
        return images if few is None else images.subset(spread(len(images), few))
    chosen = scanned_source.choose(split, digests=few is None)
    for part in chosen.parts if split is None else ():
        if not part.source.undivided:
            say_splits(part.name, part.source.split_names())
    if few is not None:
        chosen = _few_of(chosen, few)
    lead = len(scanned_source.sources) if isinstance(split, tuple) else len(chosen.parts)
    labelled = scanned_source.label_column is None or len(scanned_source.sources) > 1
    if not labelled and len(readable(chosen.table)) and chosen.labels()[0] is None:
        raise ValueError(
            f"'{scanned_source.name}' has no label in a column '{scanned_source.label_column}'"
        )
    store = Store(scanned_source.folder, cache_limit, cache, workers, later)
    images = open_rows(chosen, lead, request, store, scanned_source.name, cached=few is None)
    images.splits = scanned_source.every_split
    images.shown = shown_positions(show_channels, images.channels)
    return images


def _few_of(chosen: Concatenated, few: int) -> Concatenated:
    """A few rows: evenly spaced, or the first ones of files that hold many images."""
    parts, each, more = [], *divmod(few, len(chosen.parts))
    for number, part in enumerate(chosen.parts):
        count = each + (number < more)
        spaced = not isinstance(part.source, EncodedSource) or part.source.whole
        rows = spread(len(part.rows), count) if spaced else range(min(count, len(part.rows)))
        if rows:
            parts.append(replace(part, rows=part.rows.take(list(rows))))
    return Concatenated(parts)


def open_rows(
    chosen: Concatenated, lead: int, request: FormatRequest, store: Store, name: str, cached: bool
) -> Images:
    """The images of some rows in one form.

    lead: so many of the first parts, by which the form is chosen and whose statistics count.
    cached: False to hold encoded images in memory, too.
    """
    pixel_cache.limit()  # a wrong one is noticed first
    left = [[(printable(file), why) for file, why in part.left_out] for part in chosen.parts]
    measured = None
    first = Concatenated(chosen.parts[:lead])
    if not len(readable(first.table)):
        raise ValueError(_nothing(name, [*left[0], *skipped(first.table)]))
    if request.channels is None:
        _check_channels(first)
    range_of = functools.partial(_saved_range, first, store.folder, request.value_range)
    form = choose_format(first.table, request, range_of)
    parts, stored = [], list[Stored]()
    for number, (part, out) in enumerate(zip(chosen.parts, left, strict=True)):
        if number == lead:
            measured = len(stored) or None
        pixels, problems = _read(part, form, store, cached)
        rows = with_problems(part.rows, problems)
        kept_rows = rows_at(rows, readable(rows))
        out += skipped(rows)
        parts.append((replace(part, rows=rows), replace(part, rows=kept_rows)))
        stored += [pixels(kept_rows)] if len(kept_rows) else []
    whole, kept = (Concatenated(list(every)) for every in zip(*parts, strict=True))
    if not stored:
        raise ValueError(_nothing(name, [entry for out in left for entry in out]))
    if form.value_range is None:
        _say_eight_bits(kept, name, request.value_range)
    if request.channels == 1:
        _say_gray(kept, form, store)
    return _assembled(whole, kept, stored, left, form, name, measured)


def _say_eight_bits(kept: Concatenated, name: str, value_range: ValueRange) -> None:
    """Say which parts lose numbers of more than 8 bits, and where a range changes nothing."""
    wide = [part.name for part in kept.parts if (part.rows["bits"].to_numpy() > 8).any()]
    lost = {None: f"{_MIXED}{if_offered('value_range', _AS_THEY_ARE)}", EIGHT_BITS: _DIVIDED}
    if value_range is None or isinstance(value_range, str):
        for part in wide:
            say_once(f"'{part}' {lost.get(value_range, _MIXED)}")
    else:
        say_once(f"'{name}' {_NO_RANGE}")


def _say_gray(kept: Concatenated, form: PixelFormat, store: Store) -> None:
    """Say which parts lose their colours: some of their images of three channels have some."""
    wide = form.value_range and 3 * form.value_range
    for part in kept.parts:
        rows = np.flatnonzero(part.rows["bands"].to_numpy() == 3)
        if not len(rows):
            continue
        some = part.rows.take(rows[spread(len(rows), LOOKED_AT)])
        in_colour = PixelFormat(SMALL, 3, wide)
        pixels, _ = _in_memory(part.source.read(some), len(some), in_colour, store, part.name)
        if len(pixels) and not are_gray(eight_bits(floats(pixels.numpy()))).all():
            say_once(f"'{part.name}' {_GRAY}")


def _check_channels(chosen: Concatenated) -> None:
    """Raise ValueError for sources whose numbers of channels do not go together."""
    channels = {}
    for part in chosen.parts:
        if len(rows := readable(part.rows)):
            bands = part.rows["bands"].to_numpy()[rows]
            channels[part.short] = most_common_channels(bands.astype(np.int64))
    if len({*channels.values()} - {1}) > 1:
        which = " and ".join(f"'{name}' has {count}" for name, count in channels.items())
        raise ValueError(f"images of other numbers of channels do not go together: {which}")


def _assembled(
    whole: Concatenated,
    kept: Concatenated,
    stored: list[Stored],
    left: list[list[tuple[str, str]]],
    form: PixelFormat,
    name: str,
    measured: int | None,
) -> Images:
    """The images of rows that were read. kept: those of them that could be; left: what could not,
    by part.
    """
    own = [part.rows["name"].to_pylist() for part in kept.parts]
    named = kept.told_apart(
        [names + [file for file, _ in out] for names, out in zip(own, left, strict=True)]
    )
    labels, class_names = kept.labels()
    splits = {part.split for part in whole.parts}
    images = Images(
        stored,
        names=[
            name for every, names in zip(named, own, strict=True) for name in every[: len(names)]
        ],
        form=form,
        labels=labels,
        class_names=class_names,
        measured=measured,
        skipped=[
            (file, why)
            for every, names, out in zip(named, own, left, strict=True)
            for file, (_, why) in zip(every[len(names) :], out, strict=True)
        ],
        split=splits.pop() if len(splits) == 1 else None,
        source=name,
        columns=concat_columns(
            [_columns_of(part.rows) for part in kept.parts], [len(p.rows) for p in kept.parts]
        ),
        table=joined_table(whole),
    )
    if measured is not None:  # of several splits
        for part, out in zip(whole.parts, left, strict=True):
            for split in part.splits:
                images.left_out_of.setdefault(split, []).extend(out)
    return images


def _columns_of(rows: pyarrow.Table) -> pyarrow.Table | None:
    """The columns of the source, and the EXIF data of its images."""
    columns = None
    if "columns" in rows.column_names:
        columns = pyarrow.Table.from_struct_array(rows["columns"])
    return with_exif(columns, rows) if set(TYPES) <= set(rows.column_names) else columns


def _read(
    part: Part, form: PixelFormat, store: Store, cached: bool
) -> tuple[Callable[[pyarrow.Table], Stored], dict[int, str]]:
    """Read the images of a part: gives what makes their pixels `Stored`, for the rows that could be
    read, and the problems of the others by position.
    """
    rows = readable(part.rows)
    wanted = rows_at(part.rows, rows)
    if not cached or wanted["digest"].null_count == len(wanted):
        pixels, wrong = _in_memory(part.source.read(wanted), len(wanted), form, store, part.name)
        return lambda kept: Stored(pixels, len(kept)), {int(rows[n]): w for n, w in wrong.items()}
    if store.later:
        return functools.partial(_unread, part, form, store), {}
    address = [type(part.source).__name__, str(Path(part.name).resolve()), part.splits, form]
    home, entry, mapped = pixel_cache.decoded(
        functools.partial(part.source.read, wanted),
        wanted["digest"].to_pylist(),
        form,
        pixel_cache.key(address),
        store,
    )
    reopen = functools.partial(pixel_cache.mapped, home, entry.shape, form)

    def made(kept: pyarrow.Table) -> Stored:
        return Stored(
            mapped,
            len(kept),
            functools.partial(part.source.originals, kept, store.folder / "datasets"),
            None if mapped is None else reopen,
            (entry.mean, entry.std),
        )

    return made, {int(rows[row]): why for row, why in entry.problems.items()}


def _unread(part: Part, form: PixelFormat, store: Store, kept: pyarrow.Table) -> Stored:
    """Images that are decoded when they are asked for; statistics of some of them."""
    originals = functools.partial(part.source.originals, kept, store.folder / "datasets")
    encoded, moments = originals(), list[np.ndarray]()
    with quietly():
        for row in spread(len(kept), MEASURED) if encoded is not None else ():
            with contextlib.suppress(Exception):  # whoever asks for it hears of the damage
                moments.append(moments_of(decode(encoded[row], form)[None]))  # type: ignore[index]
    total = sum(moments, np.zeros((2, form.channels), np.int64))
    of_all = statistics(total, len(moments) * form.size**2, form.white)
    return Stored(None, len(kept), originals, None, of_all)


def _in_memory(
    images: Iterable[Picture] | Tensor, count: int, form: PixelFormat, store: Store, name: str
) -> tuple[Tensor, dict[int, str]]:
    """The pixels of images that are not cached, and the problems of the others by position."""
    if isinstance(images, Tensor):
        return to_pixels(images, form), {}
    check_fits_memory(count, form, store.limit, name)
    pixels = np.empty((count, form.channels, form.size, form.size), form.dtype)
    problems: dict[int, str] = {}
    with quietly():
        for row, image in enumerate(images):
            try:
                pixels[row - len(problems)] = decode(image, form)
            except Exception as error:  # decoders raise anything on damaged data
                problems[row] = reason(error)
    return torch.from_numpy(pixels[: count - len(problems)]), problems


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


def _as_they_are(images: Images, split: Split, request: FormatRequest) -> Images:
    """`images`, or ValueError where something else is asked for."""
    image_size, channels, value_range = request
    if isinstance(value_range, list):
        value_range = for_channels(value_range, images.channels)
    for name, wanted, opened in (
        ("image_size", image_size, images.image_size),
        ("channels", channels, images.channels),
        ("split", split, images.split or "all"),
        ("value_range", value_range, images.value_range or EIGHT_BITS),
    ):
        if wanted is not None and wanted != opened:
            raise ValueError(
                f"these images were opened with {name} {opened}, and {name} {wanted} is asked for"
            )
    return images


def _nothing(name: str, wrong: list[tuple[str, str]]) -> str:
    if not wrong:
        return f"'{name}' holds no images"
    wrong = [each for each in wrong if is_damage(each[1])] or wrong
    return f"none of the {len(wrong)} images in '{name}' can be read; {': '.join(wrong[0])}"


def choose_format(
    table: pyarrow.Table,
    request: FormatRequest,
    range_of: Callable[[np.ndarray, int], list[float] | None],
) -> PixelFormat:
    """Choose the form to which all images are decoded: as asked for, and for the rest as most of
    them are.

    range_of: gives low and high of so many channels from images of more than 8 bits, by position.
    Without a range asked for, or for "full", one image of 8 bits makes 8 bits of all. Raises
    ValueError for a range that does not fit.
    """
    rows = readable(table)
    height, width, bands, bits, pages = (
        table[name].to_numpy()[rows] for name in ("height", "width", "bands", "bits", "pages")
    )
    size = request.size or most_common_size(np.stack([height, width], 1))
    channels, value_range = (
        request.channels or most_common_channels(bands.astype(np.int64)),
        request.value_range,
    )
    fits = (bands == channels) | (np.isin(bands, PICTURE) & (channels in PICTURE))
    fits = fits | pages_are_channels(bands, pages, channels)
    wide = fits & (bits > 8)
    if value_range is not None and not isinstance(value_range, str) and wide.any():
        return PixelFormat(size, channels, for_channels(value_range, channels))
    if value_range == EIGHT_BITS or not wide.any() or wide.sum() < fits.sum():
        return PixelFormat(size, channels)
    chosen = np.flatnonzero(wide)
    return PixelFormat(size, channels, range_of(rows[chosen[spread(len(chosen))]], channels))


def _saved_range(
    source: Concatenated, folder: Path, value_range: ValueRange, rows: np.ndarray, channels: int
) -> list[float] | None:
    """The value range of a sample; it is saved, as reading a hundred large images takes seconds."""
    sample = source.table.take(rows)
    address = [sample["digest"].to_pylist(), channels, value_range]
    lasting = sample["digest"].null_count == 0
    saved = folder / f"{pixel_cache.key(address)}.range"
    with contextlib.suppress(OSError, ValueError):
        if lasting:
            return json.loads(saved.read_text())
    with quietly():
        limits, passing = _sampled_range(source.read(sample), channels, value_range)
    if lasting and not passing:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_file(saved, json.dumps(limits))
    return limits


def _sampled_range(
    images: Iterable[Picture], channels: int, value_range: ValueRange
) -> tuple[list[float] | None, bool]:
    """Low and high of every channel from some images, None where none can be read; and whether
    another day may differ.

    That is where the machine could not read one of them.
    """
    planes, passing = [], False
    for data in images:
        try:
            if isinstance(data, np.ndarray):
                planes.append(thinned(as_planes(data[None], channels)[0].numpy()))
            elif (numbers := own_numbers(data, channels, [0, 1])) is not None:
                planes.append(thinned(numbers.read()))
        except Exception as error:  # it is listed with its reason when all are decoded
            passing = passing or is_passing(error)
    return of_sample(planes, channels, value_range) if planes else None, passing


def scanned(
    source: Any,
    label_column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    request: FormatRequest = ANY_FORMAT,
    limit: int = LIMIT,
) -> Scanned | Images:
    """The source, ready to be scanned; one that is already is returned as it is, unless its images
    were read in another size, and so are `Images`.
    """
    if isinstance(source, Images):
        return source
    if not isinstance(source, Scanned):
        return Scanned(source, label_column, cache_dir, request=request, limit=limit)
    read_anew = isinstance(source.sources[0], Items) and request.size not in (
        None,
        source.request.size,
    )
    if not read_anew:
        return source
    return Scanned(source.given, source.label_column, source.folder, request=request, limit=limit)


def scan(
    source: Any,
    split: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    digests: bool = True,
) -> pyarrow.Table | None:
    """The table of a source, see `nearfar.data.table`, from headers alone; None for the items of a
    list or torch Dataset, which must be read.

    digests: False to hash no files above 64 KiB. Arrays have none here; `open_images(source).table`
    has those of their pixels. Other arguments and errors as of `open_images`.

    >>> scan("photos").num_rows
    25
    """
    scanned_source = scanned(source, cache_dir=cache_dir)
    return None if isinstance(scanned_source, Images) else scanned_source.table(split, digests)


def list_splits(source: Any) -> list[str]:
    """The splits that `open_images(source, split=...)` knows; empty if the source is not divided.

    >>> list_splits("photos")
    []
    """
    scanned_source = scanned(source)
    return [] if isinstance(scanned_source, Images) else scanned_source.splits
