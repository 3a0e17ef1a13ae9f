"""Formats of image files: those that Pillow reads, and images of more than 8 bits or of other channels than a picture.

TIFF (also GeoTIFF) is read by tifffile and DICOM by pydicom where Pillow makes no 8-bit picture of it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from PIL import Image, UnidentifiedImageError

# Formats that Pillow decodes by itself. Left out on purpose: EPS (starts Ghostscript), WMF, PDF, and the scientific
# containers whose Pillow plugins are stubs.
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
_START = 132  # bytes that tell the formats apart; those of DICOM are the last four
_PNG, _TIFF = b"\x89PNG\r\n\x1a\n", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_HEIC, _HEIF = (
    (".heic", ".heif"),
    (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc", b"ftypheim", b"ftypheis"),
)
ORIENTATION = 0x0112
WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")  # modes of Pillow
_BITS, _SAMPLES = 258, 277  # tags of TIFF


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that are read, of those that the installed Pillow has; HEIC by the plug-in pillow-heif."""
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
        return tiff(data)
    if start[128:] == b"DICM":
        return dicom(data)
    if start[4:12] in _HEIF and "HEIF" not in formats():
        raise ValueError("HEIC needs pillow-heif: pip install 'nearfar[heic]'")
    return of_pillow(data) if start[:2] == b"P5" or start.startswith(_JPEG2000) else None


def opened(data: bytes | str) -> io.BytesIO | str:
    """What libraries open: a file in memory, or the path."""
    return io.BytesIO(data) if isinstance(data, bytes) else data


def of_pillow(data: bytes | str) -> Raw | None:
    """A grayscale image of more than 8 bits that Pillow reads as it is; None for any other."""

    def read() -> Planes:
        with Image.open(opened(data), formats=formats()) as image:
            numbers = np.asarray(image)
            numbers = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
            return upright(numbers[None], image.getexif().get(ORIENTATION, 1))

    with Image.open(opened(data), formats=formats()) as image:
        turned = image.getexif().get(ORIENTATION, 1) > 4
        native = (image.height, image.width) if turned else image.size
        return Raw(1, native, True, True, read) if image.mode in WIDE else None


def upright(planes: Planes, orientation: int) -> Planes:
    """Undo an EXIF orientation, 1 to 8."""
    if orientation in (5, 6, 7, 8):
        planes = planes.transpose(0, 2, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return planes[:, :: -1 if down else 1, :: -1 if across else 1]


def _png(data: bytes | str, kind: int) -> Raw | None:
    """A PNG of 16 bits: grayscale by Pillow, others, of which it makes 8 bits, by torchvision; alpha on white."""
    if kind == 0:
        return of_pillow(data)
    with Image.open(
        opened(data), formats=["PNG"]
    ) as image:  # refuses sizes that would fill the memory
        native = image.size

    def read() -> Planes:
        from torchvision.io import ImageReadMode, decode_png

        encoded = (
            np.frombuffer(data, np.uint8)
            if isinstance(data, bytes)
            else np.fromfile(data, np.uint8)
        )
        planes = decode_png(torch.tensor(encoded), ImageReadMode.UNCHANGED).numpy()
        if len(planes) % 2:
            return planes
        *planes, alpha = planes.astype(np.uint16, copy=False)
        wide = alpha.astype(np.uint32)
        for plane in planes:  # one by one and in place, as wider numbers of all take gigabytes
            plane[:] = (plane * wide + 65535 * (65535 - wide) + 32767) // 65535
        return np.stack(planes)

    return Raw(1 if kind == 4 else 3, native, True, True, read)


def must_be_small(width: int, height: int, channels: int) -> None:
    """Raise Pillow's error for more numbers than an image may have: a header may claim anything."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and math.prod((width, height, channels)) > 8 * most:
        raise Image.DecompressionBombError(f"{channels} channels of {width} x {height} pixels")


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
            if (
                pages == image.tag_v2.get(_SAMPLES, 1) == 1
                and (found := of_pillow(data)) is not None
            ):
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

    logging.getLogger("tifffile").setLevel(
        logging.CRITICAL
    )  # what is wrong is listed with the image
    with tifffile.TiffFile(opened(data)) as file:
        series = file.series[0]
        axes, shape, kind = series.axes, series.shape, np.dtype(series.dtype)
        tag = file.pages.first.tags.get(ORIENTATION)
        orientation = 1 if tag is None else int(tag.value)
    if "X" not in axes or "Y" not in axes or kind.kind not in "uif" or kind.itemsize > 8:
        raise ValueError(
            f"its axes are {axes}, of {kind}: an image has rows and columns of real numbers"
        )
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


def dicom(data: bytes | str) -> Raw:
    """A DICOM image, whose frames or colours are its channels. ValueError without pydicom and where there is none."""
    try:
        import pydicom
    except ImportError as error:
        raise ValueError("DICOM needs pydicom: pip install 'nearfar[scans]'") from error
    header = pydicom.dcmread(opened(data), stop_before_pixels=True)
    if "Rows" not in header or "Columns" not in header:
        raise ValueError("this DICOM file holds no image")
    width, height = int(header.Columns), int(header.Rows)
    frames, samples = int(header.get("NumberOfFrames") or 1), int(header.get("SamplesPerPixel", 1))
    must_be_small(width, height, frames * samples)

    def read() -> Planes:
        from pydicom.pixels import pixel_array

        whole = pydicom.dcmread(opened(data))
        numbers = pixel_array(whole)  # colour comes as red, green and blue
        if samples > 1:
            numbers = np.moveaxis(numbers, -1, -3)
        numbers = numbers.reshape(frames * samples, height, width)
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

    wide = int(header.get("BitsAllocated", 8)) > 8 or _rescale(header) != (1, 0)
    return Raw(frames * samples, (width, height), wide, False, read)


def _rescale(header: Any) -> tuple[float, float]:
    return float(header.get("RescaleSlope", 1)), float(header.get("RescaleIntercept", 0))


@contextlib.contextmanager
def only_python_writes() -> Iterator[None]:
    """While entered, what Python writes to stderr appears, and what is written past it is dropped."""
    try:
        stderr, of_python = os.dup(2), contextlib.ExitStack()
    except OSError:  # it is closed: nothing can appear
        yield
        return
    with open(stderr, "w", encoding="utf-8", errors="backslashreplace", buffering=1) as shown:
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # it has no number, as in a notebook
            if sys.stderr.fileno() == 2:
                sys.stderr.flush()
                of_python.enter_context(contextlib.redirect_stderr(shown))
        with of_python, open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
