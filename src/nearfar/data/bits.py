"""Numbers of images: what stands for 0 and 1 in them, and how they become stored pixels.

| kind of image | where a value range is chosen | where 8 bits are |
|---|---|---|
| uint8, truth values | their own: 0..255, 0..1 | the same |
| uint16 | the value range | 0..65535 |
| other grayscale that Pillow reads | the value range | by its values: `range_of_grayscale` |
| other files | the value range | none: an error |
| other arrays | the value range | floats 0..1, whole numbers 0..255 |

Stored pixels are uint8, or uint16 where there is a value range: their full range stands for 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Shaped, UInt8
from torch import Tensor

from nearfar.views import from_range, unit, with_channels

Range: TypeAlias = tuple[float, float]
RANGES: Final = {"bool": (0, 1), "uint8": (0, 255), "uint16": (0, 65535)}
"""Low and high of the types that say what stands for 0 and 1 in them."""
ROUNDING = 8  # of 255: by so much the channels of a gray JPEG may differ
NEARLY_BLACK = "divided by 257, so that 12 bits in 16 are nearly black"
"""What becomes of 16 bits where 8 are wanted."""
_EIGHT_BITS = ("bool", "uint8")
_WHITE = 65535
_PIECE = 2**22  # numbers that are worked on at a time


def range_of_grayscale(numbers: Shaped[np.ndarray, "height width"]) -> Range:
    """Return low and high of a grayscale image of more than 8 bits that becomes a picture.

    Of uint16 they are 0 and 65535, of other whole numbers 0 and 255 or 65535, and of floats 0 and 1
    or 255, whichever holds all numbers first; else the lowest and highest of the image. ValueError
    unless these are finite.
    """
    if numbers.dtype.name in RANGES:
        return RANGES[numbers.dtype.name]
    low, high = float(numbers.min()), float(numbers.max())
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError("the image holds values that are not finite")
    ends = (1, 255) if numbers.dtype.kind == "f" else (255, _WHITE)
    return next(((0, end) for end in ends if low >= 0 and high <= end), (low, high))


def range_of_array(kind: np.dtype) -> Range:
    """Return low and high of arrays of this type that become 8 bits."""
    return RANGES.get(kind.name, (0, 1) if kind.kind == "f" else (0, 255))


def bits_of(kind: np.dtype, planes: Callable[[], Tensor]) -> int:
    """8 or 16, which stands for all that are more than 8, for an array of this type.

    planes: gives the array, which is asked for only where the type does not say: whole numbers that
    all lie in 0..255 have 8.
    """
    if kind.name in _EIGHT_BITS:
        return 8
    if kind.kind == "f" or kind.name in RANGES:
        return 16
    parts = map(Tensor.numpy, pieces(planes()))
    return 8 if all(part.min() >= 0 and part.max() <= 255 for part in parts) else 16


def as_bytes(
    numbers: Shaped[np.ndarray, "*shape"], span: Range, precision: type = np.float64
) -> UInt8[np.ndarray, "*shape"]:
    """Numbers as uint8, of which the range becomes 0..255."""
    low, high = span
    out = np.empty(numbers.shape, np.uint8)
    step = max(1, _PIECE // max(1, numbers[:1].size))
    for start in range(0, len(numbers), step):  # floats of all would take several times as much
        part = numbers[start : start + step]
        part = np.multiply(part - low if low else part, 255 / ((high - low) or 1), dtype=precision)
        out[start : start + step] = np.rint(part, out=part)
    return out


def bytes_of_arrays(planes: Shaped[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Arrays as uint8, by the range of `range_of_array`; ValueError for numbers beyond it."""
    if planes.dtype == torch.uint8:
        return planes
    out = torch.empty(planes.shape, dtype=torch.uint8)
    for piece, to in zip(pieces(planes), pieces(out), strict=True):
        numbers = piece.numpy()
        low, high = range_of_array(numbers.dtype)
        if not (numbers.min() >= low and numbers.max() <= high):
            raise ValueError(
                "float images must lie in 0..1, whole numbers in 0..255; scale them, or give uint8"
            )
        to.copy_(torch.from_numpy(as_bytes(numbers, (low, high))))
    return out


def are_gray(pixels: UInt8[Tensor, "images 3 height width"]) -> Bool[Tensor, " images"]:
    """Return which images of three channels are gray: these agree but for JPEG's rounding."""
    apart = (pixels.amax(1).int() - pixels.amin(1).int()).flatten(1)
    return (apart > ROUNDING).float().mean(1) < 0.01


def are_finite(planes: Shaped[np.ndarray, "*shape"]) -> bool:
    """Return whether all numbers are finite in float32."""
    if planes.dtype.kind != "f":
        return True
    with np.errstate(over="ignore"):
        return all(np.isfinite(plane.astype(np.float32, copy=False)).all() for plane in planes)


def scaled(
    planes: Shaped[np.ndarray, "images given height width"],
    channels: int,
    value_range: Sequence[float] | None,
) -> Shaped[Tensor, "images channels height width"]:
    """Numbers with so many channels: uint8, or floats in 0..1 where there is a value range.

    value_range: low and high of every channel, or None for the range of the type.
    """
    if planes.dtype != np.uint8:
        if value_range is not None:
            numbers = torch.from_numpy(planes.astype(np.float32))
            return from_range(with_channels(numbers, channels), value_range)
        planes = as_bytes(planes, RANGES[planes.dtype.name])
    if min(planes.strides) < 0:  # turned around, which torch does not know
        planes = planes.copy()
    pixels = with_channels(torch.from_numpy(planes), channels)
    return pixels if value_range is None else unit(pixels)


def stored(pixels: Shaped[np.ndarray, "*shape"], kind: np.dtype) -> Shaped[np.ndarray, "*shape"]:
    """Pixels as they are stored in uint8 or uint16: uint8, or floats in 0..1 for uint16 alone."""
    if pixels.dtype == kind:
        return pixels
    if pixels.dtype == np.uint8:
        return pixels * np.uint16(_WHITE // 255)
    scaled = pixels * _WHITE
    return np.rint(scaled, out=scaled).astype(np.uint16)


def floats(pixels: Shaped[np.ndarray, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Stored pixels as they are read: uint8 as they are, uint16 as float32 in 0..1."""
    return torch.from_numpy(
        pixels if pixels.dtype == np.uint8 else np.divide(pixels, _WHITE, dtype=np.float32)
    )


def pieces(pixels: Tensor) -> Iterator[Tensor]:
    """`pixels` in consecutive parts of about four million values: few enough to work on in wide
    types.
    """
    return iter(pixels.split(max(1, _PIECE // max(1, pixels[:1].numel()))))
