"""Crops resized with antialiasing, and flips."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

_MATRIX_SIDE = 48
"""Largest side up to which matrix products are the faster resize on a CPU."""


def resize_matrix(
    start: Int[Tensor, " n"],
    length: Int[Tensor, " n"],
    source: int,
    size: int,
    mirror: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, "n size source"]:
    """Weights that resize the stretch `start`, `length` of a line of `source` pixels to `size` pixels.

    Bilinear with antialiasing: a triangle of at least one source pixel and at least one target pixel either way, cut
    at the ends of the stretch and scaled to sum 1. Lines where `mirror` is true come out reversed.
    """
    device = start.device
    start, length = start.float()[:, None, None], length.float()[:, None, None]
    step = length / size
    target = torch.arange(size, device=device).expand(len(start), size)
    if mirror is not None:
        target = torch.where(mirror[:, None], size - 1 - target, target)
    pixel = torch.arange(source, device=device) + 0.5 - start  # [n, 1, source], from the stretch's own start
    inside = ((pixel > 0) & (pixel < length)).float()
    centre = (target[:, :, None] + 0.5) * step
    weight = (pixel - centre).abs_().div_(-step.clamp(min=1)).add_(1).clamp_(min=0).mul_(inside)
    return weight.div_(weight.sum(2, keepdim=True))


def crop(
    images: UInt8[Tensor, "n channels height width"],
    box: Int[Tensor, "n 4"],
    size: int,
    flip: Bool[Tensor, " n"],
) -> Float[Tensor, "n channels {size} {size}"]:
    """Cut each image's box (top, left, height, width), resize it to `size` and flip it where asked; values in 0..1.

    Antialiased at every scale, so it is torchvision's `resized_crop(..., antialias=True)`. Up to 48 pixels, and on
    accelerators at any size, it is two batched matrix products; larger images on a CPU go one by one through torch's
    resize for uint8, whose values are whole numbers as in torchvision.
    """
    height, width = images.shape[2:]
    if images.device.type == "cpu" and max(height, width, size) > _MATRIX_SIDE:
        return _flip(_crop_each(images, box, size), flip)
    return _crop_product(images, box.to(images.device), size, flip.to(images.device))


def _crop_product(images: Tensor, box: Tensor, size: int, flip: Tensor) -> Tensor:
    n, channels, height, width = images.shape
    top, left, tall, wide = box.unbind(1)
    down = resize_matrix(top, tall, height, size).div_(255)
    across = resize_matrix(left, wide, width, size, flip)
    lines = torch.empty(
        n, height, channels, width, device=images.device
    )  # height first: one product serves all channels
    lines.copy_(images.transpose(1, 2))
    narrow = torch.bmm(lines.view(n, height * channels, width), across.transpose(1, 2))
    small = torch.bmm(down, narrow.view(n, height, channels * size))
    return small.view(n, size, channels, size).transpose(1, 2).contiguous()


def _crop_each(images: Tensor, box: Tensor, size: int) -> Tensor:
    n, channels = images.shape[:2]
    out = torch.empty(n, channels, size, size)
    for i, (top, left, tall, wide) in enumerate(box.tolist()):
        piece = images[i : i + 1, :, top : top + tall, left : left + wide]
        out[i : i + 1] = F.interpolate(piece, size=(size, size), mode="bilinear", antialias=True)
    return out.div_(255)


def _flip(images: Float[Tensor, "n c h w"], chosen: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    index = chosen.nonzero().squeeze(1).to(images.device)
    return images.index_copy_(0, index, images.index_select(0, index).flip(3))


def whole(images: UInt8[Tensor, "n c h w"], flip: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    """Take images that are cropped already: values in 0..1, flipped where asked."""
    return _flip(images.float().div_(255), flip)
