"""The one way in which images get the size and the channels that are asked for, wherever that happens."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional as F

from nearfar.views.colour import luma


def centre_square(height: int, width: int) -> tuple[int, int, int]:
    """Return (top, left, side) of the largest square in the middle, in whole pixels."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side


def resize_square(
    images: Shaped[Tensor, "batch channels height width"], size: int
) -> Shaped[Tensor, "batch channels {size} {size}"]:
    """Resize the centre square of images, uint8 or float in 0..1, to `size` pixels; squares of that size are kept.

    Bicubic and antialiased. uint8 stays uint8, rounded after each direction as Pillow does, so that it agrees with the
    pixel cache within 1 of 255 on every device; floats are clamped to 0..1.
    """
    top, left, side = centre_square(*images.shape[-2:])
    images = images[..., top : top + side, left : left + side]
    if side == size or len(images) == 0:
        return images.new_empty(*images.shape[:2], size, size) if side != size else images
    if images.dtype != torch.uint8:
        return _bicubic(images, (size, size)).clamp(0, 1)
    if images.device.type == "cpu":
        return _bicubic(images, (size, size))
    for shape in ((side, size), (size, size)):  # torch has no such resize of uint8 on a GPU
        images = _bicubic(images.float(), shape).round_().clamp_(0, 255)
    return images.to(torch.uint8)


def with_channels(
    images: Shaped[Tensor, "batch given height width"], channels: int
) -> Shaped[Tensor, "batch {channels} height width"]:
    """Give images, uint8 or float, another number of channels: grey is repeated, colour becomes grey by its luma.

    Raises ValueError for any other change.
    """
    given = images.shape[1]
    if given == channels:
        return images
    if given == 1:
        return images.expand(-1, channels, -1, -1)
    if (given, channels) != (3, 1):
        raise ValueError(f"images with {given} channels cannot be made into {channels}; only 1 and 3 are exchanged")
    return luma(images.float()).round_().to(torch.uint8) if images.dtype == torch.uint8 else luma(images)


def _bicubic(images: Tensor, shape: tuple[int, int]) -> Tensor:
    return F.interpolate(images.contiguous(), shape, mode="bicubic", antialias=True)
