"""Values of pixels, as bytes or floats in 0..1, and what changes them: colour, lost channels, blur,
noise and more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F

from nearfar.device import send


def unit(pixels: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return uint8 pixels as floats in 0..1; floats, which lie there already, as they are."""
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def eight_bits(pixels: Shaped[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Return floats in 0..1 rounded to uint8; uint8 pixels as they are."""
    return (
        pixels
        if pixels.dtype == torch.uint8
        else (pixels * 255).round().clamp(0, 255).to(torch.uint8)
    )


def check_value_range(value_range: Any) -> list[float]:
    """Return low and high of a value range, one pair or one for each channel; ValueError for what
    is none.
    """
    try:
        numbers = [float(number) for number in value_range]
    except (TypeError, ValueError):
        numbers = []
    if isinstance(value_range, str) or len(numbers) < 2 or len(numbers) % 2:
        raise ValueError(
            "value_range is LOW HIGH, a pair for each channel, 'full' or 'uint8', not "
            f"{value_range!r:.60}"
        )
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    if not all(low < high and math.isfinite(high - low) for low, high in pairs):
        raise ValueError(f"each LOW of value_range must be below its HIGH, got {numbers!s:.60}")
    return numbers


def from_range(
    numbers: Float[Tensor, "*batch channels height width"], value_range: Sequence[float]
) -> Float[Tensor, "*batch channels height width"]:
    """Map each channel's range (low, high) to 0..1, and what lies beyond it to 0 and 1.

    value_range: low and high of every channel in turn, or one pair for all. Raises ValueError for
    another number, and where a low is not below its high.
    """
    channels, value_range = numbers.shape[-3], check_value_range(value_range)
    if len(value_range) not in (2, 2 * channels):
        raise ValueError(
            f"{channels} channels need a value range of 2 or {2 * channels} numbers, got "
            f"{value_range}"
        )
    low, high = (
        send(torch.tensor(value_range, dtype=numbers.dtype), numbers.device)
        .view(-1, 2, 1, 1)
        .unbind(1)
    )
    return ((numbers - low) / (high - low)).clamp(0, 1)


LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grayscale value (ITU-R BT.601) as in Pillow; torchvision's
differ by 0.0001.
"""


def luma(images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 h w"]:
    """Return the grayscale values of colour images."""
    red, green, blue = images.split(1, 1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def grayscale_(images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
    """Set all three channels to the grayscale value."""
    return images.copy_(luma(images).expand_as(images))


def drop_channel(
    images: Float[Tensor, "n channels h w"], share: Float[Tensor, " n"]
) -> Float[Tensor, "n channels h w"]:
    """Give one channel of each image its mean everywhere: channel floor(`share` * channels),
    `share` in 0..1.

    The mean and not black, so that a lost channel is no outlier after normalisation.
    """
    rows, channels = torch.arange(len(images), device=images.device), images.shape[1]
    lost = send((share * channels).long().clamp(max=channels - 1), images.device)
    images[rows, lost] = images[rows, lost].mean((1, 2), keepdim=True).expand(-1, *images.shape[2:])
    return images


def jitter_(
    images: Float[Tensor, "n channels h w"],
    factors: Float[Tensor, "n 3"],
    hue: Float[Tensor, " n"],
    order: Int[Tensor, "n 3"],
    hue_place: Int[Tensor, " n"],
) -> Float[Tensor, "n channels h w"]:
    """Change brightness, contrast, saturation (`factors`, in each image's `order`), and hue after
    `hue_place` of them.

    Each is torchvision's `adjust_*`: a blend f * image + (1 - f) * other, clamped to 0..1, where
    other is black, the image's mean grayscale value, or its grayscale values. So one pass serves a
    whole batch in any order of changes. Parameters stay on the CPU. Without three channels the mean
    is over all of them, and saturation and hue do nothing.
    """
    colour = images.shape[1] == 3
    for place in range(4):
        if colour:
            _hue_where_(images, hue, hue_place == place)
        if place < 3:
            turn = order[:, place : place + 1]
            factor = factors.gather(1, turn)
            if not colour:
                factor = factor.masked_fill(turn == 2, 1.0)
            _blend_(images, factor, (1 - factor) * (turn == 1), (1 - factor) * (turn == 2), colour)
    return images


def _blend_(
    images: Tensor, factor: Tensor, of_mean: Tensor, of_grayscale: Tensor, colour: bool
) -> None:
    factor, of_mean, of_grayscale = send(
        torch.stack([factor, of_mean, of_grayscale]), images.device
    )[..., None, None]
    if colour:
        grayscale = luma(images)
        mean = grayscale.mean((2, 3), keepdim=True).mul_(of_mean)
        images.mul_(factor).add_(grayscale.mul_(of_grayscale).add_(mean)).clamp_(0, 1)
    else:
        mean = images.mean((1, 2, 3), keepdim=True).mul_(of_mean)
        images.mul_(factor).add_(mean).clamp_(0, 1)


def _hue_where_(images: Tensor, hue: Tensor, chosen: Tensor) -> None:
    index = (chosen & (hue != 0)).nonzero().squeeze(1)
    if len(index):
        rows = send(index, images.device)
        images.index_copy_(
            0, rows, turn_hue(images.index_select(0, rows), send(hue[index], images.device))
        )


def turn_hue(
    images: Float[Tensor, "n 3 h w"], hue: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 h w"]:
    """Turn each image's hue by `hue` turns of the colour circle, value and saturation (HSV) kept:
    `adjust_hue`.

    Without branches, which cost most on a CPU. With high and low the largest and smallest channel
    and d = high - low, the angle in sextants is sign(green - blue) (1 + (green + blue - red - low)
    / d); and at angle a a channel whose opposite lies at angle c has the value low + d
    clamp(dist(a, c) - 1, 0, 1), dist going round the circle.
    """
    red, green, blue = images.unbind(1)
    low = torch.minimum(torch.minimum(red, green), blue)
    # 6 d, since angles are in turns here
    sixfold = torch.maximum(torch.maximum(red, green), blue).sub_(low).mul_(6)
    angle = (green + blue).sub_(red).sub_(low).div_(sixfold.clamp(min=1e-9)).add_(1 / 6)
    angle = torch.copysign(angle, green - blue).add_(hue[:, None, None])
    opposite = send(torch.tensor([3 / 6, 5 / 6, 1 / 6]), images.device)[:, None, None]
    far = angle[:, None] - opposite
    far.sub_(far.round()).abs_().clamp_(1 / 6, 2 / 6)
    base = low.sub_(sixfold, alpha=1 / 6)
    return far.mul_(sixfold[:, None]).add_(base[:, None])


def solarize_(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Replace every value x at or above 0.5 by 1 - x."""
    above = (images >= 0.5).float()
    return images.addcmul_(above, 1 - 2 * images)


def kernel_size(side: int) -> int:
    """Return an odd kernel size of about a tenth of the side, at least 3: 23 pixels at 224
    (SimCLR), 3 at 32.
    """
    return max(3, 2 * (side // 20) + 1)


def blur(
    images: Float[Tensor, "n channels h w"], sigma: Float[Tensor, " n"], kernel: int
) -> Float[Tensor, "n channels h w"]:
    """Blur each image with a gaussian of its own `sigma` (pixels), cut to an odd `kernel`, borders
    reflected.

    torchvision's `gaussian_blur`. Two separable passes that add up shifted images: with a weight
    for each image this is faster than a grouped convolution, from 32 to 224 pixels, on a CPU.
    Images smaller than the kernel get the largest odd kernel that a reflection allows.
    """
    radius = min(kernel // 2, min(images.shape[2:]) - 1)
    offset = torch.arange(-radius, radius + 1, device=images.device)
    weight = torch.exp(-0.5 * (offset / send(sigma, images.device)[:, None]) ** 2)
    weight = (weight / weight.sum(1, keepdim=True))[:, :, None, None, None]
    for dim, pad in ((2, (0, 0, radius, radius)), (3, (radius, radius, 0, 0))):
        length = images.shape[dim]
        padded = F.pad(images, pad, mode="reflect")
        images = padded.narrow(dim, 0, length) * weight[:, 0]
        for i in range(1, 2 * radius + 1):
            images.addcmul_(padded.narrow(dim, i, length), weight[:, i])
    return images


def noise_(
    images: Float[Tensor, "n channels h w"], deviation: Float[Tensor, " n"], seed: Int[Tensor, " n"]
) -> Float[Tensor, "n channels h w"]:
    """Add gaussian noise in place and clamp to 0..1.

    Sampled on the CPU from a seed for each image, so it is the same on every device and in every
    split of a batch.
    """
    generator = torch.Generator()
    field = torch.empty(images.shape)
    for image, value in zip(field, seed.tolist(), strict=True):
        image.normal_(generator=generator.manual_seed(value))
    return images.add_(send(field.mul_(deviation[:, None, None, None]), images.device)).clamp_(0, 1)
