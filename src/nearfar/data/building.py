"""Decode every record once, in parallel and in order: pixels to the cache, names and statistics to its entry."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from PIL import Image

from nearfar.data.cache import COLUMNS, Entry, pixels_file
from nearfar.data.columns import Record, printable
from nearfar.data.decode import Decoded, without_warnings
from nearfar.data.digests import digest
from nearfar.data.wide import decode_as

SMALL = 96  # images all of one size up to this many pixels keep it
USUAL = 224
LARGEST = 8192  # one image of that size takes 200 MB
_CHUNK = 2**22  # bytes of encoded data or pixels that one thread takes on at a time

Progress = Callable[[int, int | None], None]
Worked = tuple[Record, str | None, Decoded | str]
"""A record, the digest of its image where known, and its decoded image or why there is none."""


class PixelFormat(NamedTuple):
    """Size and channels of decoded images, and what they rest on: all have size `native` (if given), all are grey.

    value_range: low and high of every channel, which become 0 and 1 of uint16; None: uint8. all_wide: that all have
    more than 8 bits.
    """

    size: int
    channels: int
    native: tuple[int, int] | None
    all_grey: bool
    value_range: list[float] | None = None
    all_wide: bool = False

    def widened(self, native: tuple[int, int], colour: bool, wide: bool = False) -> PixelFormat:
        """The format once one more image was seen: the same, or without the assumption that the image breaks."""
        wider = self
        if self.all_wide and not wide:
            wider = wider._replace(value_range=None, all_wide=False)
        if self.native is not None and native != self.native:
            wider = wider._replace(size=USUAL, native=None)
        if self.all_grey and colour:
            repeated = wider.value_range and wider.value_range * 3
            wider = wider._replace(channels=3, all_grey=False, value_range=repeated)
        return wider


class Widened(Exception):
    """An image breaks an assumption: start again with this format."""

    def __init__(self, pixel_format: PixelFormat) -> None:
        super().__init__(pixel_format)
        self.pixel_format = pixel_format


def first_format(records: Iterable[Record], image_size: int | None, channels: int | None) -> PixelFormat:
    """The format from what the user fixed and, for the rest, the first readable image."""
    if image_size is None or channels is None:
        seen = first_readable(records)
        if seen is not None:
            return format_after(seen.native, 3 if seen.colour else 1, image_size, channels)
    return PixelFormat(image_size or USUAL, channels or 3, None, False)


def first_readable(records: Iterable[Record]) -> Decoded | None:
    """The first image that can be decoded, at a small size."""
    small = PixelFormat(SMALL, 3, None, False)
    return next((seen for seen in (_try(record, small) for record in records) if isinstance(seen, Decoded)), None)


def format_after(native: tuple[int, int], has: int, image_size: int | None, channels: int | None) -> PixelFormat:
    """The format from what the user fixed and, for the rest, one image of that (width, height) with `has` channels."""
    small = image_size is None and max(native) <= SMALL
    size = image_size or (min(native) if small else USUAL)
    return PixelFormat(size, channels or has, native if small else None, channels is None and has == 1)


def build(
    part: Path,
    records: Iterable[Record],
    total: int | None,
    pixel_format: PixelFormat,
    store_limit: int,
    workers: int | None,
    progress: Progress | None,
    digests: Mapping[str, str],
    known: Mapping[str, Decoded],
) -> tuple[Entry, list[Any]]:
    """Decode `records`; pixels go to a file in `part` unless they would take more than `store_limit` bytes.

    digests: of files, by path. known: images that were decoded to this format before, by digest.
    Returns the entry and the labels of all records as the source has them. Unreadable images have no pixels. Raises
    `Widened` where an image breaks what the format rests on.
    """
    table: dict[str, list[Any]] = {name: [] for name in COLUMNS.names}
    labels: list[Any] = []
    moments: np.ndarray = np.zeros((2, pixel_format.channels), dtype=np.int64)
    wide = pixel_format.value_range is not None
    path, any_wide = part / pixels_file(wide), False
    (part / pixels_file(not wide)).unlink(missing_ok=True)  # of a format that an image has broken
    count = 0
    stored = store_limit > 0

    def decoded(record: Record) -> Worked:
        mark = digests.get(record.data) if isinstance(record.data, str) else record.data and digest(record.data)
        return record, mark or None, known.get(mark or "") or _try(record, pixel_format)

    chunks = _in_order(records, decoded, pixel_format, workers)
    with contextlib.closing(chunks), open(path, "wb") as file:
        for pieces in chunks:
            kept = []
            for record, mark, result in pieces:
                row: tuple[Any, ...]
                if isinstance(result, str):
                    row = (printable(record.name), result, mark, None, None, None, None)
                else:
                    wider = pixel_format.widened(result.native, result.colour, result.wide)
                    any_wide = any_wide or result.wide
                    if wider != pixel_format:
                        raise Widened(wider)
                    row = (printable(record.name), None, mark, *result.native, result.colour, result.wide)
                    kept.append(result.pixels)
                for column, value in zip(table.values(), row, strict=True):
                    column.append(value)
                labels.append(record.label)
            count += len(kept)
            if kept:
                block = np.ascontiguousarray(np.stack(kept))
                raw = block.data
                moments = moments + moments_of(block)
                stored = stored and file.tell() + block.nbytes <= store_limit
                if stored:
                    file.write(raw)
            if progress is not None:
                progress(len(labels), total)
        file.flush()
        os.fsync(file.fileno())
    if wide and count and not any_wide:  # a range was given for pictures of 8 bits
        raise Widened(pixel_format._replace(value_range=None))
    if not stored:
        path.unlink()
    mean, std = statistics(moments, count * pixel_format.size**2, 65535 if wide else 255)
    entry = Entry(
        pyarrow.table(table, COLUMNS),
        image_size=pixel_format.size,
        channels=pixel_format.channels,
        mean=mean,
        std=std,
        stored=stored,
        value_range=pixel_format.value_range,
    )
    return entry, labels


def moments_of(block: np.ndarray) -> np.ndarray:
    """Sums [2, channels] of the values and squares of images: exact for uint8, float64 for uint16."""
    values = block.astype(np.int64 if block.dtype == np.uint8 else np.float64)
    return np.stack([values.sum((0, 2, 3)), (values * values).sum((0, 2, 3))])


def statistics(moments: np.ndarray, count: int, largest: int = 255) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel in 0..1 from sums [2, channels] of values and squares in 0..largest."""
    if count == 0:
        return [0.0] * moments.shape[1], [0.0] * moments.shape[1]
    mean, square = (moments / count).astype(np.float64)
    std = np.sqrt(np.maximum(square - mean**2, 0))
    return (mean / largest).tolist(), (std / largest).tolist()


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_order(
    records: Iterable[Record], work: Callable[[Record], Worked], pixel_format: PixelFormat, workers: int | None
) -> Generator[list[Worked], None, None]:
    """What `work` makes of the records, in chunks; in order, a few chunks ahead."""
    count = workers or usable_cores()
    most = min(32, max(1, _CHUNK // (pixel_format.channels * pixel_format.size**2)))
    stop = threading.Event()

    def work_on(chunk: list[Record]) -> list[Worked]:
        return [work(record) for record in chunk if not stop.is_set()]

    waiting: deque[Future[list[Worked]]] = deque()
    with ThreadPoolExecutor(count) as pool, without_warnings():
        try:
            for chunk in _chunks(records, most):
                waiting.append(pool.submit(work_on, chunk))
                if len(waiting) > 2 * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()  # or Ctrl-C would wait for the rest of the chunks
            for future in waiting:
                future.cancel()


def _try(record: Record, form: PixelFormat) -> Decoded | str:
    if record.data is None:
        return record.problem
    try:
        return decode_as(record.data, form.size, form.channels, form.value_range)
    except Image.DecompressionBombError:
        return f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels (PIL.Image.MAX_IMAGE_PIXELS sets the limit)"
    except Image.UnidentifiedImageError:
        return "not an image of a known format"
    except Exception as error:  # decoders raise anything on damaged data
        return " ".join(str(error).split()) or type(error).__name__


def _chunks(records: Iterable[Record], most: int) -> Iterator[list[Record]]:
    """Records in lists of at most `most` and about 4 MB of encoded data."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.data) if isinstance(record.data, bytes) else 0
        if len(chunk) == most or size > _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
