"""What a sensible person would try before training anything: pixels, colours and edges, as features for `extract`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.views import eight_bits, unit

ORIENTATIONS, CELL, CLIP = 9, 8, 0.2  # of HOG, as in the paper


def raw_pixels(
    pixels: Shaped[Tensor, "batch channels height width"], largest_side: int = 32
) -> Float[Tensor, "batch dim"]:
    """The baseline that every encoder has to beat, for `extract`: the pixels themselves, in 0..1, as float32 features.

    Images with a side above `largest_side` are first averaged down to it (area mean, each side on its own), which
    keeps the features to channels * largest_side^2 numbers. Smaller images are taken as they are.
    """
    height, width = pixels.shape[2:]
    size = (min(height, largest_side), min(width, largest_side))
    values = unit(pixels)
    return (values if size == (height, width) else F.adaptive_avg_pool2d(values, size)).flatten(1)


def colour_histogram(pixels: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
    """How often each colour occurs in an image, wherever it is (Swain and Ballard 1991): float32 rows of length 1.

    Three channels: 8 x 8 x 8 joint bins of red, green and blue, 512 features. Any other number: 32 bins for each
    channel, on its own. The features are square roots of shares, so that their cosine is the Bhattacharyya coefficient
    and their distance Hellinger's: a large plain background then does not outweigh all else.
    """
    batch, channels = pixels.shape[:2]
    values = eight_bits(pixels).flatten(2).long()
    if channels == 3:
        red, green, blue = (values >> 5).unbind(1)
        bins, number = 64 * red + 8 * green + blue, 512
    else:
        first = 32 * torch.arange(channels, device=pixels.device)[:, None]
        bins, number = ((values >> 3) + first).flatten(1), 32 * channels
    first = number * torch.arange(batch, device=pixels.device)[:, None]
    counts = torch.bincount((bins + first).flatten(), minlength=batch * number).view(batch, number)
    return (counts / bins.shape[1]).sqrt()


def hog(pixels: Shaped[Tensor, "batch channels height width"], largest_side: int = 64) -> Float[Tensor, "batch dim"]:
    """Histograms of oriented gradients (Dalal and Triggs, CVPR 2005), float32: where an image has edges, and which way.

    Gradients [-1, 0, 1] of the channel where they are steepest; 9 orientations without sign, each vote shared by the
    two nearest; cells of 8 x 8 pixels; blocks of 2 x 2 cells that overlap by one, each normalised by its length,
    clipped at 0.2 and normalised again (L2-Hys). Sides above `largest_side` are first reduced to it: at 64 pixels
    these are 1764 features. Images below 32 pixels have smaller cells, four to a side.
    Differs from the paper: votes are not shared among neighbouring cells and not weighted towards a block's centre.
    """
    height, width = (min(max(side, 8), largest_side) for side in pixels.shape[2:])
    image = unit(pixels)
    if image.shape[2:] != (height, width):
        image = F.interpolate(image, size=(height, width), mode="bilinear", antialias=True)
    down = F.pad(image[:, :, 2:] - image[:, :, :-2], (0, 0, 1, 1))
    across = F.pad(image[:, :, :, 2:] - image[:, :, :, :-2], (1, 1))
    strength, steepest = torch.hypot(down, across).max(1, keepdim=True)
    angle = torch.atan2(down.gather(1, steepest), across.gather(1, steepest))
    place = angle % math.pi * (ORIENTATIONS / math.pi) - 0.5  # in bins, from the centre of the first
    lower = place.floor()
    share = place - lower
    votes = strength.new_zeros(len(image), ORIENTATIONS, height, width)
    votes.scatter_add_(1, lower.long() % ORIENTATIONS, strength * (1 - share))
    votes.scatter_add_(1, (lower.long() + 1) % ORIENTATIONS, strength * share)
    cell = min(CELL, min(height, width) // 4)
    cells = F.avg_pool2d(votes, cell) * cell**2
    blocks = cells.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 4, 5, 1).flatten(3)  # [batch, rows, columns, 36]
    return F.normalize(F.normalize(blocks, dim=3, eps=1e-5).clamp_max(CLIP), dim=3, eps=1e-5).flatten(1)
