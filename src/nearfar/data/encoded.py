"""From a source of encoded images, by its table and through the cache, to `Images`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import torch

from nearfar.atomic import write_file
from nearfar.data import cache as pixel_cache
from nearfar.data.cache import Store
from nearfar.data.decoding import (
    PICTURE,
    decode,
    own_numbers,
    pages_are_channels,
    reason,
    without_warnings,
)
from nearfar.data.exif import with_exif
from nearfar.data.formats import is_passing, only_python_writes
from nearfar.data.images import Images, Stored
from nearfar.data.scanning import Scanned
from nearfar.data.sources.encoded import ROWS, EncodedImage, Source, prefix, scan_image
from nearfar.data.sources.splits import say_once
from nearfar.data.table import (
    most_common_channels,
    most_common_size,
    printable,
    readable,
    skipped,
    with_problems,
)
from nearfar.data.value_range import (
    EIGHT_BITS,
    FormatRequest,
    PixelFormat,
    ValueRange,
    for_channels,
    of_sample,
    spread,
    thinned,
)

_MIXED = (
    "holds images of 8 bits and of more: all become 8 bits; `value_range` "
    "keeps the others as they are"
)


def few_of(source: Source, splits: Sequence[str], count: int) -> list[EncodedImage]:
    """A few images with their names, spread over the files if each is one image."""
    if source.whole:
        named = [
            named_file
            for split in splits
            for named_file in zip(source.names(split), source.splits[split], strict=True)
        ]
        chosen = [named[place] for place in spread(len(named), count)]
        return [next(source.images(file))._replace(name=name) for name, file in chosen]
    images_found: list[EncodedImage] = []
    for split in splits:
        images = (
            image
            for file in source.splits[split]
            for of_images in [source.splits_in(file)]
            for image in source.images(file)
            if of_images is None or of_images[image.place] == split
        )
        for number, image in enumerate(itertools.islice(images, count - len(images_found))):
            images_found.append(
                image._replace(name=prefix(split) + (image.name or f"{number:06d}"))
            )
    return images_found


def in_memory(given: Sequence[EncodedImage], source: str, request: FormatRequest) -> Images:
    """Decode images with names to images that are not cached; ValueError if none can be read."""
    with without_warnings(), only_python_writes():
        rows = [scan_image(image._replace(name=printable(image.name or ""))) for image in given]
        table = pyarrow.Table.from_pylist([row._asdict() for row in rows], ROWS)

        def range_of(rows: np.ndarray, count: int) -> list[float] | None:
            return _sampled_range([given[row].data for row in rows], count, request.value_range)[0]

        form = choose_format(table, request, range_of)
        pixels, problems = [], {}
        for row in readable(table).tolist():
            try:
                pixels.append(decode(given[row].data or b"", form))
            except Exception as error:  # decoders raise anything on damaged data
                problems[row] = reason(error)
    table = with_problems(table, problems)
    if not pixels:
        raise ValueError(_nothing(source, skipped(table)))
    return Images(
        torch.from_numpy(np.stack(pixels)),
        names=table["name"].take(readable(table)).to_pylist(),
        form=form,
        skipped=skipped(table),
        source=source,
        table=table,
    )


def open_encoded(found: Scanned, splits: list[str], request: FormatRequest, store: Store) -> Images:
    """The images of a source from the cache, which is built first if there is none yet."""
    pixel_cache.limit()  # a wrong one is noticed first
    assert found.encoded is not None
    source, name, label_column = found.encoded, found.name, found.label_column
    table, (_, class_names) = found.of_splits(splits), found.rows
    others = [*source.problems, *source.in_no_split(splits)]
    listed = [(printable(name), why) for name, why in others]
    rows = readable(table)
    if not len(rows):
        raise ValueError(_nothing(name, listed + skipped(table)))
    if label_column is not None and table["label"].null_count == len(table):
        raise ValueError(f"'{name}' has no label in a column '{label_column}'")
    range_of = functools.partial(_saved_range, source, table, store.folder, request.value_range)
    form = choose_format(table, request, range_of)
    encoded = table.take(rows)
    home, entry, pixels = pixel_cache.decoded(
        functools.partial(source.encoded, encoded),
        encoded["digest"].to_pylist(),
        form,
        pixel_cache.key([type(source).__name__, str(Path(name).resolve()), splits, form]),
        store,
    )
    table = with_problems(table, {int(rows[row]): why for row, why in entry.problems.items()})
    rows = readable(table)
    images = table.take(rows)
    listed += skipped(table)
    if not len(images):
        raise ValueError(_nothing(name, listed))
    if (
        request.value_range is None
        and form.value_range is None
        and (images["bits"].to_numpy() > 8).any()
    ):
        say_once(f"'{name}' {_MIXED}")
    columns = source.columns(splits)
    columns = with_exif(None if columns is None else columns.take(pyarrow.array(rows)), images)
    reopen = functools.partial(pixel_cache.mapped, home, entry.shape, form)
    originals = functools.partial(source.originals, images, store.folder / "datasets")
    unlabelled = images["label"].null_count == len(images)
    return Images(
        [Stored(pixels, len(images), originals, None if pixels is None else reopen)],
        names=images["name"].to_pylist(),
        form=form,
        labels=None if unlabelled else images["label"].fill_null(-1).to_numpy().copy(),
        class_names=class_names,
        skipped=listed,
        statistics=(entry.mean, entry.std),
        split=splits[0] or None if len(splits) == 1 else None,
        columns=columns,
        table=table,
    )


def _nothing(name: str, wrong: list[tuple[str, str]]) -> str:
    if not wrong:
        return f"'{name}' holds no images"
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
    source: Source,
    table: pyarrow.Table,
    folder: Path,
    value_range: ValueRange,
    rows: np.ndarray,
    channels: int,
) -> list[float] | None:
    """The value range of a sample; it is saved, as reading a hundred large images takes seconds."""
    sample = table.take(rows)
    saved = (
        folder / f"{pixel_cache.key([sample['digest'].to_pylist(), channels, value_range])}.range"
    )
    with contextlib.suppress(OSError, ValueError):
        return json.loads(saved.read_text())
    with without_warnings(), only_python_writes():
        found, passing = _sampled_range(source.encoded(sample), channels, value_range)
    if not passing:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_file(saved, json.dumps(found))
    return found


def _sampled_range(
    images: Iterable[bytes | str | None], channels: int, value_range: ValueRange
) -> tuple[list[float] | None, bool]:
    """Low and high of every channel from some images, None where none can be read; and whether
    another day may differ.

    That is where the machine could not read one of them.
    """
    planes, passing = [], False
    for data in images:
        try:
            if data is not None and (numbers := own_numbers(data, channels, [0, 1])) is not None:
                planes.append(thinned(numbers.read()))
        except Exception as error:  # it is listed with its reason when all are decoded
            passing = passing or is_passing(error)
    return of_sample(planes, channels, value_range) if planes else None, passing
