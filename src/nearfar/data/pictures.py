"""Pictures of 8 bits, as Pillow makes them of most formats: upright, in grayscale or colour."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from nearfar.data.bits import as_bytes, range_of_grayscale
from nearfar.data.exif import Exif, exif_of
from nearfar.data.left_out import is_passing
from nearfar.data.resources import memory_for
from nearfar.views import centre_square

# Formats that Pillow decodes by itself. Left out on purpose: EPS (starts Ghostscript), WMF, PDF,
# and the scientific containers whose Pillow plugins are stubs.
_FORMATS = """
PNG JPEG WEBP GIF BMP DIB TIFF PPM PCX TGA SGI ICO ICNS JPEG2000 AVIF HEIF DDS MSP XBM IM SUN PSD
QOI BLP
"""
PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST_CHUNK = 2**20  # bytes of a PNG's chunk that may hold an orientation
_HEIC = (".heic", ".heif")
_EXACT = {"PNG", "GIF", "BMP", "DIB", "PPM", "PCX", "TGA", "SGI", "ICO", "MSP", "XBM", "SUN", "QOI"}
_LOSSY_TIFF = ("jpeg", "tiff_jpeg", "webp")  # compressions of TIFF, by Pillow's names
_MULTIPLE = {"GIF", "WEBP", "PNG", "TIFF", "AVIF", "HEIF"}  # formats with several frames or pages
ORIENTATION = 0x0112
_WIDTH, _HEIGHT = 256, 257  # tags of TIFF
_NATIVE = {"I;16BS": "I;16NS", "I;32B": "I;32N", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")  # modes of Pillow
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_UPRIGHT = {  # EXIF orientation: what makes the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
WHOLE = 2**30  # pixels: a picture is decoded at its full size


class Header(NamedTuple):
    """Header of an image; 8 or 16 bits, where 16 stands for all that are more than 8.

    `pages`: pages or frames, each with as many bands.
    """

    height: int
    width: int
    bands: int
    bits: int
    exif: Exif = Exif()
    pages: int = 1


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that are read, of those that the installed Pillow has; HEIC by the plug-in
    pillow-heif.
    """
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    Image.init()
    return tuple(form for form in _FORMATS.split() if form in Image.OPEN)


@functools.cache
def suffixes() -> frozenset[str]:
    """The file name endings (lower case, with the dot) that are read as images."""
    known = formats()
    endings = Image.registered_extensions().items()
    return frozenset(end for end, form in endings if form in known or form == "MPO") | {
        ".dcm",
        ".dicom",
        *_HEIC,
    }


def header_of_picture(data: bytes | str) -> Header:
    """Read the header of a picture; nothing is decoded.

    Height and width are those of the picture as it is shown, upright by its EXIF orientation. One
    in a palette is grayscale if the palette is.
    """
    with open_picture(data) as image:
        width, height = shown_size(image, data)
        bands = 1 if _is_grayscale(image) else 3
        exif = exif_of(image)  # before the pages, since looking for them goes on to the next
        return Header(height, width, bands, 8, exif, page_count(image))


def is_lossless(data: bytes | str) -> bool:
    """Return whether an encoded image holds its pixels exactly: PNG, GIF, BMP, lossless WebP, TIFF
    without JPEG, and others.

    False where that cannot be told, as of JPEG 2000 and DICOM.
    """
    try:
        with open_picture(data) as image:
            if image.format == "TIFF":
                return image.info.get("compression") not in _LOSSY_TIFF
            if image.format == "WEBP":
                return _has_lossless_webp(data)
            return image.format in _EXACT
    except Exception:  # Pillow raises anything on damaged data
        return False


