"""Arrays of images: where their channels are, and their numbers as pixels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from nearfar.data.value_range import STEPS, PixelFormat, sixteen_bits
from nearfar.views import from_range, resize_square, unit, with_channels

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


def has_eight_bits(planes: Tensor) -> bool:
    """Return whether the type is uint8 or bool, or another of whole numbers (but for uint16) that
    all lie in 0..255.
    """
    if planes.is_floating_point() or planes.dtype == torch.uint16:
        return False
    small = planes.dtype in (torch.uint8, torch.bool)
    return small or all(
        piece.min() >= 0 and piece.max() <= 255 for piece in map(Tensor.numpy, pieces(planes))
    )


def to_pixels(
    planes: Shaped[Tensor, "images given height width"], form: PixelFormat
) -> Shaped[Tensor, "images channels size size"]:
    """Images as pixels of a form; uint8 of its size and channels are not copied."""
    if form.value_range is None:
        return fitted(as_bytes(planes), form)
    return in_range(planes, form)


def in_range(planes: Tensor, form: PixelFormat) -> Shaped[Tensor, "images c s s"]:
    """Images in their own numbers as uint16: resized as floats, in which the range is 0..1.

    Those of uint8 and bool keep the whole range of their type, as pictures of 8 bits do.
    """
    out = []
    for piece in pieces(planes):
        if planes.dtype in (torch.uint8, torch.bool):
            scaled = with_channels(unit(as_bytes(piece)), form.channels)
        else:
            numbers = piece.to(torch.float32)
            if not numbers.isfinite().all():
                raise ValueError("images must hold finite numbers")
            scaled = from_range(with_channels(numbers, form.channels), form.value_range or ())
        out.append(sixteen_bits(resize_square(scaled, form.size)))
    return torch.from_numpy(np.concatenate(out))


def as_bytes(planes: Tensor) -> UInt8[Tensor, "images channels height width"]:
    """To uint8: bool to 0 and 255, uint16 divided by 257, floats in 0..1 times 255, other integers
    as they are.
    """
    if planes.dtype == torch.uint8:
        return planes
    if planes.dtype == torch.bool:
        return planes.to(torch.uint8) * 255
    scale = 1 / STEPS if planes.dtype == torch.uint16 else 255 if planes.is_floating_point() else 1
    out = torch.empty(planes.shape, dtype=torch.uint8)
    for piece, to in zip(pieces(planes), pieces(out), strict=True):
        values = piece.to(torch.float64) * scale
        if not bool(((values >= 0) & (values <= 255)).all()):
            raise ValueError(
                "float images must lie in 0..1, whole numbers in 0..255; scale them, or give uint8"
            )
        to.copy_(values.round())
    return out


def fitted(
    pixels: UInt8[Tensor, "images given height width"], form: PixelFormat
) -> UInt8[Tensor, "images {form.channels} {form.size} {form.size}"]:
    """The same images with another size and number of channels; not copied where they fit."""
    if pixels.shape[1] == form.channels and min(pixels.shape[2:]) == form.size:
        return resize_square(pixels, form.size)
    return torch.cat(
        [resize_square(with_channels(piece, form.channels), form.size) for piece in pieces(pixels)]
    )


def pieces(pixels: Tensor) -> Iterator[Tensor]:
    """`pixels` in consecutive parts of about four million values: few enough to work on in wide
    types.
    """
    return iter(pixels.split(max(1, 2**22 // max(1, pixels[:1].numel()))))
