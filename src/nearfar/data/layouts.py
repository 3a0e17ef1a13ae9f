"""Arrays of images: where their channels are, and what becomes of them in a form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.data.bits import are_finite, bytes_of_arrays, pieces, scaled, stored
from nearfar.data.value_range import PixelFormat
from nearfar.views import resize_square, unit

COLOUR = (3, 4)  # channels of colour images, without and with transparency


def as_planes(raw: np.ndarray, channels: int | None = None) -> Tensor:
    """Any accepted layout as a tensor [N,C,H,W]; errors as of `shape_of_planes`."""
    shape_of_planes(raw.shape, raw.dtype, channels)
    if raw.ndim == 3:
        raw = raw[:, None]
    elif _channels_last(raw.shape, channels):
        raw = raw.transpose(0, 3, 1, 2)
    if min(raw.strides) < 0:  # turned around, which torch does not know
        raw = raw.copy()
    return torch.from_numpy(raw.astype(raw.dtype.newbyteorder("="), copy=False))


def unmasked(given: Any) -> np.ndarray:
    """Return what is given as an array; ValueError for masked numbers, in whose place NumPy gives
    those below the mask.
    """
    if np.ma.is_masked(given):
        raise ValueError(
            f"{np.ma.count_masked(given)} of {given.size} numbers are masked: say what stands in "
            f"their places by .filled(...)"
        )
    return np.asarray(given)


def shape_of_planes(
    shape: tuple[int, ...], dtype: np.dtype, channels: int | None = None
) -> tuple[int, int, int, int]:
    """The shape [N,C,H,W] of an array; the channel axis is the shorter of the second and the last.

    ValueError where both may be it: `channels` says which one has so many, and of two equal ones
    takes the second; and for three axes that are one colour image rather than strips of grayscale.
    """
    if len(shape) not in (3, 4) or min(shape) < 1:
        raise ValueError(
            f"images must be an array [N,H,W], [N,H,W,C] or [N,C,H,W], got shape {tuple(shape)}"
        )
    if dtype.kind not in "uifb" or dtype.itemsize > 8:  # float128, which torch does not know
        raise ValueError(f"images must be uint8 or other numbers up to 64 bits, got {dtype}")
    if len(shape) == 3 and shape[2] in COLOUR and min(shape[:2]) > max(COLOUR):
        height, width, colours = shape
        raise ValueError(
            f"an array {list(shape)} is one image of {colours} channels, or {height} grayscale "
            f"ones of {width} x {colours} pixels: give images[None], or images[:, None]"
        )
    if len(shape) == 3:
        return shape[0], 1, shape[1], shape[2]
    if _channels_last(shape, channels):
        return shape[0], shape[3], shape[1], shape[2]
    return shape[0], shape[1], shape[2], shape[3]


def _channels_last(shape: tuple[int, ...], channels: int | None) -> bool:
    """Return whether the last axis of four holds the channels, and not the second.

    The shorter one does where the images are square then, or where it has at most 4 and they are
    not square otherwise.
    """
    _, second, third, last = shape
    shorter, square_first, square_last = min(second, last), third == last, second == third
    square, square_otherwise = (
        (square_last, square_first) if last < second else (square_first, square_last)
    )
    if second != last and (square or (shorter <= 4 and not square_otherwise)):
        return last < second
    if channels in (second, last):
        return channels != second
    first, otherwise = (
        f"{second} channels of {third} x {last} pixels",
        f"{last} of {second} x {third}",
    )
    which = (
        f"channels={second} or channels={last}"
        if second != last
        else f"channels={second}, if they come first"
    )
    raise ValueError(
        f"images of shape {list(shape[1:])} may have {first} or {otherwise}: say {which}"
    )


def to_pixels(
    planes: Shaped[Tensor, "images given height width"], form: PixelFormat
) -> Shaped[Tensor, "images channels size size"]:
    """Images as pixels of a form; uint8 of its size and channels are not copied."""
    size, channels, value_range = form
    if value_range is None:
        planes = bytes_of_arrays(planes)
        if planes.shape[1] == channels and min(planes.shape[2:]) == size:
            return resize_square(planes, size)
    elif not are_finite(planes.numpy()):
        raise ValueError("images must hold finite numbers")
    made = []
    for piece in pieces(planes):
        ends: Sequence[float] | None = value_range
        if value_range is not None and piece.dtype in (torch.uint8, torch.bool):
            piece, ends = unit(bytes_of_arrays(piece)), (0, 1)  # their own range, as floats
        square = resize_square(scaled(piece.numpy(), channels, ends), size)
        made.append(stored(square.numpy(), form.dtype))
    return torch.from_numpy(np.concatenate(made))