def _has_lossless_webp(data: bytes | str) -> bool:
    """Return whether the first picture of a WebP file is in a chunk of the lossless kind."""
    whole = data if isinstance(data, bytes) else Path(data).read_bytes()
    place = 12  # behind "RIFF", a size, "WEBP"
    while place + 8 <= len(whole):
        kind, size = (
            whole[place : place + 4],
            int.from_bytes(whole[place + 4 : place + 8], "little"),
        )
        if kind in (b"VP8 ", b"VP8L"):
            return kind == b"VP8L"
        # a frame of an animation holds further chunks behind its place, size and duration
        place += 8 + (16 if kind == b"ANMF" else size + size % 2)
    return False


def opened(data: bytes | str) -> io.BytesIO | str:
    """Return what libraries open: a file in memory, or the path."""
    return io.BytesIO(data) if isinstance(data, bytes) else data


def open_picture(data: bytes | str) -> Any:
    """An image as Pillow opens it, of the formats that are read.

    A TIFF counts as one without a file: Pillow would map it, and mixes up rows and columns of a
    mapped one that is turned by its orientation. Of a compressed one libtiff gives numbers in the
    order of this machine, where Pillow expects bytes in the order of the file.
    """
    image = Image.open(opened(data), formats=formats())
    if image.format == "TIFF":
        image.filename = ""
        tiles: Any = image.tile
        for place, tile in enumerate(tiles):  # tuples, from Pillow 11 on with names
            *rest, args = tile
            if rest[0] == "libtiff" and args[0] in _NATIVE:
                native = (*rest, (_NATIVE[args[0]], *args[1:]))
                tiles[place] = tile._make(native) if hasattr(tile, "_make") else native
    return image


def shown_size(image: Any, data: bytes | str) -> tuple[int, int]:
    """Width and height of an opened image as it is shown, upright by its EXIF orientation; nothing
    is decoded.
    """
    width, height = image.size
    if image.format == "TIFF":  # of which Pillow may have turned the size, and not the pixels yet
        width, height = (int(image.tag_v2[tag]) for tag in (_WIDTH, _HEIGHT))
    return (height, width) if _orientation(image, data) > 4 else (width, height)


def _orientation(image: Any, data: bytes | str) -> int:
    """The EXIF orientation of an opened image, 1 where there is none."""
    if image.format == "PNG":
        return png_orientation(data)
    with contextlib.suppress(Exception):  # damaged notes are no reason to lose the picture
        return int(image.getexif().get(ORIENTATION, 1))
    return 1


def png_orientation(data: bytes | str) -> int:
    """The EXIF orientation of a PNG, 1 where there is none, from all chunks but the pixels: nothing
    is decoded.
    """
    kept = [PNG]
    with contextlib.ExitStack() as stack:
        file = opened(data)
        reader = stack.enter_context(open(file, "rb")) if isinstance(file, str) else file
        reader.seek(len(PNG))
        while len(head := reader.read(8)) == 8:
            size, kind = struct.unpack(">I4s", head)
            if kind in (b"IHDR", b"eXIf", b"tEXt", b"zTXt", b"iTXt") and size < _LARGEST_CHUNK:
                kept.append(head + reader.read(size + 4))
            else:
                reader.seek(size + 4, os.SEEK_CUR)
            if kind == b"IEND":
                break
    if len(kept) <= 2:  # there are no notes
        return 1
    with contextlib.suppress(Exception):  # damaged notes are no reason to lose the picture
        kept.append(struct.pack(">I4s", 0, b"IEND") + b"\xaeB`\x82")
        with Image.open(io.BytesIO(b"".join(kept)), formats=["PNG"]) as image:
            # of the base class, since that of PNG would decode pixels to look behind them
            return int(Image.Image.getexif(image).get(ORIENTATION, 1))
    return 1


def page_count(image: Image.Image) -> int:
    """Count the pages or frames of an opened image; 1 where what follows the first is damaged.

    The further pictures in a JPEG of a phone (MPO) do not count: they are previews and depths of
    the first.
    """
    if image.format not in _MULTIPLE:
        return 1
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception as error:  # Pillow raises anything on damaged data
        if is_passing(error):
            raise
        return 1


