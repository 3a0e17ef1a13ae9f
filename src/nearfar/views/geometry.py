"""Crops, resizes, turns, shifts, zooms and shears."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from nearfar.device import send
from nearfar.views.photometric import luma, unit


def affine(
    images: Float[Tensor, "n channels side side"], motion: Float[Tensor, "n 6"]
) -> Float[Tensor, "n channels side side"]:
    """Move each image about its centre, bilinearly; the border is repeated outwards.

    `motion` holds degrees (clockwise), shift to the right and down as shares of the side, zoom, and
    shear along x and y in degrees, with torchvision's meaning.
    """
    theta = send(affine_matrix(motion), images.device)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def affine_matrix(motion: Float[Tensor, "n 6"]) -> Float[Tensor, "n 2 3"]:
    """Return the matrices that lead from a pixel of the moved image to its origin, as
    `torch.nn.functional.affine_grid` takes them.
    """
    angle, right, down, zoom, shear_x, shear_y = motion.double().unbind(1)
    angle, shear_x, shear_y = angle.deg2rad(), shear_x.deg2rad(), shear_y.deg2rad()
    turn = angle - shear_y
    a = turn.cos() / shear_y.cos()
    b = -a * shear_x.tan() - angle.sin()
    c = turn.sin() / shear_y.cos()
    d = -c * shear_x.tan() + angle.cos()
    # grid_sample asks where each output pixel comes from; the matrix (a b; c d) has determinant 1
    inverse = (
        torch.stack([torch.stack([d, -b], 1), torch.stack([-c, a], 1)], 1) / zoom[:, None, None]
    )
    shift = -inverse @ torch.stack([2 * right, 2 * down], 1)[:, :, None]
    return torch.cat([inverse, shift], 2).float()


_MATRIX_SIDE = 48
"""Largest side up to which matrix products are the faster resize on a CPU."""


def resize_matrix(
    start: Int[Tensor, " n"],
    length: Int[Tensor, " n"],
    source: int,
    size: int,
    mirror: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, "n size source"]:
    """Weights that resize the stretch `start`, `length` of a line of `source` pixels to `size`
    pixels.

    Bilinear with antialiasing: a triangle of at least one source pixel and at least one output
    pixel either way, cut at the ends of the stretch and scaled to sum 1. Lines where `mirror` is
    true come out reversed.
    """
    device = start.device
    start, length = start.float()[:, None, None], length.float()[:, None, None]
    step = length / size
    output = torch.arange(size, device=device).expand(len(start), size)
    if mirror is not None:
        output = torch.where(mirror[:, None], size - 1 - output, output)
    # [n, 1, source], from the stretch's own start
    pixel = torch.arange(source, device=device) + 0.5 - start
    inside = ((pixel > 0) & (pixel < length)).float()
    centre = (output[:, :, None] + 0.5) * step
    weight = (pixel - centre).abs_().div_(-step.clamp(min=1)).add_(1).clamp_(min=0).mul_(inside)
    return weight.div_(weight.sum(2, keepdim=True))


def crop(
    images: Shaped[Tensor, "n channels height width"],
    box: Int[Tensor, "n 4"],
    size: int,
    flip: Bool[Tensor, " n"],
) -> Float[Tensor, "n channels {size} {size}"]:
    """Cut each image's box (top, left, height, width), resize it to `size` and flip it where asked;
    values in 0..1.

    images: uint8, or float in 0..1. Antialiased at every scale, so it is torchvision's
    `resized_crop(..., antialias=True)`. Up to 48 pixels, and on accelerators at any size, it is two
    batched matrix products; larger images on a CPU go one by one through torch's resize, whose
    values for uint8 are whole numbers as in torchvision.
    """
    height, width = images.shape[2:]
    if images.device.type == "cpu" and max(height, width, size) > _MATRIX_SIDE:
        return _flip(_crop_each(images, box, size), flip)
    return _crop_product(images, send(box, images.device), size, send(flip, images.device))


def _crop_product(images: Tensor, box: Tensor, size: int, flip: Tensor) -> Tensor:
    n, channels, height, width = images.shape
    top, left, tall, wide = box.unbind(1)
    down = resize_matrix(top, tall, height, size)
    if images.dtype == torch.uint8:
        down.div_(255)
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
    return out.div_(255) if images.dtype == torch.uint8 else out


def _flip(images: Float[Tensor, "n c h w"], chosen: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    index = send(chosen.nonzero().squeeze(1), images.device)
    return images.index_copy_(0, index, images.index_select(0, index).flip(3))


def whole(images: Shaped[Tensor, "n c h w"], flip: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    """Take images that are cropped already, uint8 or float in 0..1: values in 0..1, flipped where
    asked.
    """
    return _flip(images.clone() if images.is_floating_point() else unit(images), flip)


def centre_square(height: int, width: int) -> tuple[int, int, int]:
    """Return (top, left, side) of the largest square in the middle, in whole pixels."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side


def resize_square(
    images: Shaped[Tensor, "batch channels height width"], size: int
) -> Shaped[Tensor, "batch channels {size} {size}"]:
    """Resize the centre square of images, uint8 or float in 0..1, to `size` pixels; squares of that
    size are kept.

    Bicubic and antialiased. uint8 stays uint8, rounded after each direction as Pillow does, so that
    it agrees with the pixel cache within 1 of 255 on every device; floats are clamped to 0..1.
    """
    top, left, side = centre_square(*images.shape[-2:])
    images = images[..., top : top + side, left : left + side]
    if side == size or images.shape[0] == 0:
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
    """Give images, uint8 or float, another number of channels: one is repeated, three become
    grayscale by their luma.

    Raises ValueError for any other change.
    """
    given = images.shape[1]
    if given == channels:
        return images
    if given == 1:
        return images.expand(-1, channels, -1, -1)
    if (given, channels) != (3, 1):
        raise ValueError(
            f"images with {given} channels cannot be made into {channels}; only 1 and 3 "
            f"are exchanged"
        )
    return (
        luma(images.float()).round_().to(torch.uint8)
        if images.dtype == torch.uint8
        else luma(images)
    )


def _bicubic(images: Tensor, shape: tuple[int, int]) -> Tensor:
    return F.interpolate(images.contiguous(), shape, mode="bicubic", antialias=True)
