"""The format of images that are no pictures of 8 bits, from a sample of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from nearfar.data.building import PixelFormat, first_format, format_after
from nearfar.data.columns import Record
from nearfar.data.decode import formats, without_warnings
from nearfar.data.raw import Raw, opened, raw
from nearfar.data.readers import Reading
from nearfar.data.value_range import EIGHT_BITS, SAMPLED, ValueRange, common, of_sample, spread, thinned
from nearfar.data.wide import PICTURE


@without_warnings()
def first_raw(read: Callable[[], Reading]) -> Raw | None:
    """The first image, where it is no picture of 8 bits; nothing is decoded, and what is no image is passed over."""
    for record in read().records:
        try:
            found = _raw(record)
            if found is not None:
                return found
            if record.data is not None:
                with Image.open(opened(record.data), formats=formats()):
                    return None
        except Exception:  # readers raise anything on damaged data
            continue
    return None


@without_warnings()
def sampled_format(
    read: Callable[[], Reading], image_size: int | None, channels: int | None, value_range: ValueRange
) -> PixelFormat:
    """The format from what the user fixed and, for the rest, a sample; its value range is None where 8 bits suffice.

    So it is where any image of the sample has 8 bits, unless the range is given. Of several numbers of channels the
    most frequent counts. Raises ValueError for a range that does not fit.
    """
    seen: list[tuple[Raw, np.ndarray]] = []
    pictures = 0
    for record in _sample(read):
        try:
            if (found := _raw(record)) is not None:
                seen.append((found, thinned(found.read())))
            else:
                pictures += record.data is not None
        except Exception:  # it is listed with its reason when all are decoded
            continue
    if not seen:
        return first_format(read().records, image_size, channels)
    has = common(found.channels for found, _ in seen)
    number = channels or has
    fitting = [one for one in seen if one[0].channels == number or {one[0].channels, number} <= set(PICTURE)]
    form = format_after((fitting or seen)[0][0].native, has, image_size, channels)
    wide = all(found.wide for found, _ in fitting) and not (pictures and number in PICTURE)
    given = value_range is not None and not isinstance(value_range, str)
    if value_range == EIGHT_BITS or not fitting or not (wide or given):
        return form
    return form._replace(
        value_range=of_sample([planes for _, planes in fitting], number, value_range), all_wide=not given
    )


def _raw(record: Record) -> Raw | None:
    return None if record.data is None else raw(record.data)


def _sample(read: Callable[[], Reading]) -> list[Record]:
    """Records evenly spaced over all where their number is known, else the first ones."""
    reading = read()
    chosen = set(range(SAMPLED) if reading.total is None else spread(reading.total))
    found = []
    for place, record in enumerate(reading.records):
        if place in chosen:
            found.append(record)
        if place >= max(chosen, default=0):
            break
    return found
