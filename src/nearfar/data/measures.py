"""Measures of an image that need no encoder: contrast, brightness, white and blur."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from nearfar.data.bits import floats
from nearfar.data.decoding import PICTURE, decode, own_numbers, whole_planes
from nearfar.data.pictures import as_picture, fitted, to_array
from nearfar.data.value_range import PixelFormat
from nearfar.views import eight_bits

SIDE = 256  # pixels of the shorter side at which images are measured, at most
BLURRED_BY = 9  # pixels of the averages that sharp images lose much by: Crété et al., section 3
LEVELS = np.arange(256.0)  # of 8 bits
WHITE = 250  # of 255: values from here on are clipped, or nearly
MEASURES = ("nearly uniform", "dark", "overexposed", "blurred")
"""The defects that the measures show, in their order."""


def measures(pixels: UInt8[np.ndarray, "height width"]) -> tuple[float, float, float, float]:
    """Measure a grayscale image.

    Its standard deviation and its 98th percentile, of 255; the share of its pixels from 250 on; and
    its blur, 0..1: how little of the differences between neighbouring pixels is lost when it is
    blurred once more, in the direction in which that is least. Source of the last: Crété et al.
    2007, "The blur effect".
    """
    # numpy's and torch's counts would first make eight bytes of each pixel
    counts = np.array(Image.fromarray(pixels).histogram(), dtype=np.float64)  # for products by BLAS
    shares = counts.cumsum() / pixels.size
    mean = counts @ LEVELS / pixels.size
    deviation = np.sqrt(counts @ np.square(LEVELS - mean) / pixels.size)
    return (
        float(deviation),
        float(np.searchsorted(shares, 0.98)),
        float(1 - shares[WHITE - 1]),
        max(_blur(pixels, 0), _blur(pixels, 1)),
    )


def _blur(pixels: UInt8[np.ndarray, "height width"], axis: int) -> float:
    """The blur along one axis.

    Two averages of nine pixels, one further, differ by a ninth of the difference between the pixel
    that enters and the one that leaves: no average is computed. At the edges the image is mirrored.
    """
    reach, length = BLURRED_BY // 2, pixels.shape[axis]
    if length == 1:
        return 0.0
    wide = _with_mirror_images(pixels, axis, reach)

    def part(start: int, stop: int) -> np.ndarray:
        return wide[start:stop] if axis == 0 else wide[:, start:stop]

    neighbours = part(reach + 1, reach + length), part(reach, reach + length - 1)
    ends = part(BLURRED_BY, length + 2 * reach), part(0, length - 1)
    total, lost = _sharpness(neighbours, ends)
    return 1 - lost / (BLURRED_BY * total) if total else 0.0


def _with_mirror_images(pixels: np.ndarray, axis: int, reach: int) -> np.ndarray:
    """The pixels with their mirror image beyond both ends of an axis, so many pixels of it."""
    around = [0, 0]
    around[axis] = reach
    cv2 = opencv()
    if cv2 is None:
        return np.pad(pixels, [(width, width) for width in around], mode="symmetric")
    rows, columns = around
    return cv2.copyMakeBorder(pixels, rows, rows, columns, columns, cv2.BORDER_REFLECT)


Pair = tuple[np.ndarray, np.ndarray]


def _sharpness(neighbours: Pair, ends: Pair) -> tuple[int, int]:
    """The sum of the differences of neighbours, and of what nine times each exceeds that of the
    ends.

    OpenCV, where it is installed, has the same numbers in a fraction of the time.
    """
    cv2 = opencv()
    if cv2 is None:
        before, after = (np.abs(np.subtract(*pair, dtype=np.int16)) for pair in (neighbours, ends))
        lost = np.maximum(BLURRED_BY * before - after, 0)
        return int(before.sum(dtype=np.int64)), int(lost.sum(dtype=np.int64))
    before, after = (cv2.absdiff(*pair) for pair in (neighbours, ends))
    most = cv2.convertScaleAbs(before, alpha=BLURRED_BY)  # 255 at most, as `after` is
    total, capped, beyond = (
        int(cv2.sumElems(part)[0]) for part in (before, most, cv2.subtract(most, after))
    )
    return total, beyond + BLURRED_BY * total - capped


@cache
def opencv() -> Any:
    """OpenCV; None where it is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def grayscale(data: bytes | str) -> UInt8[np.ndarray, "height width"]:
    """An encoded picture of 8 bits as it is measured: at a shorter side of at most 256 pixels."""
    return _at_most(Image.fromarray(whole_planes(data, 1, None, SIDE)[0].numpy()))


def decode_and_measure(
    data: bytes | str, form: PixelFormat
) -> tuple[
    Shaped[np.ndarray, "channels {form.size} {form.size}"], tuple[float, float, float, float]
]:
    """The pixels of an encoded image in a form, as `decode` has them within a few of 255, and its
    measures; a picture of 8 bits is decoded once for both. Raises what `decode` raises.
    """
    size, channels, value_range = form
    if value_range is not None or channels not in PICTURE:
        pixels = decode(data, form)
        shown = eight_bits(floats(pixels.copy())[None])[0]
        return pixels, measures(shown.float().mean(0).byte().numpy())
    if own_numbers(data, channels, value_range) is not None:
        return decode(data, form), measures(grayscale(data))
    with as_picture(data, at_least=max(SIDE, 2 * size)) as image:
        gray = image.convert("L")
        picture = gray if channels == 1 else image
        # as the JPEG decoder halves it
        halvings = max(1, min(picture.size) // (2 * size)).bit_length() - 1
        pixels = to_array(fitted(picture.reduce(2**halvings), size), channels)
        return pixels, measures(_at_most(gray))


def are_rough(originals: Any, form: PixelFormat) -> bool:
    """Return whether images are encoded pictures of 8 bits, which are measured larger than they
    are opened.
    """
    return originals is not None and form.value_range is None and form.channels in PICTURE


def _at_most(image: Image.Image) -> UInt8[np.ndarray, "height width"]:
    share = SIDE / min(image.size)
    if share < 1:
        image = image.resize(
            (max(1, round(image.width * share)), max(1, round(image.height * share)))
        )
    return np.asarray(image)
