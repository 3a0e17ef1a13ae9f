"""A small net in whose features an image and its edits are near each other (as SSCD, Pizzi et al.
2022), trained by tools/train_edit_net.py and part of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from safetensors.torch import load_file
from torch import Tensor, nn

from nearfar.device import has_bfloat16
from nearfar.networks.folding import folded_net
from nearfar.networks.small import SmallNet

SIDE = 64  # pixels of a side that the net sees
LARGER, SHARE = 96, 0.67  # pixels of a side where it sees parts, and the share of a side of each
CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.5))  # where parts lie: down, and across
WIDTHS = (32, 64, 128, 192)  # channels of its stem and of each block
NUMBERS = 128  # of an image
MEAN, STD = 0.45, 0.25  # of brightness
LEAST = 1e-6  # of a mean of cubes, whose root has no slope at 0
FILE = Path(__file__).parents[1] / "weights" / "edits.safetensors"


class EditNet(nn.Module):
    """Net for edited copies: [batch, channels, side, side] in 0..1 -> unit rows [batch, 128].

    Channels: 1 or 3; side: 64, as it was trained. The cubic means (GeM, Radenovic et al. 2018, with
    p = 3) of the maps of three blocks, so that texture and shape both count, through one linear
    layer.
    """

    def __init__(self, numbers: int = NUMBERS) -> None:
        super().__init__()
        self.trunk = SmallNet(SIDE, widths=WIDTHS, side=SIDE // 2)
        self.head = nn.Linear(sum(WIDTHS[1:]), numbers)

    def forward(
        self, images: Float[Tensor, "batch channels side side"]
    ) -> Float[Tensor, "batch numbers"]:
        """Return the features of images, grayscale or colour."""
        return self._pooled(self._cubes(images))[:, 0]

    def parts(
        self, images: Float[Tensor, "batch channels side side"]
    ) -> Float[Tensor, "batch parts numbers"]:
        """Return the features of five parts of images, the corners and the centre."""
        return self._pooled(self._cubes(images), CORNERS)

    def _cubes(self, images: Tensor) -> list[Tensor]:
        """The maps of the blocks, to the power of 3."""
        maps, trunk, cubes = (images.expand(-1, 3, -1, -1) - MEAN) / STD, self.trunk, []
        maps = F.relu_(trunk.norm(trunk.conv(maps)))
        for block in trunk.blocks:
            maps = block(maps)
            cubes.append(maps * maps * maps)  # `pow` takes twice as long
        return cubes

    def _pooled(
        self, cubes: Sequence[Tensor], corners: Sequence[tuple[float, float]] = ()
    ) -> Float[Tensor, "batch parts numbers"]:
        """The numbers of parts that lie in these corners; without any, of the whole."""
        means = [_means(maps, corners) for maps in cubes]
        pooled = torch.cat(means, 2).float().clamp(LEAST).pow(1 / 3)
        return F.normalize(self.head(pooled).float(), dim=2)


def _means(
    maps: Float[Tensor, "batch channels side side"], corners: Sequence[tuple[float, float]]
) -> Float[Tensor, "batch parts channels"]:
    """The means of maps over the parts of an image in these corners, or the whole.

    They are products with weights, which take less time than means of parts of a map.
    """
    side = maps.shape[-1]
    length = round(SHARE * side) if corners else side
    weights = maps.new_zeros(max(1, len(corners)), side, side)
    for of_part, (down, across) in zip(weights, corners or [(0, 0)], strict=True):
        y, x = round((side - length) * down), round((side - length) * across)
        of_part[y : y + length, x : x + length] = 1
    return weights.flatten(1) @ maps.flatten(2).transpose(1, 2) / length**2


def edit_net() -> EditNet:
    """Return the trained net of the package, with its batch norms folded."""
    net = EditNet().eval()
    tensors = {name: value.float() for name, value in load_file(FILE).items()}
    net.load_state_dict(tensors, strict=False)  # batches are not counted
    return folded_net(net, torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)))


@torch.inference_mode()
def edit_features(
    net: EditNet, images: UInt8[Tensor, "batch channels height width"]
) -> tuple[Float[Tensor, "batch numbers"], Float[Tensor, "batch parts numbers"]]:
    """Features of whole images of any size, and of five parts of each, on the CPU."""
    colour = images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, has_bfloat16(torch.device("cpu"))):
        return net(_resized(colour, SIDE)), net.parts(_resized(colour, LARGER))


def _resized(images: UInt8[Tensor, "batch channels height width"], side: int) -> Tensor:
    resized = F.interpolate(images, (side, side), mode="bilinear", antialias=True)
    return resized / 255
