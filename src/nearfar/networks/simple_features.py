"""Features of images that need no training: pixels, colours and edges."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.views import eight_bits, unit

ORIENTATIONS, CELL, CLIP = 9, 8, 0.2  # of HOG, as in the paper
DIRECTIONS = 2 * ORIENTATIONS + 2  # with sign, and one on each side for rounding
RAW_SIDE, HOG_SIDE = 32, 64  # pixels, at most
TIES = 16 * 255**2  # of equally steep channels the first is taken, however other tools round


def raw_pixels(pixels: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
    """The baseline that every encoder has to beat, for `extract`: the pixels themselves, in 0..1,
    as float32 features.

    Images with a side above 32 pixels are first averaged down to it (area mean, each side on its
    own), which keeps the features to channels * 32^2 numbers. Smaller images are taken as they are.
    """
    height, width = pixels.shape[2:]
    size = (min(height, RAW_SIDE), min(width, RAW_SIDE))
    values = unit(pixels)
    return (values if size == (height, width) else F.adaptive_avg_pool2d(values, size)).flatten(1)


def colour_histogram(
    pixels: Shaped[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch dim"]:
    """Colour histogram of an image (Swain and Ballard 1991): float32 rows of length 1.

    Three channels: 8 x 8 x 8 joint bins of red, green and blue, 512 features. Any other number: 32
    bins for each channel, on its own. The features are square roots of shares, so that their cosine
    is the Bhattacharyya coefficient and their distance Hellinger's: a large plain background then
    does not outweigh all else.
    """
    batch, channels = pixels.shape[:2]
    values = eight_bits(pixels).flatten(2)
    if channels == 3:
        red, green, blue = (values >> 5).short().unbind(1)
        bins, number = 64 * red + 8 * green + blue, 512
    else:
        first = 32 * torch.arange(channels, device=pixels.device)[:, None]
        bins, number = ((values >> 3) + first).flatten(1), 32 * channels
    counts = torch.zeros(batch, number, device=pixels.device)
    counts.scatter_add_(1, bins.long(), counts.new_ones(1).expand(bins.shape))
    return (counts / bins.shape[1]).sqrt()


def hog(pixels: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
    """Histograms of oriented gradients (Dalal and Triggs, CVPR 2005), float32: where an image has
    edges, and which way.

    Gradients [-1, 0, 1] of the channel where they are steepest; 9 orientations without sign, each
    vote shared by the two nearest; cells of 8 x 8 pixels; blocks of 2 x 2 cells that overlap by
    one, each normalised by its length, clipped at 0.2 and normalised again (L2-Hys). Sides above 64
    pixels are first reduced to that, which gives 1764 features. Images below 32 pixels have smaller
    cells, four to a side. Differs from the paper: votes are not shared among neighbouring cells and
    not weighted towards a block's centre.
    """
    height, width = (min(max(side, 8), HOG_SIDE) for side in pixels.shape[2:])
    image = unit(pixels)
    if image.shape[2:] != (height, width):
        image = F.interpolate(image, size=(height, width), mode="bilinear", antialias=True)
    down = F.pad(image[:, :, 2:] - image[:, :, :-2], (0, 0, 1, 1))
    across = F.pad(image[:, :, :, 2:] - image[:, :, :, :-2], (1, 1))
    cells = _votes(*_steepest(down, across), min(CELL, min(height, width) // 4))
    # [batch, rows, columns, 36]
    blocks = cells.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 4, 5, 1).flatten(3)
    return F.normalize(
        F.normalize(blocks, dim=3, eps=1e-5).clamp_max(CLIP), dim=3, eps=1e-5
    ).flatten(1)


def _votes(
    down: Float[Tensor, "batch height width"],
    across: Float[Tensor, "batch height width"],
    cell: int,
) -> Float[Tensor, "batch 9 rows columns"]:
    """The votes of the pixels of each cell for the orientations; what a last cell lacks is left
    out.

    A vote goes to one of twice as many directions with sign, and one on each side for rounding:
    -10 to 9 in bins from the centre of the first. Those half a turn apart are one orientation.
    """
    rows, columns = (side // cell for side in down.shape[1:])
    down, across = (part[:, : rows * cell, : columns * cell] for part in (down, across))
    strength = (down.square() + across.square()).sqrt()
    place = torch.atan2(down, across) * (ORIENTATIONS / math.pi) - 0.5
    lower = place.floor()
    above = strength * (place - lower)
    number = torch.arange(rows * columns, device=down.device).view(rows, 1, columns, 1)
    first = DIRECTIONS * number.expand(-1, cell, -1, cell).reshape(lower.shape[1:])
    bins = (lower.long() + (first + ORIENTATIONS + 1)).flatten(1)
    votes = strength.new_zeros(strength.shape[0], rows * columns * DIRECTIONS)
    votes.scatter_add_(1, bins, (strength - above).flatten(1))
    votes.scatter_add_(1, bins + 1, above.flatten(1))
    votes = votes.view(-1, rows, columns, DIRECTIONS)
    last, backward, forward, over = votes.split([1, ORIENTATIONS, ORIENTATIONS, 1], 3)
    beyond = torch.cat([over, F.pad(last, (ORIENTATIONS - 2, 0))], 3)
    return (backward + forward + beyond).permute(0, 3, 1, 2)


def _steepest(
    down: Float[Tensor, "batch channels height width"],
    across: Float[Tensor, "batch channels height width"],
) -> tuple[Float[Tensor, "batch height width"], Float[Tensor, "batch height width"]]:
    """The gradients of the channel where they are steepest, the first of equal ones.

    Channels are compared one after the other, which takes less time than a maximum with its place;
    a choice by a weight of 0 or 1 takes less than one by a condition.
    """
    steepness = ((down.square() + across.square()) * TIES).round()
    best, *others = zip(down.unbind(1), across.unbind(1), steepness.unbind(1), strict=True)
    for own in others:
        is_steeper = (own[2] > best[2]).to(down.dtype)
        down, across, steep = (
            torch.lerp(old, new, is_steeper) for old, new in zip(best, own, strict=True)
        )
        best = down, across, steep
    return best[0], best[1]
