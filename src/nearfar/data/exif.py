"""Notes of a camera in an image: time, camera and place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from nearfar.data.left_out import is_passing
from nearfar.data.table import cut

LONGEST = 100  # characters of a text


class Exif(NamedTuple):
    """The local time at which a picture was taken, the camera, and degrees north and east; None
    where there is none.
    """

    taken: datetime | None = None
    camera: str | None = None
    latitude: float | None = None
    longitude: float | None = None


KINDS = pyarrow.timestamp("s"), pyarrow.string(), pyarrow.float64(), pyarrow.float64()
TYPES = dict(zip(Exif._fields, KINDS, strict=True))


def exif_of(image: Image.Image) -> Exif:
    """The EXIF data in the header of an opened image; what is damaged counts as missing."""
    if "exif" not in image.info:  # of a PNG, Pillow would decode the image to look behind it
        return Exif()
    taken, camera = None, ""
    place: list[float | None] = [None, None]
    with suppress_damage():
        tags = image.getexif()
        camera = cut(str(tags.get(Base.Model, "")), LONGEST)
        own, gps = tags.get_ifd(IFD.Exif), tags.get_ifd(IFD.GPSInfo)
        with contextlib.suppress(ValueError):
            noted = own.get(Base.DateTimeOriginal) or tags.get(Base.DateTime) or ""
            taken = datetime.strptime(str(noted).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        place = [
            _degrees(gps.get(GPS.GPSLatitude), gps.get(GPS.GPSLatitudeRef) == "S", 90),
            _degrees(gps.get(GPS.GPSLongitude), gps.get(GPS.GPSLongitudeRef) == "W", 180),
        ]
    return Exif(taken, camera or None, *(place if None not in place else (None, None)))


@contextlib.contextmanager
def suppress_damage() -> Iterator[None]:
    """Pass over what readers raise on damaged data, which is anything, but not over what the
    machine lacks.
    """
    try:
        yield
    except Exception as error:
        if is_passing(error):
            raise


def _degrees(parts: Any, negative: bool, most: int) -> float | None:
    """Degrees, minutes and seconds as degrees."""
    if parts is None or len(parts) != 3:
        return None
    degrees = sum(float(part) / 60**power for power, part in enumerate(parts))
    return (
        (-degrees if negative else degrees)
        if math.isfinite(degrees) and 0 <= degrees <= most
        else None
    )


def with_exif(columns: pyarrow.Table | None, table: pyarrow.Table) -> pyarrow.Table | None:
    """Columns of images and those of EXIF data in their table that have any value, unless a name is
    taken.
    """
    taken = set() if columns is None else set(columns.column_names)
    for name in TYPES:
        if name not in taken and table[name].null_count < len(table):
            columns = (
                table.select([name])
                if columns is None
                else columns.append_column(name, table[name])
            )
    return columns
