"""`open_few`: a few images of a source, without decoding the others."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nearfar.data import sources
from nearfar.data.building import USUAL
from nearfar.data.columns import Originals, Record, printable
from nearfar.data.decode import to_pil
from nearfar.data.encoded import Opening
from nearfar.data.images import Images
from nearfar.data.joined import open_joined
from nearfar.data.locating import encoded_source
from nearfar.data.objects import describe, from_items
from nearfar.data.opening import CACHE_LIMIT, check_size, open_images, shown_positions
from nearfar.data.readers import Reading
from nearfar.data.value_range import ValueRange, checked, spread
from nearfar.data.wide_format import first_raw


def open_few(
    source: Any,
    count: int,
    *,
    split: str | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    value_range: Any = None,
    show_channels: Sequence[int] | None = None,
) -> Images:
    """Open `count` images, evenly spaced over a source; all where there are no more.

    Size, channels and value range are chosen as by `open_images`, from these images alone. Where the number of images
    is not known without reading all (tars), the first ones are taken. Unreadable images are left out. Nothing is
    cached. Raises ValueError or FileNotFoundError as `open_images` does.
    """
    check_size(image_size)
    if sources.are_several(source):
        share = -(-count // len(source))

        def open_one(one: Any, size: int | None, wanted: int | None, values: ValueRange) -> Images:
            fixed: dict[str, Any] = dict(image_size=size, channels=wanted, value_range=values)
            return open_few(one, share, split=split, show_channels=show_channels, **fixed)

        return open_joined(source, open_one, image_size, channels, checked(value_range))
    found = encoded_source(source)
    if found is None:
        chosen: dict[str, Any] = dict(image_size=image_size, channels=channels, value_range=value_range)
        images = open_images(source, split=split, show_channels=show_channels, **chosen)
        return images.subset(spread(len(images), count))
    name = describe(source)
    pictures, names, wrong = [], [], ""
    value_range = checked(value_range)
    with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch:
        readings = [found.read(part, None, Path(scratch)) for part in sources.choose_splits(found.splits, split, name)]
        totals = [reading.total for reading in readings if reading.total is not None]
        places = set(spread(sum(totals), count) if len(totals) == len(readings) else range(count))
        records = islice(chain.from_iterable(reading.records for reading in readings), max(places, default=0) + 1)
        few = _Few([record for place, record in enumerate(records) if place in places])
        if first_raw(few.reading) is not None:
            kept = (Path(scratch), CACHE_LIMIT, None, None)
            images = Opening(few, name, [""], image_size, channels, None, *kept, value_range).images()
            images.shown = shown_positions(show_channels, images.channels)
            return images
        for record in few.records:
            try:
                pictures.append(to_pil(record.data or b"", at_least=2 * (image_size or USUAL))[0])
                names.append(printable(record.name))
            except Exception as error:  # decoders raise anything on damaged data
                wrong = f"; {printable(record.name)}: {' '.join(str(error).split())}"
    if not pictures:
        raise ValueError(f"none of the {len(places)} images looked at in '{name}' can be read{wrong}")
    images = from_items(pictures, name, image_size, channels, CACHE_LIMIT, None)
    images.names, images.shown = names, shown_positions(show_channels, images.channels)
    return images


class _Few:
    """A few records as a source of their own."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.splits: dict[str, Any] = {"": None}
        self.problems: list[tuple[str, str]] = []

    def reading(self) -> Reading:
        return Reading(iter(self.records), None, len(self.records))

    def digests(self, splits: Sequence[str], folder: Path) -> dict[str, str]:
        return {}

    def identity(self, splits: Sequence[str], digests: Mapping[str, str]) -> list[Any]:
        return []

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        return self.reading()

    def originals(self, splits: Sequence[str], label_column: str | None, rows: list[int], scratch: Path) -> Originals:
        return [self.records[row].data or b"" for row in rows]
