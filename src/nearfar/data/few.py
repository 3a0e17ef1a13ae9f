"""`open_few`: a few images of a source, without decoding the others."""

from __future__ import annotations

import tempfile
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data import sources
from nearfar.data.building import USUAL
from nearfar.data.columns import printable
from nearfar.data.decode import to_pil
from nearfar.data.images import Images
from nearfar.data.joined import open_joined
from nearfar.data.objects import describe, from_items
from nearfar.data.opening import CACHE_LIMIT, check_size, encoded_source, open_images


def open_few(
    source: Any,
    count: int,
    *,
    split: str | None = None,
    image_size: int | None = None,
    channels: int | None = None,
) -> Images:
    """Open `count` images, evenly spaced over a source; all where there are no more.

    Size and channels are chosen as by `open_images`, from these images alone. Where the number of images is not known
    without reading all (tars), the first ones are taken. Unreadable images are left out. Nothing is cached.
    Raises ValueError or FileNotFoundError as `open_images` does.
    """
    check_size(image_size)
    if sources.are_several(source):
        share = -(-count // len(source))
        options: dict[str, Any] = dict(split=split)
        return open_joined(
            source, lambda one, size, wanted: open_few(one, share, image_size=size, channels=wanted, **options),
            image_size, channels,
        )  # fmt: skip
    found = encoded_source(source)
    if found is None:
        images = open_images(source, split=split, image_size=image_size, channels=channels)
        return images.subset(_spread(len(images), count))
    name = describe(source)
    pictures, names, wrong = [], [], ""
    with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch:
        chosen = sources.choose_splits(found.splits, split, name)
        readings = [found.read(part, None, Path(scratch)) for part in chosen]
        totals = [reading.total for reading in readings if reading.total is not None]
        places = set(_spread(sum(totals), count) if len(totals) == len(readings) else range(count))
        records = islice(chain.from_iterable(reading.records for reading in readings), max(places, default=0) + 1)
        for record in (record for place, record in enumerate(records) if place in places):
            try:
                pictures.append(to_pil(record.data or b"", at_least=2 * (image_size or USUAL))[0])
                names.append(printable(record.name))
            except Exception as error:  # decoders raise anything on damaged data
                wrong = f"; {printable(record.name)}: {' '.join(str(error).split())}"
    if not pictures:
        raise ValueError(f"none of the {len(places)} images looked at in '{name}' can be read{wrong}")
    images = from_items(pictures, name, image_size, channels, CACHE_LIMIT, None)
    images.names = names
    return images


def _spread(total: int, count: int) -> list[int]:
    return np.linspace(0, total - 1, min(count, total)).round().astype(int).tolist()
