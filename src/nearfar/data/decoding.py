"""From an encoded image (bytes or a file) to a square array of 8 or 16 bits, whatever the image's
mode.
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image
from torch import Tensor

from nearfar.data.exif import Exif, exif_of
from nearfar.data.layouts import as_planes, has_eight_bits, shape_of_planes, to_pixels
from nearfar.data.left_out import CUT_OFF, NOT_AN_IMAGE, TOO_MANY_PIXELS
from nearfar.data.readers import (
    ORIENTATION,
    WIDE,
    Raw,
    formats,
    open_picture,
    opened,
    page_count,
    raw,
    shown_size,
)
from nearfar.data.resources import SharedMemory
from nearfar.data.table import cut
from nearfar.data.value_range import STEPS, WHITE, PixelFormat, floats, sixteen_bits
from nearfar.messages import check_range
from nearfar.views import centre_square, from_range, resize_square, unit, with_channels

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
_MEMORY = SharedMemory(
    2**30
)  # of all threads: an image of more than 67 million pixels is decoded alone
_LARGEST = 2**30  # pixels: a picture is decoded at its full size
LONGEST_REASON = 200  # characters: messages of libraries may hold what the file says
_CUT_OFF = re.compile(r"truncat|unexpected end|end of file|cut off|premature|incomplete|too short")
PICTURE = (1, 3)  # channels of grayscale and colour, which are converted into each other


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


def header(data: bytes | str | np.ndarray) -> Header:
    """Read the header of an encoded image, or the shape of one in numbers; nothing is decoded.
    Raises what readers raise for a damaged one.

    Height and width are those of the image as it is shown, upright by its EXIF orientation. A
    picture in a palette is grayscale if the palette is.
    """
    if isinstance(data, np.ndarray):
        _, bands, height, width = shape_of_planes((1, *data.shape), data.dtype)
        narrow = has_eight_bits(as_planes(data[None]))
        return Header(height, width, bands, 8 if narrow else 16)
    if (raw_image := raw(data)) is not None:
        width, height = raw_image.native
        bits = 16 if raw_image.wide else 8
        seen = Header(height, width, raw_image.channels, bits, pages=raw_image.pages)
    else:
        with Image.open(opened(data), formats=formats()) as image:
            width, height = shown_size(image, data)
            bands = 1 if _is_grayscale(image) else 3
            exif = exif_of(image)  # before the pages, since looking for them goes on to the next
            seen = Header(height, width, bands, 8, exif, page_count(image))
    if min(seen.height, seen.width, seen.bands, seen.pages) < 1:
        raise ValueError("it has no pixels")
    return seen


def _is_grayscale(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        colours = np.array(image.getpalette() or [0, 0, 0]).reshape(-1, 3)
        return bool((colours == colours[:, :1]).all())
    return image.mode in ("1", "L", "LA", "La", *WIDE)


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
    image. Low and high of every channel become 0 and 65535; an 8-bit picture keeps its full range.
    Without a value range, wider images become 8 bits by the rules of `to_pil`. Raises what Pillow
    raises for a damaged, unknown or dangerously large image, and ValueError for other channels.
    """
    size, channels, value_range = form
    if isinstance(data, np.ndarray):
        return to_pixels(as_planes(data[None], channels), form)[0].numpy()
    numbers = own_numbers(data, channels, value_range)
    if numbers is not None:
        pixels = _planes(numbers, channels, value_range, size)
        return pixels.numpy() if value_range is None else sixteen_bits(pixels)
    with _opened(data, at_least=2 * size) as image:
        narrow = image.convert("L") if image.mode == "RGB" and channels == 1 else image
        picture = to_array(_fit(narrow, size), channels)
    return picture if value_range is None else picture.astype(form.dtype) * STEPS


