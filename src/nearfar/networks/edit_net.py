"""A small net in whose features an image and its edits are near each other (as SSCD, Pizzi et al.
2022), trained by tools/train_edit_net.py and part of the package.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from safetensors.torch import load_file
from torch import Tensor, nn

from nearfar.networks.small import SmallNet

SIDE = 64  # pixels of a side that the net sees
WIDTHS = (32, 64, 128, 192)  # channels of its stem and of each block
NUMBERS = 256  # of an image
MEAN, STD = 0.45, 0.25  # of brightness
LEAST = 1e-6  # of a mean of cubes, whose root has no slope at 0
FILE = Path(__file__).parents[1] / "weights" / "edits.safetensors"


class EditNet(nn.Module):
    """Net for edited copies: [batch, channels, 64, 64] in 0..1 -> unit rows [batch, 256].

    Channels: 1 or 3. The cubic means (GeM, Radenovic et al. 2018, with p = 3) of the maps of three
    blocks, so that texture and shape both count, through one linear layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = SmallNet(SIDE, widths=WIDTHS, side=SIDE // 2)
        self.head = nn.Linear(sum(WIDTHS[1:]), NUMBERS)

    def forward(
        self, images: Float[Tensor, "batch channels 64 64"]
    ) -> Float[Tensor, "batch numbers"]:
        """Return the features of images, grayscale or colour."""
        maps, trunk, pooled = (images.expand(-1, 3, -1, -1) - MEAN) / STD, self.trunk, []
        maps = F.relu_(trunk.norm(trunk.conv(maps)))
        for block in trunk.blocks:
            maps = block(maps)
            pooled.append(maps.pow(3).mean((2, 3)).float().clamp(LEAST).pow(1 / 3))
        return F.normalize(self.head(torch.cat(pooled, 1)).float(), dim=1)


def edit_net() -> EditNet:
    """Return the trained net of the package."""
    net = EditNet()
    net.load_state_dict({name: value.float() for name, value in load_file(FILE).items()})
    return net.eval()


@torch.no_grad()
def edit_features(
    net: EditNet, images: Shaped[Tensor, "batch channels height width"]
) -> Float[Tensor, "batch numbers"]:
    """Features of images of any size, in whole numbers up to 255."""
    pixels = images.float() / 255
    larger = min(pixels.shape[-2:]) > SIDE
    if pixels.shape[-2:] != (SIDE, SIDE):
        mode = {"mode": "area"} if larger else {"mode": "bilinear", "antialias": True}
        pixels = F.interpolate(pixels, (SIDE, SIDE), **mode)
    return net(pixels.contiguous(memory_format=torch.channels_last))
