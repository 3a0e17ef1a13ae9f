"""The first layers of ResNets, made to suit small images."""

from __future__ import annotations

import torch
from timm.models.resnet import ResNet
from timm.models.resnetv2 import ResNetV2
from torch import nn

SMALL_STEM_BELOW = 64  # pixels


def stem_of(net: nn.Module) -> tuple[nn.Conv2d, nn.Module, str] | None:
    """Find the first convolution, and the module and name of the max-pool, of a ResNet-like net; None for others."""
    parent: nn.Module = net
    pool = "maxpool"
    if isinstance(net, ResNetV2):
        parent, pool = net.stem, "pool"
    elif not isinstance(net, ResNet):
        return None
    first = next(module for module in parent.modules() if isinstance(module, nn.Conv2d))
    return (first, parent, pool) if hasattr(parent, pool) else None


def shrink_stem(net: nn.Module) -> None:
    """Make the first convolution 3x3 with stride 1, re-initialised, and remove the max-pool; other nets are left alone.

    Source: SimCLR (Chen et al. 2020), Appendix B.9.
    """
    stem = stem_of(net)
    if stem is None:
        return
    conv, parent, pool = stem
    conv.stride = (1, 1)
    if conv.kernel_size != (3, 3):
        conv.kernel_size, conv.padding = (3, 3), (1, 1)
        conv.weight = nn.Parameter(torch.empty(*conv.weight.shape[:2], 3, 3))
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    setattr(parent, pool, nn.Identity())