def own_numbers(
    data: bytes | str, channels: int, value_range: Sequence[float] | None
) -> Raw | None:
    """An image to be read in its own numbers; None where Pillow makes the 8-bit picture of it that
    is asked for.

    Pages are channels where more than a picture has are asked for, and the pages have as many.
    """
    raw_image = raw(data)
    if raw_image is not None and pages_are_channels(raw_image.channels, raw_image.pages, channels):
        assert raw_image.read_pages is not None
        return raw_image._replace(channels=channels, pages=1, read=raw_image.read_pages)
    if raw_image is not None and raw_image.pillow and not raw_image.wide and raw_image.pages > 1:
        raw_image = None  # the first page is a picture
    if raw_image is None and channels not in PICTURE:
        raise ValueError(
            f"it is a picture of 8 bits, which has 1 or 3 channels, and {channels} are read"
        )
    narrow = (
        raw_image is not None and raw_image.pillow and value_range is None and channels in PICTURE
    )
    return (
        None
        if narrow and raw_image is not None and (raw_image.wide or raw_image.channels != channels)
        else raw_image
    )


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


def whole_planes(
    data: bytes | str,
    channels: int,
    value_range: Sequence[float] | None,
    at_least: int = _LARGEST,
) -> Shaped[Tensor, "channels height width"]:
    """An image at its own size and shape: uint8, or float in 0..1 where there is a value range.

    at_least: pixels that both sides keep where JPEG files may be decoded at a fraction of their
    size.
    """
    if (numbers := own_numbers(data, channels, value_range)) is not None:
        return _planes(numbers, channels, value_range)
    picture = to_pil(data, at_least).convert("L" if channels == 1 else "RGB")
    planes = torch.tensor(to_array(picture, channels))
    return planes if value_range is None else unit(planes)


def _planes(
    numbers: Raw, channels: int, value_range: Sequence[float] | None, size: int | None = None
) -> Shaped[Tensor, "channels height width"]:
    """The numbers of an image as `_scaled` makes them; with a size the centre square, resized to
    it.
    """
    if numbers.channels != channels and not {numbers.channels, channels} <= set(PICTURE):
        raise ValueError(
            f"it has {numbers.channels} channels, and {channels} are read: `channels` chooses"
        )
    width, height = numbers.native
    with memory_for(width * height * numbers.channels):
        planes = numbers.read()
        if size is None:
            return _scaled(planes, channels, value_range)
        top, left, side = centre_square(*planes.shape[1:])
        planes = planes[:, top : top + side, left : left + side]
        if numbers.channels != channels:
            return resize_square(_scaled(planes, channels, value_range)[None], size)[0]
        ranges = [
            None if value_range is None else value_range[2 * i : 2 * i + 2] for i in range(channels)
        ]
        # plane by plane, since floats of all of them would take twice as much memory
        made = (_scaled(planes[i : i + 1], 1, of_plane) for i, of_plane in enumerate(ranges))
        return torch.cat([resize_square(plane[None], size)[0] for plane in made])


def _scaled(
    planes: Shaped[np.ndarray, "given height width"],
    channels: int,
    value_range: Sequence[float] | None,
) -> Shaped[Tensor, "channels height width"]:
    """Numbers to floats in 0..1 by their value range, or to uint8 by the type's own; with this
    number of channels.
    """
    if planes.dtype == np.uint8:
        [pixels] = with_channels(torch.from_numpy(np.ascontiguousarray(planes))[None], channels)
        return pixels if value_range is None else unit(pixels)
    numbers = torch.from_numpy(planes.astype(np.float32, order="C"))
    if not numbers.isfinite().all():
        raise ValueError("the image holds values that are not finite")
    if value_range is not None:
        return from_range(with_channels(numbers[None], channels)[0], value_range)
    if planes.dtype != np.uint16:
        raise ValueError(
            f"it holds {planes.dtype} in {len(planes)} channels, which 8 bits do not hold"
        )
    return with_channels((numbers / STEPS).round().to(torch.uint8)[None], channels)[0]


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silence Pillow on images that it reads all the same: large ones (bombs are errors), and those
    with odd parts.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        yield


def memory_for(values: int) -> contextlib.AbstractContextManager[None]:
    """Hold the memory that decoding an image of so many pixels takes, or so many numbers where it
    has many channels.
    """
    return _MEMORY.lent(_BYTES * values)


