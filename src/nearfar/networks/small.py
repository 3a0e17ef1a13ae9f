"""A small residual net that trains at a useful speed on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class SmallNet(nn.Module):
    """Residual net for a CPU: [batch, in_chans, image_size, image_size] -> [batch, num_features].

    A stem, basic blocks that each halve the feature map, and the mean of the last one. Few wide layers on small feature
    maps, since on a CPU the normalisation and activation of large ones cost more than their convolutions.
    widths: channels of the stem and of each block. side: pixels of the stem's map. `image_size` decides the stem: 3x3
    with stride 1 up to `side` and with stride 2 up to 2.8 times that; above, it cuts patches that do not overlap, so
    that all sizes cost the same from there on (docs/photographs.md). Images of other sizes are taken as well.
    The defaults are the encoder "small": 17 million multiply-adds at 32 px in colour (8 px grey 4.2) and 26 at 224 px,
    0.83 million parameters; 8 px end as 2x2, 32 px and more as 4x4.
    Raises ValueError for an image size below 4.
    """

    def __init__(
        self, image_size: int, in_chans: int = 3, widths: Sequence[int] = (64, 64, 256), side: int = 16
    ) -> None:
        super().__init__()
        if image_size < 4:
            raise ValueError(f"the small net takes images of 4 px and up, got {image_size}")
        self.num_features = widths[-1]
        if image_size > 2.8125 * side:
            patch = round(image_size / side)
            self.conv = nn.Conv2d(in_chans, widths[0], patch, stride=patch, bias=False)
        else:
            self.conv = nn.Conv2d(in_chans, widths[0], 3, stride=2 if image_size > side else 1, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.blocks = nn.Sequential(*(BasicBlock(*pair) for pair in pairwise(widths)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return patterns that sort the parameters by depth, as timm's nets do."""
        return {"stem": r"^conv|norm", "blocks": r"^blocks\.(\d+)"}

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """Return the mean of the last feature map."""
        out = self.blocks(F.relu_(self.norm(self.conv(images))))
        return F.avg_pool2d(out, out.shape[2:]).flatten(1)  # mean's backward gives a layout that is slow for the rest

    def feature_maps(
        self, images: Float[Tensor, "batch channels height width"], count: int | None = None
    ) -> list[Tensor]:
        """Return the feature maps of the stem and of each block, or of the first `count` of these."""
        maps = [F.relu_(self.norm(self.conv(images)))]
        for block in self.blocks[: None if count is None else count - 1]:
            maps.append(block(maps[-1]))
        return maps


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
            self.shortcut.extend([nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)])

    def forward(self, inputs: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs h w"]:
        """Apply the block."""
        out = F.relu_(self.norm1(self.conv1(inputs)))
        return F.relu_(self.norm2(self.conv2(out)).add_(self.shortcut(inputs)))


OWN_NETS: dict[str, Callable[..., SmallNet]] = {
    "tiny": partial(SmallNet, widths=(32, 64, 128)),
    "small": SmallNet,
    "medium": partial(SmallNet, widths=(32, 64, 128, 256), side=32),
}
"""Our own encoders by name. "tiny" is half as wide, for comparisons of many runs: 8 million multiply-adds at 32 px,
0.29 million parameters. "medium" has three blocks on maps twice as large: 45 million multiply-adds at 32 px, 1.2
million parameters; it is the better one once a run sees 200 000 images (docs/photographs.md)."""
