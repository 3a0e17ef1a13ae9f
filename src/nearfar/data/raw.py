"""Image files in numbers of their own: more than 8 bits, or other channels than grey and colour."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from PIL import Image

from nearfar.data.decode import formats

Planes = Shaped[np.ndarray, "channels height width"]
_START = 132  # bytes that tell the formats apart; those of DICOM are the last four
_PNG, _TIFF = b"\x89PNG\r\n\x1a\n", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_ORIENTATION = 0x0112
_STRIP = 64  # rows
_WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")  # modes of Pillow


class Raw(NamedTuple):
    """An image that is not yet read.

    `native`: (width, height); `wide`: of more than 8 bits; `pillow`: whether Pillow makes an 8-bit picture of it;
    `read`: gives its numbers, [channels, height, width].
    """

    channels: int
    native: tuple[int, int]
    wide: bool
    pillow: bool
    read: Callable[[], Planes]


def raw(data: bytes | str) -> Raw | None:
    """An image in its own numbers, by its encoded bytes or path; None for an 8-bit picture and what is no image.

    TIFF (also GeoTIFF: every sample and page is a channel), PNG of 16 bits, PGM and JPEG 2000 of more than 8, DICOM.
    Raises what readers raise for damaged files, and ValueError where a reader is not installed.
    """
    if isinstance(data, bytes):
        start = data[:_START]
    else:
        with open(data, "rb", buffering=0) as file:
            start = file.read(_START)
    if start[:8] == _PNG:
        return _png(data, start[25]) if start[24:25] == b"\x10" and len(start) > 25 else None
    if start[:4] in _TIFF:
        from nearfar.data.tiff import tiff

        return tiff(data)
    if start[128:] == b"DICM":
        from nearfar.data.dicom import dicom

        return dicom(data)
    return of_pillow(data) if start[:2] == b"P5" or start.startswith(_JPEG2000) else None


def opened(data: bytes | str) -> io.BytesIO | str:
    """What libraries open: a file in memory, or the path."""
    return io.BytesIO(data) if isinstance(data, bytes) else data


def of_pillow(data: bytes | str) -> Raw | None:
    """A grey image of more than 8 bits that Pillow reads as it is; None for any other."""

    def read() -> Planes:
        with Image.open(opened(data), formats=formats()) as image:
            numbers = np.asarray(image)
            numbers = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
            return upright(numbers[None], image.getexif().get(_ORIENTATION, 1))

    with Image.open(opened(data), formats=formats()) as image:
        turned = image.getexif().get(_ORIENTATION, 1) > 4
        native = (image.height, image.width) if turned else image.size
        return Raw(1, native, True, True, read) if image.mode in _WIDE else None


def upright(planes: Planes, orientation: int) -> Planes:
    """Undo an EXIF orientation, 1 to 8."""
    if orientation in (5, 6, 7, 8):
        planes = planes.transpose(0, 2, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return planes[:, :: -1 if down else 1, :: -1 if across else 1]


def _png(data: bytes | str, kind: int) -> Raw | None:
    """A PNG of 16 bits: grey by Pillow, which makes 8 bits of all others; those by torchvision. Alpha lies on white."""
    if kind == 0:
        return of_pillow(data)
    with Image.open(opened(data), formats=["PNG"]) as image:  # refuses sizes that would fill the memory
        native = image.size

    def read() -> Planes:
        from torchvision.io import ImageReadMode, decode_png

        encoded = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.fromfile(data, np.uint8)
        planes = decode_png(torch.tensor(encoded), ImageReadMode.UNCHANGED).numpy()
        if len(planes) in (2, 4):
            for top in range(0, native[1], _STRIP):  # in place, as whole planes of wider numbers take gigabytes
                strip = planes[:, top : top + _STRIP]
                alpha = strip[-1].astype(np.uint32)
                strip[:-1] = (strip[:-1] * alpha + 65535 * (65535 - alpha) + 32767) // 65535
            planes = planes[:-1]
        return planes

    return Raw(1 if kind == 4 else 3, native, True, True, read)


def must_be_small(width: int, height: int, channels: int) -> None:
    """Raise Pillow's error for more numbers than an image may have: a header may claim anything."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and math.prod((width, height, channels)) > 8 * most:
        raise Image.DecompressionBombError(f"{channels} channels of {width} x {height} pixels")