def _is_grayscale(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        colours = np.array(image.getpalette() or [0, 0, 0]).reshape(-1, 3)
        return bool((colours == colours[:, :1]).all())
    return image.mode in ("1", "L", "LA", "La", *WIDE)


@contextlib.contextmanager
def as_picture(data: bytes | str, at_least: int, ground: str = "white") -> Iterator[Image.Image]:
    """Yield the picture as a Pillow image of mode L (grayscale) or RGB, upright, with the memory
    for it held while entered.

    JPEG files may be decoded at a fraction of their size, as long as both sides keep `at_least`
    pixels. ground: colour behind what is see-through (alpha, also in palettes and tRNS chunks).

    - animations: the first frame; EXIF orientation is applied
    - grayscale of more than 8 bits: by `range_of_grayscale`
    - other channels of 16 bits: their high bytes
    - palette, CMYK, YCbCr, HSV: to RGB; a grayscale palette: L
    """
    with open_picture(data) as image:
        image.draft(None, (at_least, at_least))
        with memory_for(image.width * image.height):
            image.load()
            orientation = 1
            with contextlib.suppress(
                Exception
            ):  # a damaged EXIF block is no reason to lose the picture
                orientation = image.getexif().get(ORIENTATION, 1)
            simple = to_gray_or_rgb(image, ground)
            yield simple.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else simple


def planes(data: bytes | str, ground: str = "white") -> UInt8[np.ndarray, "bands height width"]:
    """A picture at its full size."""
    with as_picture(data, WHOLE, ground) as image:
        return to_array(image, len(image.getbands()))


def on_grounds(data: bytes | str) -> list[UInt8[np.ndarray, "bands height width"]]:
    """Return a picture at its full size, and one with alpha also on black in place of white."""
    with open_picture(data) as image:
        has_alpha = _has_alpha(image)
    return [planes(data, ground) for ground in ("white", "black")[: 1 + has_alpha]]


def _has_alpha(image: Image.Image) -> bool:
    return "transparency" in image.info or image.mode in _ALPHA


def to_gray_or_rgb(image: Image.Image, ground: str = "white") -> Image.Image:
    """The same picture in mode L or RGB; see `as_picture` for how."""
    clear = _has_alpha(image)
    if image.mode == "RGB" and not clear:
        return image
    if image.mode in WIDE:
        numbers = numbers_of(image)
        # in 32 bits where whole numbers need no more, and for floats
        precision = np.float64 if numbers.dtype == np.int32 else np.float32
        return Image.fromarray(as_bytes(numbers, range_of_grayscale(numbers), precision))
    mode = "L" if _is_grayscale(image) else "RGB"
    if not clear:
        return image.convert(mode)
    whole = Image.new("RGB", image.size, ground)
    layer = image.convert("RGBA")
    whole.paste(layer, mask=layer)
    return whole.getchannel(0) if mode == "L" else whole


def numbers_of(image: Image.Image) -> Shaped[np.ndarray, "height width"]:
    """The numbers of an opened grayscale image of more than 8 bits: uint16, int32 or float32."""
    numbers = np.asarray(image)
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # of 16 bits, in 32
        return numbers.astype(np.uint16)
    return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)


def fitted(image: Image.Image, size: int) -> Image.Image:
    """`views.resize_square` for one Pillow image: the same crop and filter, so within 1 of 255 the
    same pixels.
    """
    top, left, side = centre_square(image.height, image.width)
    if image.width != image.height:
        image = image.crop(
            (left, top, left + side, top + side)
        )  # before the resize, which would look beyond a box
    return image if side == size else image.resize((size, size), Image.Resampling.BICUBIC)


def to_array(image: Image.Image, channels: int) -> UInt8[np.ndarray, "channels height width"]:
    """An L or RGB Pillow image as a [channels, height, width] array; a single channel is repeated
    for 3.
    """
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        return np.broadcast_to(pixels, (channels, *pixels.shape))
    return pixels.transpose(2, 0, 1)
