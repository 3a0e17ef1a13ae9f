"""A first convolution that whitens the patches of the images that it is trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from nearfar.networks.small import SmallNet

LEAST = 1e-2  # added to each variance, of normalised pixels, so that noise is not made as large as the rest


@torch.no_grad()
def whiten_stem(net: SmallNet, images: Float[Tensor, "images channels height width"]) -> None:
    """Set the net's first convolution to whiten patches of these images, which are normalised as those it will see.

    Filters are the principal directions of the patches, each divided by its deviation, largest first, followed by their
    negatives, as the rectifier behind them passes one sign alone; channels beyond these stay as they are.
    Source: Page, How to Train Your ResNet (2019), and Jordan, 94% on CIFAR-10 in 3.29 Seconds (2024), section 3.1.
    """
    side = net.conv.kernel_size[0]
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for some in images.split(32):  # all patches of large images would fill a gigabyte
        patches = F.unfold(some, side, stride=side).transpose(1, 2).flatten(0, 1).double()
        count, total, products = count + len(patches), total + patches.sum(0), products + patches.T @ patches
    values, directions = torch.linalg.eigh((products - total.outer(total) / count) / (count - 1))
    filters = (directions / (values + LEAST).sqrt()).T.flip(0)[: net.conv.out_channels // 2]
    both = torch.cat([filters, -filters]).view(-1, *net.conv.weight.shape[1:])
    net.conv.weight[: len(both)] = both.to(net.conv.weight.dtype)
