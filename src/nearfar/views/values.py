"""What the numbers of pixels stand for: bytes, floats in 0..1, and numbers of a stated range."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor


def unit(pixels: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return uint8 pixels as floats in 0..1; floats, which lie there already, as they are."""
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def eight_bits(pixels: Shaped[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Return floats in 0..1 rounded to uint8; uint8 pixels as they are."""
    return pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().clamp(0, 255).to(torch.uint8)


def from_range(
    numbers: Float[Tensor, "*batch channels height width"], value_range: Sequence[float]
) -> Float[Tensor, "*batch channels height width"]:
    """Map each channel's range (low, high) to 0..1, and what lies beyond it to 0 and 1.

    value_range: low and high of every channel in turn, or one pair for all. Raises ValueError for another number.
    """
    channels = numbers.shape[-3]
    if len(value_range) not in (2, 2 * channels):
        raise ValueError(f"{channels} channels need a value range of 2 or {2 * channels} numbers, got {value_range}")
    low, high = torch.tensor(value_range, dtype=numbers.dtype, device=numbers.device).view(-1, 2, 1, 1).unbind(1)
    return ((numbers - low) / (high - low)).clamp(0, 1)