def to_array(image: Image.Image, channels: int) -> UInt8[np.ndarray, "channels height width"]:
    """An L or RGB Pillow image as a [channels, height, width] array; a single channel is repeated
    for 3.
    """
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        return np.broadcast_to(pixels, (channels, *pixels.shape))
    return pixels.transpose(2, 0, 1)


def to_pil(data: bytes | str, at_least: int) -> Image.Image:
    """Decode to a Pillow image of mode L (grayscale) or RGB, upright.

    JPEG files may be decoded at a fraction of their size, as long as both sides keep `at_least`
    pixels.

    - animations: the first frame; EXIF orientation is applied
    - alpha (also in palettes and tRNS chunks): composited over white
    - 16 bits (also where Pillow opens them as 32): divided by 257 (the full range 0..65535 becomes
      0..255)
    - 32-bit integers: as they are up to 255, divided by 257 up to 65535, else stretched from their
      own range
    - floats: 0..1 becomes 0..255, up to 255 as they are, else stretched from their own range
    - palette, CMYK, YCbCr, HSV: to RGB; a grayscale palette: L
    """
    with _opened(data, at_least) as image:
        return image


def on_grounds(data: bytes | str) -> list[Image.Image]:
    """Return an image at its full size as `to_pil` makes it, and a transparent one also on black in
    place of white.

    Two images that are equal on both are equal on every ground.
    """
    with Image.open(opened(data), formats=formats()) as image:
        clear = _has_alpha(image)
    white = to_pil(data, _LARGEST)
    if not clear:
        return [white]
    with _opened(data, _LARGEST, "black") as black:
        return [white] if black.tobytes() == white.tobytes() else [white, black]


@contextlib.contextmanager
def _opened(data: bytes | str, at_least: int, ground: str = "white") -> Iterator[Image.Image]:
    """Yield what `to_pil` returns, with the memory for it held while entered."""
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


def _has_alpha(image: Image.Image) -> bool:
    return "transparency" in image.info or image.mode in _ALPHA


def to_gray_or_rgb(image: Image.Image, ground: str = "white") -> Image.Image:
    """The same picture in mode L or RGB; see `to_pil` for how. ground: colour behind what is
    see-through.
    """
    clear = _has_alpha(image)
    if image.mode == "RGB" and not clear:
        return image
    if image.mode in WIDE:
        return Image.fromarray(_eight_bit(image))
    mode = "L" if _is_grayscale(image) else "RGB"
    if not clear:
        return image.convert(mode)
    whole = Image.new("RGB", image.size, ground)
    layer = image.convert("RGBA")
    whole.paste(layer, mask=layer)
    return whole.getchannel(0) if mode == "L" else whole


def _eight_bit(image: Image.Image) -> UInt8[np.ndarray, "height width"]:
    """Wide grayscale values to uint8; the ranges are those of `to_pil`."""
    kind = np.float64 if image.mode == "I" else np.float32  # which hold every value
    numbers: np.ndarray = np.asarray(image).astype(kind)
    lowest, highest, real = float(numbers.min()), float(numbers.max()), image.mode == "F"
    if not math.isfinite(lowest) or not math.isfinite(highest):
        raise ValueError("the image holds values that are not finite")
    low, scale = lowest, 255 / ((highest - lowest) or 1)
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format in ("PNG", "PPM")):
        low, scale = 0, 1 / STEPS
    elif lowest >= 0 and (highest <= 255 or (highest <= WHITE and not real)):
        low, scale = 0, 255 if real and highest <= 1 else 1 if highest <= 255 else 1 / STEPS
    numbers -= low
    numbers *= scale
    return np.rint(numbers, out=numbers).astype(np.uint8)


def _fit(image: Image.Image, size: int) -> Image.Image:
    """`views.resize_square` for one Pillow image: the same crop and filter, so within 1 of 255 the
    same pixels.
    """
    top, left, side = centre_square(image.height, image.width)
    if image.width != image.height:
        image = image.crop(
            (left, top, left + side, top + side)
        )  # before the resize, which would look beyond a box
    return image if side == size else image.resize((size, size), Image.Resampling.BICUBIC)
