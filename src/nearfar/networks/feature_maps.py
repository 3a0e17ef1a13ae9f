"""Feature maps of a backbone at several strides, for detectors."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from timm.models.resnet import ResNet
from torch import Tensor, nn

from nearfar.messages import first_line
from nearfar.networks.backbone import Backbone
from nearfar.networks.small import SmallNet

_PROBE = 512  # pixels; a multiple of the strides of all of timm's nets


class FeatureMaps(nn.Module):
    """A backbone that gives its feature maps, largest first: images [batch, c, h, w] -> list of [batch, dim, h', w'].

    One map for each stride, the deepest, and of those the last `most`. `strides` and `channels` list what they are.
    The weights are the backbone's own, not a copy. in_chans: channels of the images.
    Raises ValueError for a backbone without maps at two strides or more, such as a vision transformer.
    """

    def __init__(self, backbone: Backbone, in_chans: int, most: int = 4) -> None:
        super().__init__()
        self.backbone = backbone
        self.taken: list[int] | None = None
        net = backbone.net
        hint = "detectors take small, ResNets, ConvNeXts and others with stages"
        if not isinstance(net, SmallNet) and not hasattr(net, "forward_intermediates"):
            raise ValueError(f"encoder {backbone.name!r} gives no feature maps: {hint}")
        training = net.training
        try:
            with torch.no_grad():
                maps = self.eval()(torch.zeros(1, in_chans, _PROBE, _PROBE))
        except Exception as error:  # a net of someone else's can fail in any way
            why = f"encoder {backbone.name!r} gives no feature maps at other sizes: {first_line(error)}"
            raise ValueError(f"{why} ({hint})") from error
        self.train(training)
        if isinstance(net, SmallNet):  # its strides need not divide the probe
            strides = [net.conv.stride[0] * 2**number for number in range(len(maps))]
        else:
            strides = [round(_PROBE / one.shape[-1]) for one in maps]
        taken = [strides.index(stride) + strides.count(stride) - 1 for stride in sorted(set(strides))][-most:]
        if len(taken) < 2:
            raise ValueError(f"encoder {backbone.name!r} has feature maps of one size only: {hint}")
        self.taken = taken
        self.strides, self.channels = [strides[i] for i in taken], [maps[i].shape[1] for i in taken]

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> list[Tensor]:
        """Return the maps."""
        net = self.backbone.net
        if isinstance(net, SmallNet):
            last = None if self.taken is None else self.taken[-1] + 1
            maps = net.feature_maps(images, last)
            return maps if self.taken is None else [maps[i] for i in self.taken]
        take: Any = net.forward_intermediates
        given = take(images, indices=self.taken, intermediates_only=True, stop_early=True)
        return list(given)

    def split_last(self) -> tuple[nn.Module, int]:
        """Let the maps end before the last stage, and return that stage with its number of output channels.

        As C4 detectors do, which apply it to each region. Raises ValueError but for the small net and timm's ResNets.
        """
        net = self.backbone.net
        if not isinstance(net, (SmallNet, ResNet)):
            raise ValueError(f"a C4 detector takes small or a ResNet, not {self.backbone.name!r}: use one with FPN")
        assert self.taken is not None
        stage: Any = net.blocks[-1] if isinstance(net, SmallNet) else net.layer4
        outputs = self.channels[-1]
        self.taken, self.strides, self.channels = self.taken[:-1], self.strides[:-1], self.channels[:-1]
        return stage, outputs
