"""From an encoded image (bytes or a file) to a square array of 8 or 16 bits, whatever the image's
mode.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from PIL import Image
from torch import Tensor

from nearfar.data.bits import RANGES, are_finite, bits_of, floats, scaled, stored
from nearfar.data.layouts import as_planes, shape_of_planes, to_pixels
from nearfar.data.left_out import CUT_OFF, NO_FILE, NOT_AN_IMAGE, TOO_MANY_PIXELS
from nearfar.data.pictures import WHOLE, Header, as_picture, fitted, to_array
from nearfar.data.readers import Encoded, look
from nearfar.data.resources import memory_for
from nearfar.data.table import cut
from nearfar.data.value_range import PixelFormat
from nearfar.messages import check_range
from nearfar.views import centre_square, resize_square, unit

LONGEST_REASON = 200  # characters: messages of libraries may hold what the file says
_CUT_OFF = re.compile(r"truncat|unexpected end|end of file|cut off|premature|incomplete|too short")
PICTURE = (1, 3)  # channels of grayscale and colour, which are converted into each other


def header(data: bytes | str | np.ndarray) -> Header:
    """Read the header of an encoded image, or the shape of one in numbers; nothing is decoded.
    Raises what readers raise for a damaged one.
    """
    if isinstance(data, np.ndarray):
        _, bands, height, width = shape_of_planes((1, *data.shape), data.dtype)
        return Header(height, width, bands, bits_of(data.dtype, lambda: as_planes(data[None])))
    seen = look(data).header()
    if min(seen.height, seen.width, seen.bands, seen.pages) < 1:
        raise ValueError("it has no pixels")
    return seen


def reason(error: BaseException) -> str:
    """Why an image cannot be read, in one line that is the same every time; see
    `nearfar.data.left_out`.
    """
    words = cut(" ".join(str(error).split()) or type(error).__name__, LONGEST_REASON)
    if isinstance(error, Image.DecompressionBombError):
        return f"{TOO_MANY_PIXELS}: above the limit of {pixel_limit():,} (`max_pixels` raises it)"
    if isinstance(error, Image.UnidentifiedImageError):  # its message may name an address in memory
        return NOT_AN_IMAGE
    if isinstance(error, MemoryError):
        return f"out of memory: {words}"
    if isinstance(error, FileNotFoundError):  # a link that leads nowhere, or a file that is gone
        return NO_FILE
    if isinstance(error, OSError) and error.strerror:  # without the number and the path
        return error.strerror.lower()
    return f"{CUT_OFF}: {words}" if _CUT_OFF.search(words.lower()) else words


def pixel_limit() -> float:
    """Return the largest number of pixels of an image, by Pillow's limit, at twice of which it
    raises errors.
    """
    return math.inf if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def raise_pixel_limit(most: int | None) -> None:
    """Let images have so many pixels in this process, if that is more than they may have; None: as
    many as now.
    """
    check_range("max_pixels", most, 1)
    if most is not None and most > pixel_limit():
        Image.MAX_IMAGE_PIXELS = -(-most // 2)


def decode(
    data: bytes | str | np.ndarray, form: PixelFormat
) -> Shaped[np.ndarray, "channels {form.size} {form.size}"]:
    """Decode to uint8, or to uint16 where there is a value range: upright, shorter side to `size`,
    cut in the centre.

    data: encoded bytes, the path of a file, or numbers in any layout that arrays have. Grayscale
    (1) and colour (3) channels are converted into each other; any other number must be that of the
    image. What becomes 0 and 1, the ends of the type, says `nearfar.data.bits`. Raises what Pillow
    raises for a damaged, unknown or dangerously large image, and ValueError for other channels.
    """
    size, channels, value_range = form
    if isinstance(data, np.ndarray):
        return to_pixels(as_planes(data[None], channels), form)[0].numpy()
    numbers = own_numbers(data, channels, value_range)
    if numbers is not None:
        return stored(_planes(numbers, channels, value_range, size).numpy(), form.dtype)
    with as_picture(data, at_least=2 * size) as image:
        narrow = image.convert("L") if image.mode == "RGB" and channels == 1 else image
        pixels = to_array(fitted(narrow, size), channels)
    return stored(pixels, form.dtype)


def own_numbers(
    data: bytes | str, channels: int, value_range: Sequence[float] | None
) -> Encoded | None:
    """An image that is read in its own numbers; None for one that is read as a picture of 8 bits.

    Pages are channels where more than a picture has are asked for, and the pages have as many.
    """
    image = look(data)
    if image.read_pages is not None:
        seen = image.header()
        if pages_are_channels(seen.bands, seen.pages, channels):
            joined = seen._replace(bands=channels, pages=1)
            return image._replace(header=lambda: joined, read=image.read_pages)
    if image.picture == "never":
        return image
    if image.picture == "always":
        if channels not in PICTURE:
            raise ValueError(
                f"it is a picture of 8 bits, which has 1 or 3 channels, and {channels} are read"
            )
        return None
    if value_range is not None or channels not in PICTURE:
        return image
    seen = image.header()
    return image if seen.bits == 8 and seen.bands == channels else None


def pages_are_channels(bands: Any, pages: Any, channels: int) -> Any:
    """Return whether pages of so many bands are read as so many channels; of numbers, or of arrays
    of them.
    """
    return (pages > 1) & (bands * pages == channels) & (channels not in PICTURE)


def pixels_of(
    data: bytes | str, form: PixelFormat
) -> Shaped[Tensor, "channels {form.size} {form.size}"]:
    """Decode to a tensor: uint8, or float in 0..1 where there is a value range."""
    return floats(decode(data, form).copy())


def whole(
    data: bytes | str, channels: int, value_range: Sequence[float] | None, at_least: int = WHOLE
) -> Image.Image | Shaped[Tensor, "channels height width"]:
    """An image at its own size and shape: a picture of 8 bits as Pillow has it, of mode L (for 3
    channels, too) or RGB; any other as `whole_planes` has it.

    at_least: pixels that both sides keep where JPEG files may be decoded at a fraction of their
    size.
    """
    if (numbers := own_numbers(data, channels, value_range)) is not None:
        return _planes(numbers, channels, value_range)
    with as_picture(data, at_least) as image:
        return image.convert("L") if channels == 1 else image


def whole_planes(
    data: bytes | str, channels: int, value_range: Sequence[float] | None, at_least: int = WHOLE
) -> Shaped[Tensor, "channels height width"]:
    """An image at its own size and shape: uint8, or float in 0..1 where there is a value range.

    at_least: as of `whole`.
    """
    image = whole(data, channels, value_range, at_least)
    planes = image if isinstance(image, Tensor) else torch.tensor(to_array(image, channels))
    return planes if value_range is None else unit(planes)


def _planes(
    image: Encoded, channels: int, value_range: Sequence[float] | None, size: int | None = None
) -> Shaped[Tensor, "channels height width"]:
    """An image in its own numbers as uint8, or float in 0..1 where there is a value range; with a
    size the centre square, resized to it.
    """
    _, width, bands, *_ = known = image.header()
    if bands != channels and not {bands, channels} <= set(PICTURE):
        raise ValueError(f"it has {bands} channels, and {channels} are read: `channels` chooses")
    with memory_for(width * known.height * bands):
        planes = image.read()
        if size is not None:
            top, left, side = centre_square(*planes.shape[1:])
            planes = planes[:, top : top + side, left : left + side]
        if not are_finite(planes):
            raise ValueError("the image holds values that are not finite")
        if value_range is None and planes.dtype.name not in RANGES:
            raise ValueError(
                f"it holds {planes.dtype} in {bands} channels, which 8 bits do not hold"
            )
        if bands != channels:
            made = scaled(planes[None], channels, value_range)
            return made[0] if size is None else resize_square(made, size)[0]
        # plane by plane, since floats of all of them would take twice as much memory
        parts = []
        for place, plane in enumerate(planes):
            ends = None if value_range is None else value_range[2 * place : 2 * place + 2]
            made = scaled(plane[None, None], 1, ends)
            parts.append(made if size is None else resize_square(made, size))
        return torch.cat(parts)[:, 0]
