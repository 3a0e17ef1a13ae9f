"""The encoder that is kept: a backbone with its preprocessing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from nearfar.networks.backbone import Backbone

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as torchvision and Pillow


class Encoder(nn.Module):
    """Images as they come -> features: resizes, adapts the channels, normalises, applies the backbone.

    backbone: of `build_backbone`. image_size: pixels of a side. channels: that the backbone takes. mean, std: one
    number for each channel, in units of 0..1. Its own state_dict holds the backbone's weights alone.
    Raises ValueError where mean or std do not have one number for each channel, or a std is not above 0.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, backbone: Backbone, image_size: int, channels: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        mean, std = [float(x) for x in mean], [float(x) for x in std]
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ValueError(f"{channels} channels need as many means and stds (above 0), got {mean} and {std}")
        self.backbone, self.image_size, self.channels = backbone, image_size, channels
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    @property
    def name(self) -> str:
        """The backbone's name: "small" or timm's."""
        return self.backbone.architecture.name

    @property
    def num_features(self) -> int:
        """Features of an image."""
        return self.backbone.num_features

    def forward(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch num_features"]:
        """Encode images, uint8 or float in 0..1, of any size, grey or colour.

        Another size is resized with antialiasing (bilinear), the shorter side to `image_size`, and cut at the centre.
        Grey becomes colour by repeating it, colour grey by BT.601 luma. Raises ValueError for other channel counts.
        """
        return self.backbone(self.preprocess(images))

    def preprocess(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch c size size"]:
        """Do everything that comes before the backbone; see `forward`."""
        if images.ndim != 4:
            raise ValueError(f"expected images [batch, channels, height, width], got a tensor {list(images.shape)}")
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype) / 255
        elif not images.is_floating_point():
            raise ValueError(f"expected uint8 or float images, got {images.dtype}")
        return (_adapted(_resized(images, self.image_size), self.channels) - self.mean) / self.std


def _resized(images: Tensor, size: int) -> Tensor:
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    scale = size / min(height, width)
    shape = (max(size, round(height * scale)), max(size, round(width * scale)))
    images = F.interpolate(images, shape, mode="bilinear", antialias=True, align_corners=False)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return images[..., top : top + size, left : left + size]


def _adapted(images: Tensor, channels: int) -> Tensor:
    given = images.shape[1]
    if given == channels:
        return images
    if given == 1:
        return images.expand(-1, channels, -1, -1)
    if given == 3 and channels == 1:
        return (images * images.new_tensor(LUMA).view(-1, 1, 1)).sum(1, keepdim=True)
    raise ValueError(f"the encoder takes images with {channels} channels, got {given}")
