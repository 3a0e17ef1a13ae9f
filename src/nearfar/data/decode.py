"""From an encoded image (bytes or a file) to a square uint8 array, whatever the image's mode."""

from __future__ import annotations

import contextlib
import functools
import io
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from nearfar.data.memory import SharedMemory
from nearfar.views import centre_square

# Formats that Pillow decodes by itself. Left out on purpose: EPS (starts Ghostscript), WMF, PDF, and the scientific
# containers whose Pillow plugins are stubs.
_FORMATS = [
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "BMP",
    "DIB",
    "TIFF",
    "PPM",
    "PCX",
    "TGA",
    "SGI",
    "ICO",
    "ICNS",
    "JPEG2000",
    "AVIF",
    "DDS",
    "MSP",
    "XBM",
    "IM",
    "SUN",
    "PSD",
    "QOI",
    "BLP",
]

_ORIENTATION = 0x0112
_UPRIGHT = {  # EXIF orientation: what makes the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_BYTES = 16  # for a pixel, at most: as it is decoded, converted, turned and cut
_MEMORY = SharedMemory(2**30)  # of all threads: an image of more than 67 million pixels is decoded alone


class Decoded(NamedTuple):
    """One decoded image: `pixels` [channels, size, size], uint8 or uint16, and what the file held.

    That is (width, height), whether there is more than one channel, and whether it had more than 8 bits and kept them.
    """

    pixels: Shaped[np.ndarray, "channels size size"]
    native: tuple[int, int]
    colour: bool
    wide: bool = False


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that are read, of those that the installed Pillow has."""
    Image.init()
    return tuple(form for form in _FORMATS if form in Image.OPEN)


@functools.cache
def suffixes() -> frozenset[str]:
    """The file name endings (lower case, with the dot) that are read as images."""
    endings = Image.registered_extensions().items()
    return frozenset(end for end, form in endings if form in formats() or form == "MPO") | {".dcm", ".dicom"}


def memory_for(values: int) -> contextlib.AbstractContextManager[None]:
    """Hold the memory that decoding an image of so many pixels takes, or so many numbers where it has many channels."""
    return _MEMORY.lent(_BYTES * values)


def decode(data: bytes | str, size: int, channels: int) -> Decoded:
    """Decode to [channels, size, size] uint8: upright, on white, shorter side resized to `size`, centre kept.

    `data`: the encoded bytes, or the path of a file; `channels`: 1 (grey) or 3 (RGB). Raises what Pillow raises for a
    damaged, unknown or dangerously large image. Conversions: see `to_pil`.
    """
    with _opened(data, at_least=2 * size) as (image, native):
        colour = image.mode == "RGB"
        if colour and channels == 1:
            image = image.convert("L")
        return Decoded(to_array(_fit(image, size), channels), native, colour)


def to_array(image: Image.Image, channels: int) -> UInt8[np.ndarray, "channels height width"]:
    """An L or RGB Pillow image as a [channels, height, width] array; grey is repeated for 3 channels."""
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        return np.broadcast_to(pixels, (channels, *pixels.shape))
    return pixels.transpose(2, 0, 1)


def to_pil(data: bytes | str, at_least: int) -> tuple[Image.Image, tuple[int, int]]:
    """Decode to a Pillow image of mode L (grey) or RGB, upright, and the (width, height) the file held.

    JPEG files may be decoded at a fraction of their size, as long as both sides keep `at_least` pixels.

    - animations: the first frame; EXIF orientation is applied
    - alpha (also in palettes and tRNS chunks): composited over white
    - 16 bits (also where Pillow opens them as 32): divided by 257 (the full range 0..65535 becomes 0..255)
    - 32-bit integers: as they are up to 255, divided by 257 up to 65535, else stretched from their own range
    - floats: 0..1 becomes 0..255, up to 255 as they are, else stretched from their own range
    - palette, CMYK, YCbCr, HSV: to RGB; a palette that only holds greys: grey
    """
    with _opened(data, at_least) as (image, native):
        return image, native


@contextlib.contextmanager
def _opened(data: bytes | str, at_least: int) -> Iterator[tuple[Image.Image, tuple[int, int]]]:
    """What `to_pil` returns, with the memory for it held while entered."""
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    with Image.open(file, formats=formats()) as image:
        native = image.size
        image.draft(None, (at_least, at_least))
        with memory_for(image.width * image.height):
            image.load()
            orientation = 1
            with contextlib.suppress(Exception):  # a damaged EXIF block is no reason to lose the picture
                orientation = image.getexif().get(_ORIENTATION, 1)
            simple = plain(image)
            yield simple.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else simple, native


def plain(image: Image.Image) -> Image.Image:
    """The same picture in mode L or RGB, made strip by strip to save memory; see `to_pil` for how."""
    clear = "transparency" in image.info or image.mode in _ALPHA
    if image.mode == "RGB" and not clear:
        return image
    if image.mode in (*_SIXTEEN_BIT, "I", "F"):
        return Image.fromarray(_eight_bit(image))
    grey = image.mode in ("1", "L", "LA", "La")
    out = Image.new("L" if grey else "RGB", image.size)
    all_grey = image.mode in ("P", "PA")
    for box in _strips(image):
        strip = image.crop(box)
        if clear:
            layer = strip.convert("RGBA")
            strip = Image.alpha_composite(Image.new("RGBA", layer.size, (255, 255, 255, 255)), layer)
        strip = strip.convert("RGB" if clear or not grey else "L")
        all_grey = all_grey and _is_grey(strip)
        out.paste(strip.getchannel(0) if grey else strip, box)
    return out.getchannel(0) if all_grey else out


def _strips(image: Image.Image) -> list[tuple[int, int, int, int]]:
    """Boxes of whole rows, each of about a million pixels."""
    rows = max(1, 2**20 // image.width)
    return [(0, top, image.width, min(top + rows, image.height)) for top in range(0, image.height, rows)]


def _is_grey(image: Image.Image) -> bool:
    red, green, blue = (np.asarray(image.getchannel(c)) for c in range(3))
    return bool((red == green).all() and (green == blue).all())


def _eight_bit(image: Image.Image) -> UInt8[np.ndarray, "height width"]:
    """Wide grey values to uint8; the ranges are those of `to_pil`."""
    unit = image.mode == "F"
    sixteen = image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format in ("PNG", "PPM"))
    low, scale = 0.0, 1 / 257
    if not sixteen:
        ends = [(strip.min(), strip.max()) for strip in map(functools.partial(_values, image), _strips(image))]
        lowest, highest = float(min(low for low, _ in ends)), float(max(high for _, high in ends))
        if not math.isfinite(lowest) or not math.isfinite(highest):
            raise ValueError("the image holds values that are not finite")
        if lowest >= 0 and unit and highest <= 1:
            scale = 255
        elif lowest >= 0 and highest <= 255:
            scale = 1
        elif lowest < 0 or highest > 65535 or unit:
            low, scale = lowest, 255 / (highest - lowest) if highest > lowest else 0
    out = np.empty((image.height, image.width), dtype=np.uint8)
    for box in _strips(image):
        out[box[1] : box[3]] = np.rint((_values(image, box) - low) * scale)
    return out


def _values(image: Image.Image, box: tuple[int, int, int, int]) -> np.ndarray:
    return np.asarray(image.crop(box), dtype=np.float64)


def _fit(image: Image.Image, size: int) -> Image.Image:
    """`views.resize_square` for one Pillow image: the same crop and filter, so within 1 of 255 the same pixels."""
    top, left, side = centre_square(image.height, image.width)
    if image.width != image.height:
        image = image.crop((left, top, left + side, top + side))  # before the resize, which would look beyond a box
    return image if side == size else image.resize((size, size), Image.Resampling.BICUBIC)
