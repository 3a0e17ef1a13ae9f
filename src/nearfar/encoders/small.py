"""A small residual net that trains at a useful speed on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class SmallNet(nn.Module):
    """Residual net for small images: [batch, in_chans, image_size, image_size] -> [batch, num_features].

    A 3x3 stem without pooling, then one basic block for each width. `image_size` decides how often the maps are halved,
    from the last block backwards, the stem last of all: to 2 or 3 pixels at any size from 8 px (twice) over 32 px (by
    every block) to 96 px (by the stem too). Other sizes than that are taken as well.
    Defaults: 17 million multiply-adds at 32 px, 1.2 million parameters, 256 features.
    Raises ValueError for an image size below 4.
    """

    def __init__(self, image_size: int, in_chans: int = 3, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        if image_size < 4:
            raise ValueError(f"the small net takes images of 4 px and up, got {image_size}")
        self.num_features = widths[-1]
        self.halvings = min(math.ceil(math.log2(image_size / 3)), len(widths) + 1)
        strides = [1 + (self.halvings > place) for place in reversed(range(len(widths) + 1))]
        self.conv = nn.Conv2d(in_chans, widths[0], 3, strides[0], padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        inputs = [widths[0], *widths[:-1]]
        blocks = [BasicBlock(*sizes) for sizes in zip(inputs, widths, strides[1:], strict=True)]
        self.blocks = nn.Sequential(*blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """Return the mean of the last maps."""
        return self.blocks(F.relu_(self.norm(self.conv(images)))).mean((2, 3))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, which averages where the block halves the map.

    Source: He et al. 2016 (ResNet); the averaging shortcut is ResNet-D's (He et al. 2019).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        shortcut: list[nn.Module] = [nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)] if stride == 2 else []
        if inputs != outputs:
            shortcut += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, maps: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs h w"]:
        """Apply the block."""
        out = F.relu_(self.norm1(self.conv1(maps)))
        return F.relu_(self.norm2(self.conv2(out)).add_(self.shortcut(maps)))
