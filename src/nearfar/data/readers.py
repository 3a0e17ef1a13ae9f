"""Readers of image files: a table from kind to function, from bytes to the numbers of an image.

Pillow makes a picture of 8 bits of most formats: the last row. The others read an image in its own
numbers, of more bits or other channels. TIFF (also GeoTIFF) is read by tifffile and DICOM by
pydicom where Pillow makes no picture of it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Shaped
from PIL import Image, UnidentifiedImageError

from nearfar.data.left_out import PackageMissing, is_passing
from nearfar.data.pictures import (
    ORIENTATION,
    PNG,
    WIDE,
    Header,
    formats,
    header_of_picture,
    numbers_of,
    on_grounds,
    open_picture,
    opened,
    page_count,
    planes,
    png_orientation,
    shown_size,
)
from nearfar.messages import Outlet

WhenPicture = Literal["always", "as 8 bits", "never"]
Planes = Shaped[np.ndarray, "channels height width"]
_ROWS = 256  # of an image that are put on white at once
_START = 132  # bytes that tell the formats apart; those of DICOM are the last four
_PNG_KIND = 25  # place of the byte that names it, behind that of the bits
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_HEIF = (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc", b"ftypheim", b"ftypheis")
_BITS, _SAMPLES, _EXTRA, _FORMAT = 258, 277, 338, 339  # tags of TIFF
_UNSPECIFIED, _SIGNED = 0, 2  # an extra sample that is no alpha; a sample with a sign
_ONE_ARRAY = ("shaped", "ome", "imagej", "lsm", "stk", "mmstack", "fluoview", "scanimage", "nih")


class Encoded(NamedTuple):
    """An encoded image that is not read yet.

    `header`: what its header says; `read`: gives its numbers, [bands, height, width]; `grounds`:
    its numbers on white, and those of an image with alpha on black too. `picture`: whether it is
    read as the 8-bit picture that Pillow makes of it. `read_pages`: of a file whose pages are
    pages, gives the numbers of all, [pages * bands, height, width].
    """

    header: Callable[[], Header]
    read: Callable[[], Planes]
    grounds: Callable[[], list[Planes]]
    picture: WhenPicture
    read_pages: Callable[[], Planes] | None = None


def look(data: bytes | str) -> Encoded:
    """An encoded image, by its bytes or path, as the first reader in the table that knows it has
    it.

    Raises what readers raise for damaged files, and ValueError where a reader is not installed.
    """
    start = _head(data, _START)
    return next(reader for reader in READERS if reader.knows(start)).look(data)


def _head(data: bytes | str, size: int) -> bytes:
    """The first bytes of an encoded image."""
    if isinstance(data, bytes):
        return data[:size]
    with open(data, "rb", buffering=0) as file:
        return file.read(size)


def _picture(data: bytes | str) -> Encoded:
    """A picture of 8 bits by Pillow; nothing of it is read before it is asked for."""
    return Encoded(
        lambda: header_of_picture(data), lambda: planes(data), lambda: on_grounds(data), "always"
    )


def _grayscale(data: bytes | str) -> Encoded:
    """A grayscale image of more than 8 bits that Pillow reads as it is, or a picture."""

    def read() -> Planes:
        with open_picture(data) as image:
            return upright(numbers_of(image)[None], image.getexif().get(ORIENTATION, 1))

    with open_picture(data) as image:
        width, height = shown_size(image, data)
        if image.mode not in WIDE:
            return _picture(data)
        return _in_numbers(Header(height, width, 1, 16), read, "as 8 bits")


def _in_numbers(
    header: Header,
    read: Callable[[], Planes],
    picture: WhenPicture,
    read_pages: Callable[[], Planes] | None = None,
) -> Encoded:
    """An image whose header is known, and which has no alpha."""
    return Encoded(lambda: header, read, lambda: [read()], picture, read_pages)


def upright(
    planes: Planes, orientation: int
) -> Shaped[np.ndarray, "channels upright_height upright_width"]:
    """Undo an EXIF orientation, 1 to 8."""
    if orientation in (5, 6, 7, 8):
        planes = planes.transpose(0, 2, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return planes[:, :: -1 if down else 1, :: -1 if across else 1]


def _png(data: bytes | str) -> Encoded:
    """A PNG of 16 bits: grayscale as Pillow gives it, others, of which it makes 8 bits, by their
    high and low bytes; alpha on white.
    """
    kind = _head(data, _PNG_KIND + 1)[_PNG_KIND]  # 2 for colour, 4 more for alpha
    orientation = png_orientation(data)
    with open_picture(data) as image:  # refuses sizes that would fill the memory
        width, height = (image.height, image.width) if orientation > 4 else image.size

    def read(ground: int = 65535) -> Planes:
        if kind == 0:
            with open_picture(data) as image:
                return upright(numbers_of(image)[None], orientation)
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

    grounds = (65535, 0) if kind & 4 else (65535,)
    header = Header(height, width, 1 if kind in (0, 4) else 3, 16)
    return Encoded(lambda: header, read, lambda: list(map(read, grounds)), "as 8 bits")


def _png_samples(data: bytes | str) -> Shaped[np.ndarray, "samples height width"]:
    """The samples of a PNG of 16 bits in colour or with alpha, uint16.

    Pillow keeps one byte of a sample, the one that a raw mode names: it decodes the image once for
    the high and once for the low bytes. Gray with alpha has four bytes, as many as it keeps of a
    pixel. libpng, by torchvision, would end the process at damaged pixels.
    """
    with open_picture(data) as image:
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
    with open_picture(data) as image:
        tiles: Any = image.tile
        for place, tile in enumerate(tiles):  # tuples, from Pillow 11 on with names
            named = (*tile[:3], mode)
            tiles[place] = tile._make(named) if hasattr(tile, "_make") else named
        return np.asarray(image)


def must_be_small(width: int, height: int, channels: int) -> None:
    """Raise Pillow's error for more numbers than an image may have: a header may claim anything."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and math.prod((width, height, channels)) > 8 * most:
        raise Image.DecompressionBombError(f"{channels} channels of {width} x {height} pixels")


