"""Readers of image files: the formats that Pillow reads, and a table of those that are read in
their own numbers, of more than 8 bits or other channels than a picture has.

TIFF (also GeoTIFF) is read by tifffile and DICOM by pydicom where Pillow makes no 8-bit picture of
it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped
from PIL import Image, UnidentifiedImageError

from nearfar.messages import Outlet, lacking

# Formats that Pillow decodes by itself. Left out on purpose: EPS (starts Ghostscript), WMF, PDF,
# and the scientific containers whose Pillow plugins are stubs.
_FORMATS: tuple[str, ...] = (
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
)
_FORMATS += (
    "ICNS",
    "JPEG2000",
    "AVIF",
    "HEIF",
    "DDS",
    "MSP",
    "XBM",
    "IM",
    "SUN",
    "PSD",
    "QOI",
    "BLP",
)

Planes = Shaped[np.ndarray, "channels height width"]
_LARGEST_CHUNK = 2**20  # bytes of a PNG's chunk that may hold an orientation
_ROWS = 256  # of an image that are put on white at once
_START = 132  # bytes that tell the formats apart; those of DICOM are the last four
_PNG, _TIFF = b"\x89PNG\r\n\x1a\n", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_HEIC, _HEIF = (
    (".heic", ".heif"),
    (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc", b"ftypheim", b"ftypheis"),
)
ORIENTATION = 0x0112
WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")  # modes of Pillow
_WIDTH, _HEIGHT, _BITS, _SAMPLES, _EXTRA, _FORMAT = 256, 257, 258, 277, 338, 339  # tags of TIFF
_UNSPECIFIED, _SIGNED = 0, 2  # an extra sample that is no alpha; a sample with a sign
_NATIVE = {"I;16BS": "I;16NS", "I;32B": "I;32N", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
# what tifffile says of codecs, and pydicom of its plug-ins
_NEEDS_PACKAGE = re.compile(r"requires the '\w+' package|missing dependencies|please install")
_ONE_ARRAY = ("shaped", "ome", "imagej", "lsm", "stk", "mmstack", "fluoview", "scanimage", "nih")
_EXACT = {"PNG", "GIF", "BMP", "DIB", "PPM", "PCX", "TGA", "SGI", "ICO", "MSP", "XBM", "SUN", "QOI"}
_LOSSY_TIFF = ("jpeg", "tiff_jpeg", "webp")  # compressions of TIFF, by Pillow's names
_MULTIPLE = {"GIF", "WEBP", "PNG", "TIFF", "AVIF", "HEIF"}  # formats with several frames or pages


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that are read, of those that the installed Pillow has; HEIC by the plug-in
    pillow-heif.
    """
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    Image.init()
    return tuple(form for form in _FORMATS if form in Image.OPEN)


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


class Raw(NamedTuple):
    """An image that is not yet read.

    `native`: (width, height); `wide`: of more than 8 bits; `pillow`: whether Pillow makes an 8-bit
    picture of it; `read`: gives its numbers, [channels, height, width]. `pages`: of a file whose
    pages are pages, with as many channels each; `read_pages`: gives the numbers of all, [pages *
    channels, height, width]. `read_on_black`: of one with alpha, which `read` puts on white.
    """

    channels: int
    native: tuple[int, int]
    wide: bool
    pillow: bool
    read: Callable[[], Planes]
    pages: int = 1
    read_pages: Callable[[], Planes] | None = None
    read_on_black: Callable[[], Planes] | None = None


class PackageMissing(ValueError):
    """An image needs a package that is not installed: another day it may be."""


def is_passing(error: BaseException) -> bool:
    """Return whether an error comes from the machine and not from the image: later the same image
    may be read.

    Too little memory, too many open files, a disk or network that fails, a missing package, and the
    limit on pixels, which can be raised. Errors of the operating system have a number; those that
    Pillow makes of damage have none.
    """
    if isinstance(error, (MemoryError, ImportError, PackageMissing, Image.DecompressionBombError)):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return True
    return bool(lacking(error)) or _NEEDS_PACKAGE.search(str(error).lower()) is not None


def raw(data: bytes | str) -> Raw | None:
    """An image in its own numbers, by its encoded bytes or path; None for an 8-bit picture and what
    is no image.

    Raises what readers raise for damaged files, and ValueError where a reader is not installed.
    """
    if isinstance(data, bytes):
        start = data[:_START]
    else:
        with open(data, "rb", buffering=0) as file:
            start = file.read(_START)
    reader = next((reader for reader in READERS if reader.knows(start)), None)
    return None if reader is None else reader.read(data)


