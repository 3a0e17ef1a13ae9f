"""Our own nets for a CPU, in the form of timm's models, and a first convolution that whitens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.models._features import feature_take_indices
from torch import Tensor, nn

OWN_NETS: dict[str, dict[str, Any]] = {
    "tiny": dict(widths=(32, 64, 128), side=16),
    "small": dict(widths=(64, 64, 256), side=16),
    "medium": dict(widths=(32, 64, 128, 256), side=32),
}
"""Our own encoders by name, with the arguments of `SmallNet` that tell them apart. Multiply-adds at
32 px in colour and parameters: "tiny" 8 and 0.29 million, for comparisons of many runs; "small" 17
(26 at 224 px; 4.2 at 8 px, grayscale) and 0.83 million; "medium" 45 and 1.2 million, the better one
once a run sees 200 000 images (docs/photographs.md).
"""

MOST_CELLS = 32  # a side of a grid

# added to each variance, of normalised pixels, so that noise is not made as large as the rest
WHITENING_FLOOR = 1e-2


class SmallNet(nn.Module):
    """Residual net for a CPU: [batch, in_chans, image_size, image_size] -> [batch, num_features],
    or the classes.

    A stem, basic blocks that each halve the feature map, and the mean of the last one. Few wide
    layers on small feature maps, since on a CPU the normalisation and activation of large ones cost
    more than their convolutions. widths: channels of the stem and of each block. side: pixels of
    the stem's map. `image_size` decides the stem: 3x3 with stride 1 up to `side` and with stride 2
    up to 2.8 times that; above, it cuts patches that do not overlap, so that all sizes cost the
    same from there on (docs/photographs.md). Images of other sizes are taken as well. grid: cells
    of a side; above 1 the mean of every cell of the last map, divided by `grid`, follows the mean
    over all of it: the mean tells what there is, the cells where it is, and both are about as long.
    num_classes, drop_rate: of a classifier as timm's models have it; none for 0 classes. Raises
    ValueError for an image size below 4 and a grid that is not from 1 to 32.

    >>> SmallNet(image_size=32)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 256])
    """

    def __init__(
        self,
        image_size: int = 224,
        in_chans: int = 3,
        num_classes: int = 0,
        drop_rate: float = 0.0,
        widths: Sequence[int] = (64, 64, 256),
        side: int = 16,
        grid: int = 1,
    ) -> None:
        super().__init__()
        if image_size < 4:
            raise ValueError(f"the small net takes images of 4 px and up, got {image_size}")
        if type(grid) is not int or not 1 <= grid <= MOST_CELLS:
            raise ValueError(f"the grid has 1 to {MOST_CELLS} cells a side, got {grid!r:.40}")
        self.grid = grid
        self.num_features = widths[-1] * (1 if grid == 1 else 1 + grid**2)
        self.head_hidden_size = self.num_features
        self.in_chans = in_chans
        if image_size > 2.8125 * side:
            patch = round(image_size / side)
            self.conv = nn.Conv2d(in_chans, widths[0], patch, stride=patch, bias=False)
        else:
            self.conv = nn.Conv2d(
                in_chans, widths[0], 3, stride=2 if image_size > side else 1, padding=1, bias=False
            )
        self.norm = nn.BatchNorm2d(widths[0])
        self.blocks = nn.Sequential(*(BasicBlock(*pair) for pair in pairwise(widths)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes)
        modules = ["norm", *(f"blocks.{i}" for i in range(len(self.blocks)))]
        self.feature_info = [
            dict(num_chs=width, reduction=self.conv.stride[0] * 2**i, module=module)
            for i, (width, module) in enumerate(zip(widths, modules, strict=True))
        ]

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return patterns that sort the parameters by depth, as timm's nets do."""
        return {"stem": r"^conv|norm", "blocks": r"^blocks\.(\d+)"}

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put a new last layer in; features are always averaged, so that `global_pool` changes
        nothing.
        """
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch features"]:
        """Return the mean of the last feature map, classified where there are classes."""
        return self.forward_head(self.forward_features(images))

    def forward_features(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim h w"]:
        """Return the last feature map."""
        return self.blocks(F.relu_(self.norm(self.conv(images))))

    def forward_head(
        self, maps: Float[Tensor, "batch dim h w"], pre_logits: bool = False
    ) -> Float[Tensor, "batch _"]:
        """Average a feature map and classify it."""
        # mean's backward gives a layout that is slow for the rest
        features = F.avg_pool2d(maps, maps.shape[2:]).flatten(1)
        if self.grid > 1:
            cells = F.adaptive_avg_pool2d(maps, self.grid).flatten(1) / self.grid
            features = torch.cat([features, cells], 1)
        return self.drop(features) if pre_logits else self.fc(self.drop(features))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Any = None,
        intermediates_only: bool = False,
        stop_early: bool = False,
        **_: Any,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the maps of the stem and the blocks with these numbers, after the last map unless
        told otherwise.
        """
        taken, last = feature_take_indices(len(self.feature_info), indices)
        maps = [F.relu_(self.norm(self.conv(x)))]
        for block in self.blocks[: last if stop_early else None]:
            maps.append(block(maps[-1]))
        chosen = [maps[i] for i in taken]
        return chosen if intermediates_only else (maps[-1], chosen)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the first with stride 2, around a shortcut that averages 2x2 pixels.

    Source: He et al. 2016 (ResNet); the averaging shortcut is ResNet-D's (He et al. 2019).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False))
        if inputs != outputs:
            self.shortcut.extend(
                [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
            )

    def forward(
        self, inputs: Float[Tensor, "batch inputs height width"]
    ) -> Float[Tensor, "batch outputs h w"]:
        """Apply the block."""
        out = F.relu_(self.norm1(self.conv1(inputs)))
        return F.relu_(self.norm2(self.conv2(out)).add_(self.shortcut(inputs)))


@torch.no_grad()
def whiten_stem(net: SmallNet, images: Float[Tensor, "images channels height width"]) -> None:
    """Set the net's first convolution to whiten patches of these images, which are normalised as
    those it will see.

    Filters are the principal directions of the patches, each divided by its deviation, largest
    first, followed by their negatives, as the rectifier behind them passes one sign alone; channels
    beyond these stay as they are. Source: Page, How to Train Your ResNet (2019), and Jordan, 94% on
    CIFAR-10 in 3.29 Seconds (2024), section 3.1.
    """
    side = net.conv.kernel_size[0]
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for some in images.split(32):  # all patches of large images would fill a gigabyte
        patches = F.unfold(some, side, stride=side).transpose(1, 2).flatten(0, 1).double()
        count, total, products = (
            count + len(patches),
            total + patches.sum(0),
            products + patches.T @ patches,
        )
    values, directions = torch.linalg.eigh((products - total.outer(total) / count) / (count - 1))
    filters = (directions / (values + WHITENING_FLOOR).sqrt()).T.flip(0)[
        : net.conv.out_channels // 2
    ]
    both = torch.cat([filters, -filters]).view(-1, *net.conv.weight.shape[1:])
    net.conv.weight[: len(both)] = both.to(net.conv.weight.dtype)
