"""TIFF of any number of channels, by tifffile where Pillow makes no 8-bit picture of it."""

from __future__ import annotations

import logging
import math

import numpy as np
from PIL import Image, UnidentifiedImageError

from nearfar.data.raw import Planes, Raw, must_be_small, of_pillow, opened, upright

_BITS, _ORIENTATION, _SAMPLES = 258, 274, 277


def tiff(data: bytes | str) -> Raw | None:
    """A TIFF whose samples and pages are channels; None for a picture of 8 bits and one page, or of pages in colour.

    Pages count as channels as far as they are like the first.
    """
    bits = 0
    try:
        with Image.open(opened(data), formats=["TIFF"]) as image:
            bits, pages = max(image.tag_v2.get(_BITS, (1,))), _pages(image)
            if bits < 8 or (bits == 8 and (pages == 1 or image.mode != "L")):
                return None
            if pages == image.tag_v2.get(_SAMPLES, 1) == 1 and (found := of_pillow(data)) is not None:
                return found
    except UnidentifiedImageError:
        pass  # other channels than those of a picture
    try:
        found = _by_tifffile(data, pillow=bits > 0)
    except Exception:
        if bits != 8:
            raise
        return None  # its first page is a picture
    return None if bits == 8 and found.channels == 1 else found


def _pages(image: Image.Image) -> int:
    """How many pages there are; 1 where what follows the first is damaged."""
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # Pillow raises anything on damaged data
        return 1


def _by_tifffile(data: bytes | str, pillow: bool) -> Raw:
    import tifffile

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what is wrong is listed with the image
    with tifffile.TiffFile(opened(data)) as file:
        series = file.series[0]
        axes, shape, kind = series.axes, series.shape, np.dtype(series.dtype)
        tag = file.pages.first.tags.get(_ORIENTATION)
        orientation = 1 if tag is None else int(tag.value)
    if "X" not in axes or "Y" not in axes or kind.kind not in "uif" or kind.itemsize > 8:
        raise ValueError(f"its axes are {axes}, of {kind}: an image has rows and columns of real numbers")
    down, across = axes.index("Y"), axes.index("X")
    height, width = shape[down], shape[across]
    channels = math.prod(shape) // max(1, height * width)
    must_be_small(width, height, channels)

    def read() -> Planes:
        with tifffile.TiffFile(opened(data)) as file:
            numbers = np.moveaxis(file.series[0].asarray(), (down, across), (-2, -1))
        numbers = numbers.astype(kind.newbyteorder("="), copy=False)
        return upright(numbers.reshape(channels, height, width), orientation)

    native = (height, width) if orientation > 4 else (width, height)
    return Raw(channels, native, kind != np.uint8, pillow, read)
