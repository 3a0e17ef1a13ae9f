"""From an encoded image (bytes or a file) to a square uint8 array, whatever the image's mode."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

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


class Decoded(NamedTuple):
    """One decoded image: `pixels` [channels, size, size], and what the file held: (width, height) and colour or not."""

    pixels: UInt8[np.ndarray, "channels size size"]
    native: tuple[int, int]
    colour: bool


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that are read, of those that the installed Pillow has."""
    Image.init()
    return tuple(form for form in _FORMATS if form in Image.OPEN)


@functools.cache
def suffixes() -> frozenset[str]:
    """The file name endings (lower case, with the dot) that are read as images."""
    return frozenset(end for end, form in Image.registered_extensions().items() if form in formats() or form == "MPO")


def decode(data: bytes | str, size: int, channels: int) -> Decoded:
    """Decode to [channels, size, size] uint8: upright, on white, shorter side resized to `size`, centre kept.

    `data`: the encoded bytes, or the path of a file; `channels`: 1 (grey) or 3 (RGB). Raises what Pillow raises for a
    damaged, unknown or dangerously large image. Conversions: see `to_pil`.
    """
    image, native = to_pil(data, at_least=2 * size)
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
    with _open(data) as image:
        native = image.size
        image.draft(None, (at_least, at_least))
        image.load()
        orientation = 1
        with contextlib.suppress(Exception):  # a damaged EXIF block is no reason to lose the picture
            orientation = image.getexif().get(_ORIENTATION, 1)
        simple = plain(image)
    return simple.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else simple, native


def _open(data: bytes | str) -> Image.Image:
    return Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=formats())


def plain(image: Image.Image) -> Image.Image:
    """The same picture in mode L or RGB; see `to_pil` for how."""
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray(_eight_bit(np.asarray(image, dtype=np.float64), sixteen=True))
    if image.mode in ("I", "F"):
        return Image.fromarray(_eight_bit(np.asarray(image, dtype=np.float64), unit=image.mode == "F"))
    if image.mode in ("1", "L") and "transparency" not in image.info:
        return image.convert("L")
    if image.mode in _ALPHA or "transparency" in image.info:
        grey = image.mode in ("1", "L", "LA", "La")
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        flat = Image.alpha_composite(white, layer).convert("RGB")
        return flat.getchannel(0) if grey or (image.mode == "PA" and _is_grey(flat)) else flat
    flat = image.convert("RGB")
    return flat.getchannel(0) if image.mode == "P" and _is_grey(flat) else flat


def _is_grey(image: Image.Image) -> bool:
    red, green, blue = (np.asarray(image.getchannel(c)) for c in range(3))
    return bool((red == green).all() and (green == blue).all())


def _eight_bit(values: np.ndarray, sixteen: bool = False, unit: bool = False) -> np.ndarray:
    """Wide grey values (float64) to uint8; the ranges are those of `to_pil`."""
    if not np.isfinite(values).all():
        raise ValueError("the image holds values that are not finite")
    low, high = values.min(), values.max()
    if sixteen:
        scaled = values / 257
    elif low >= 0 and unit and high <= 1:
        scaled = values * 255
    elif low >= 0 and high <= 255:
        scaled = values
    elif low >= 0 and high <= 65535 and not unit:
        scaled = values / 257
    else:
        scaled = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    return np.rint(scaled).astype(np.uint8)


def _fit(image: Image.Image, size: int) -> Image.Image:
    """`views.resize_square` for one Pillow image: the same crop and filter, so within 1 of 255 the same pixels."""
    top, left, side = centre_square(image.height, image.width)
    if image.width != image.height:
        image = image.crop((left, top, left + side, top + side))  # before the resize, which would look beyond a box
    return image if side == size else image.resize((size, size), Image.Resampling.BICUBIC)