def _tiff(data: bytes | str) -> Encoded:
    """A TIFF in its own numbers; a picture where it has 8 bits and one page, or pages in colour.

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
                return _picture(data)
            if pages == tags.get(_SAMPLES, 1) == 1 and image.mode in WIDE:
                return _grayscale(data)
    except UnidentifiedImageError:
        pass  # other channels than those of a picture
    try:
        decoded = _by_tifffile(data, "as 8 bits" if bits > 0 and is_picture else "never")
    except Exception as error:
        if bits != 8 or is_passing(error):
            raise
        return _picture(data)  # its first page is a picture
    header = decoded.header()
    if bits == 8 and is_picture and header.pages > 1:
        return decoded._replace(picture="always")
    is_single = header.bands == header.pages == 1  # other pages are of other sizes
    return _picture(data) if bits == 8 and is_picture and is_single else decoded


def _loses_numbers(mode: str, tags: Any) -> bool:
    """Return whether the picture that Pillow makes of a TIFF of 8 bits drops an extra sample that
    is no alpha, or takes numbers with a sign for some without.
    """
    dropped = mode in ("L", "RGB") and _UNSPECIFIED in tags.get(_EXTRA, ())
    return dropped or _SIGNED in tags.get(_FORMAT, ())


def _must_end(file: Any) -> None:
    """Raise ValueError where a page of a TIFF leads to an earlier one, or is cut off before it says
    where the next one is: tifffile would look for pages for ever.
    """
    form, handle, place = file.tiff, file.filehandle, file.pages.first.offset
    seen: set[int] = set()
    while place and place not in seen:
        seen.add(place)
        handle.seek(place)
        tags = handle.read(form.tagnosize)
        if len(tags) < form.tagnosize:
            return
        handle.seek(struct.unpack(form.tagnoformat, tags)[0] * form.tagsize, os.SEEK_CUR)
        following = handle.read(form.offsetsize)
        if len(following) < form.offsetsize:
            raise ValueError("its list of pages is cut off")
        (place,) = struct.unpack(form.offsetformat, following)
    if place:
        raise ValueError("its pages go round in a circle")


def _by_tifffile(data: bytes | str, picture: WhenPicture) -> Encoded:
    import tifffile

    logging.getLogger("tifffile").setLevel(
        logging.CRITICAL
    )  # what is wrong is listed with the image
    with tifffile.TiffFile(opened(data)) as file:
        _must_end(file)
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

    tall, wide = (width, height) if orientation > 4 else (height, width)
    header = Header(tall, wide, channels, 8 if kind == np.uint8 else 16, pages=planes // channels)
    return _in_numbers(header, read, picture, read_pages)


def _dicom(data: bytes | str) -> Encoded:
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
        from pydicom.pixels import pixel_array

        whole = pydicom.dcmread(opened(data))
        numbers = pixel_array(whole, index=frame)  # colour comes as red, green and blue
        if in_palette:
            numbers = _in_colours(numbers, whole)
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
    known = Header(height, width, samples, 16 if wide else 8, pages=frames)
    return _in_numbers(known, read, "never", read_frames)


def _in_colours(numbers: np.ndarray, dataset: Any) -> np.ndarray:
    """Replace numbers in the palette of a DICOM file by their red, green and blue.

    Entries of 8 bits may have 16 bits each, of which the high ones are 0, or an odd number of
    them a byte behind that makes it even (PS3.3 C.7.6.3.1.5 and PS3.5 7.1).
    """
    from pydicom.pixels import apply_color_lut

    count, _, bits = dataset.RedPaletteColorLookupTableDescriptor
    for colour in ("Red", "Green", "Blue", "Alpha"):
        name = f"{colour}PaletteColorLookupTableData"
        if bits == 8 and count > 1 and len(entries := dataset.get(name) or b"") == count + 1:
            setattr(dataset, name, entries[:count])
    colours = apply_color_lut(numbers, dataset)[..., :3]  # without its alpha, if it has one
    return colours.astype(np.uint8) if bits == 8 else colours


def _rescale(header: Any) -> tuple[float, float]:
    return float(header.get("RescaleSlope", 1)), float(header.get("RescaleIntercept", 0))


def _heic(data: bytes | str) -> Encoded:
    """HEIC, which Pillow reads as a picture if it has the plug-in."""
    if "HEIF" not in formats():
        raise PackageMissing("HEIC needs pillow-heif: pip install 'nearfar[heic]'")
    return _picture(data)


def _is_wide_png(head: bytes) -> bool:
    return len(head) > _PNG_KIND and head[:8] == PNG and head[_PNG_KIND - 1] == 16


class Reader(NamedTuple):
    """A kind of file.

    `knows`: whether a file is one, by its first bytes; `look`: the image in it, by its bytes or
    path.
    """

    kind: str
    knows: Callable[[bytes], bool]
    look: Callable[[bytes | str], Encoded]


READERS = (
    Reader("PNG of 16 bits", _is_wide_png, _png),
    Reader("TIFF, also GeoTIFF", lambda head: head[:4] in _TIFF, _tiff),
    Reader("DICOM", lambda head: head[128:] == b"DICM", _dicom),
    Reader("HEIC", lambda head: head[4:12] in _HEIF, _heic),
    Reader("PGM", lambda head: head[:2] == b"P5", _grayscale),
    Reader("JPEG 2000", lambda head: head.startswith(_JPEG2000), _grayscale),
    Reader("picture of 8 bits", lambda head: True, _picture),
)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """While entered, readers are quiet on images that they read all the same.

    Pillow's warnings of large images (bombs are errors) and odd parts are dropped, and so is what C
    libraries write to stderr; what Python writes there appears.
    """
    with warnings.catch_warnings(), _only_python_writes():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        yield


@contextlib.contextmanager
def _only_python_writes() -> Iterator[None]:
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