def is_lossless(data: bytes | str) -> bool:
    """Return whether an encoded image holds its pixels exactly: PNG, GIF, BMP, lossless WebP, TIFF
    without JPEG, and others.

    False where that cannot be told, as of JPEG 2000 and DICOM.
    """
    try:
        with Image.open(opened(data), formats=formats()) as image:
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


def of_pillow(data: bytes | str) -> Raw | None:
    """A grayscale image of more than 8 bits that Pillow reads as it is; None for any other."""

    def read() -> Planes:
        with open_picture(data) as image:
            numbers = np.asarray(image)
            numbers = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
            return upright(numbers[None], image.getexif().get(ORIENTATION, 1))

    with Image.open(opened(data), formats=formats()) as image:
        native = shown_size(image, data)
        return Raw(1, native, True, True, read) if image.mode in WIDE else None


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
        return _png_orientation(data)
    with contextlib.suppress(Exception):  # damaged notes are no reason to lose the picture
        return int(image.getexif().get(ORIENTATION, 1))
    return 1


def upright(
    planes: Planes, orientation: int
) -> Shaped[np.ndarray, "channels upright_height upright_width"]:
    """Undo an EXIF orientation, 1 to 8."""
    if orientation in (5, 6, 7, 8):
        planes = planes.transpose(0, 2, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return planes[:, :: -1 if down else 1, :: -1 if across else 1]


def _png(data: bytes | str) -> Raw | None:
    """A PNG of 16 bits: grayscale as Pillow gives it, others, of which it makes 8 bits, by their
    high and low bytes; alpha on white.
    """
    if (kind := _png_kind(data)) is None:  # it is cut off
        return None
    orientation = _png_orientation(data)
    with Image.open(
        opened(data), formats=["PNG"]
    ) as image:  # refuses sizes that would fill the memory
        native = (image.height, image.width) if orientation > 4 else image.size

    def read(ground: int = 65535) -> Planes:
        if kind == 0:
            with Image.open(opened(data), formats=["PNG"]) as image:
                numbers = np.asarray(image)
                return upright(numbers.astype(np.uint16, copy=False)[None], orientation)
        planes = _png_samples(data)
        if len(planes) % 2:
            return upright(planes, orientation)
        colours, alpha = planes[:-1], planes[-1]
        for top in range(0, len(alpha), _ROWS):  # in place, as wider numbers of all take gigabytes
            rows = slice(top, top + _ROWS)
            wide = alpha[rows].astype(np.uint32)
            behind = ground * (65535 - wide) + 32767
            colours[:, rows] = (colours[:, rows] * wide + behind) // 65535
        return upright(colours, orientation)

    channels, on_black = 1 if kind in (0, 4) else 3, functools.partial(read, ground=0)
    return Raw(channels, native, True, True, read, read_on_black=on_black if kind & 4 else None)


def _png_samples(data: bytes | str) -> Shaped[np.ndarray, "samples height width"]:
    """The samples of a PNG of 16 bits in colour or with alpha, uint16.

    Pillow keeps one byte of a sample, the one that a raw mode names: it decodes the image once for
    the high and once for the low bytes. Gray with alpha has four bytes, as many as it keeps of a
    pixel. libpng, by torchvision, would end the process at damaged pixels.
    """
    with Image.open(opened(data), formats=["PNG"]) as image:
        if not image.tile:
            raise OSError("it holds no pixels")
        mode = str(image.tile[0][3])
    if mode.startswith("LA"):
        four = _png_bytes(data, "RGBA").astype(np.uint16)
        return np.stack([four[..., 0] << 8 | four[..., 1], four[..., 2] << 8 | four[..., 3]])
    high, low = (_png_bytes(data, f"{mode.partition(';')[0]};16{half}") for half in "BL")
    numbers = high.astype(np.uint16)
    numbers <<= 8
    numbers |= low
    return np.ascontiguousarray(numbers.transpose(2, 0, 1))


def _png_bytes(data: bytes | str, mode: str) -> Shaped[np.ndarray, "height width bytes"]:
    """The bytes of a PNG's pixels that a raw mode of Pillow names."""
    with Image.open(opened(data), formats=["PNG"]) as image:
        tiles: Any = image.tile
        for place, tile in enumerate(tiles):  # tuples, from Pillow 11 on with names
            named = (*tile[:3], mode)
            tiles[place] = tile._make(named) if hasattr(tile, "_make") else named
        return np.asarray(image)


def _png_kind(data: bytes | str) -> int | None:
    """The kind of a PNG: 0 for grayscale, 2 for colour, and 4 more with alpha."""
    if isinstance(data, bytes):
        head = data[:26]
    else:
        with open(data, "rb", buffering=0) as file:
            head = file.read(26)
    return head[25] if len(head) > 25 else None


def _png_orientation(data: bytes | str) -> int:
    """The EXIF orientation of a PNG, 1 where there is none, from all chunks but the pixels: nothing
    is decoded.
    """
    kept = [_PNG]
    with contextlib.ExitStack() as stack:
        file = opened(data)
        reader = stack.enter_context(open(file, "rb")) if isinstance(file, str) else file
        reader.seek(len(_PNG))
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


def must_be_small(width: int, height: int, channels: int) -> None:
    """Raise Pillow's error for more numbers than an image may have: a header may claim anything."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and math.prod((width, height, channels)) > 8 * most:
        raise Image.DecompressionBombError(f"{channels} channels of {width} x {height} pixels")


def tiff(data: bytes | str) -> Raw | None:
    """A TIFF in its own numbers; None for a picture of 8 bits and one page, or of pages in colour.

    Every sample is a channel, and so is every page where the file says that they are one array, as
    those of OME, ImageJ and tifffile do. Other pages are pages: the first is the image.
    """
    bits, pages, is_picture = 0, 1, True
    try:
        with Image.open(opened(data), formats=["TIFF"]) as image:
            tags: Any = image.tag_v2  # type: ignore[attr-defined]  # of a TIFF
            bits, pages = max(tags.get(_BITS, (1,))), page_count(image)
            is_picture = not _loses_numbers(image.mode, tags)
            if bits < 8 or (bits == 8 and is_picture and (pages == 1 or image.mode != "L")):
                return None
            if pages == tags.get(_SAMPLES, 1) == 1 and (decoded := of_pillow(data)) is not None:
                return decoded
    except UnidentifiedImageError:
        pass  # other channels than those of a picture
    try:
        decoded = _by_tifffile(data, pillow=bits > 0 and is_picture)
    except Exception as error:
        if bits != 8 or is_passing(error):
            raise
        return None  # its first page is a picture
    is_single = is_picture and decoded.channels == decoded.pages == 1
    return None if bits == 8 and is_single else decoded


def _loses_numbers(mode: str, tags: Any) -> bool:
    """Return whether the picture that Pillow makes of a TIFF of 8 bits drops an extra sample that
    is no alpha, or takes numbers with a sign for some without.
    """
    dropped = mode in ("L", "RGB") and _UNSPECIFIED in tags.get(_EXTRA, ())
    return dropped or _SIGNED in tags.get(_FORMAT, ())


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


def _by_tifffile(data: bytes | str, pillow: bool) -> Raw:
    import tifffile

    logging.getLogger("tifffile").setLevel(
        logging.CRITICAL
    )  # what is wrong is listed with the image
    with tifffile.TiffFile(opened(data)) as file:
        series = file.series[0]
        axes, shape, kind = series.axes, series.shape, np.dtype(series.dtype)
        one_array = series.kind in _ONE_ARRAY
        tag = file.pages.first.tags.get(ORIENTATION)
        orientation = 1 if tag is None else int(tag.value)
    if "X" not in axes or "Y" not in axes or kind.kind not in "uif" or kind.itemsize > 8:
        raise ValueError(
            f"its axes are {axes}, of {kind}: an image has rows and columns of real numbers"
        )
    down, across = axes.index("Y"), axes.index("X")
    height, width = shape[down], shape[across]
    planes = math.prod(shape) // max(1, height * width)
    samples = shape[axes.index("S")] if "S" in axes else 1
    channels = planes if one_array else samples
    must_be_small(width, height, channels)

    def read_pages() -> Planes:
        must_be_small(width, height, planes)
        with tifffile.TiffFile(opened(data)) as file:
            numbers = np.moveaxis(file.series[0].asarray(), (down, across), (-2, -1))
        numbers = numbers.astype(kind.newbyteorder("="), copy=False)
        return upright(numbers.reshape(planes, height, width), orientation)

    def read() -> Planes:
        if channels == planes:
            return read_pages()
        with tifffile.TiffFile(opened(data)) as file:
            page = file.pages.first
            own, numbers = page.axes, page.asarray()
        numbers = np.moveaxis(numbers, (own.index("Y"), own.index("X")), (-2, -1))
        numbers = numbers.astype(kind.newbyteorder("="), copy=False)
        return upright(numbers.reshape(channels, height, width), orientation)

    native = (height, width) if orientation > 4 else (width, height)
    pages = planes // channels
    return Raw(channels, native, kind != np.uint8, pillow, read, pages, read_pages)


def dicom(data: bytes | str) -> Raw:
    """A DICOM image, whose colours are its channels and whose frames are pages: the first is the
    image. ValueError without pydicom and where there is none.
    """
    try:
        import pydicom
    except ImportError as error:
        raise PackageMissing("DICOM needs pydicom: pip install 'nearfar[scans]'") from error
    header = pydicom.dcmread(opened(data), stop_before_pixels=True)
    if "Rows" not in header or "Columns" not in header:
        raise ValueError("this DICOM file holds no image")
    width, height = int(header.Columns), int(header.Rows)
    frames, samples = int(header.get("NumberOfFrames") or 1), int(header.get("SamplesPerPixel", 1))
    in_palette = samples == 1 and header.get("PhotometricInterpretation") == "PALETTE COLOR"
    samples = 3 if in_palette else samples
    must_be_small(width, height, samples)

    def read(frame: int | None = 0) -> Planes:
        from pydicom.pixels import apply_color_lut, pixel_array

        whole = pydicom.dcmread(opened(data))
        numbers = pixel_array(whole, index=frame)  # colour comes as red, green and blue
        if in_palette:
            numbers = apply_color_lut(numbers, whole)[..., :3]  # without its alpha, if it has one
        if samples > 1:
            numbers = np.moveaxis(numbers, -1, -3)
        numbers = numbers.reshape(-1, height, width)
        if (
            whole.PhotometricInterpretation == "MONOCHROME1"
        ):  # low is white: black and white change places
            signed, bits = int(whole.get("PixelRepresentation", 0)), int(whole.BitsStored)
            lowest_plus_highest = -1 if signed else 2**bits - 1
            numbers = (lowest_plus_highest - numbers.astype(np.int64)).astype(numbers.dtype)
        slope, intercept = _rescale(whole)
        if (slope, intercept) != (1, 0):
            numbers = numbers.astype(np.float32) * np.float32(slope) + np.float32(intercept)
        return numbers

    def read_frames() -> Planes:
        must_be_small(width, height, frames * samples)
        return read(None)

    wide = int(header.get("BitsAllocated", 8)) > 8 or _rescale(header) != (1, 0)
    if in_palette:
        wide = int(header.RedPaletteColorLookupTableDescriptor[2]) > 8
    return Raw(samples, (width, height), wide, False, read, frames, read_frames)


def _rescale(header: Any) -> tuple[float, float]:
    return float(header.get("RescaleSlope", 1)), float(header.get("RescaleIntercept", 0))


def _without_plugin(data: bytes | str) -> None:
    """HEIC, which Pillow reads as a picture if it has the plug-in."""
    if "HEIF" not in formats():
        raise PackageMissing("HEIC needs pillow-heif: pip install 'nearfar[heic]'")


class Reader(NamedTuple):
    """A kind of file that is read in its own numbers.

    `knows`: whether a file is one, by its first bytes; `read`: its numbers, by its bytes or path;
    None where Pillow makes an 8-bit picture of it.
    """

    kind: str
    knows: Callable[[bytes], bool]
    read: Callable[[bytes | str], Raw | None]


READERS = (
    Reader("PNG of 16 bits", lambda head: head[:8] == _PNG and head[24:25] == b"\x10", _png),
    Reader("TIFF, also GeoTIFF", lambda head: head[:4] in _TIFF, tiff),
    Reader("DICOM", lambda head: head[128:] == b"DICM", dicom),
    Reader("HEIC", lambda head: head[4:12] in _HEIF, _without_plugin),
    Reader("PGM", lambda head: head[:2] == b"P5", of_pillow),
    Reader("JPEG 2000", lambda head: head.startswith(_JPEG2000), of_pillow),
)
"""Of every other file Pillow makes an 8-bit picture."""


@contextlib.contextmanager
def only_python_writes() -> Iterator[None]:
    """While entered, what Python writes to stderr appears, and what is written past it is
    dropped.
    """
    try:
        stderr, of_python = os.dup(2), contextlib.ExitStack()
    except OSError:  # it is closed: nothing can appear
        yield
        return
    shown = open(  # noqa: SIM115
        stderr, "w", encoding="utf-8", errors="backslashreplace", buffering=1
    )
    try:
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # it has no number, as in a notebook
            if sys.stderr.fileno() == 2:
                sys.stderr.flush()
                of_python.enter_context(contextlib.redirect_stderr(Outlet(shown)))
        with of_python, open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
    finally:
        with contextlib.suppress(OSError):  # its reader has gone, and something is left to write
            shown.close()
