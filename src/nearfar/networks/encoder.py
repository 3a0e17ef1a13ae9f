"""The encoder that is kept: a backbone with its preprocessing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from nearfar.networks.backbone import Backbone
from nearfar.views import resize_square, with_channels


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
        """The backbone's name: "small" or timm's; for a user's module, its class."""
        return self.backbone.name

    @property
    def num_features(self) -> int:
        """Features of an image."""
        return self.backbone.num_features

    def forward(self, images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "batch num_features"]:
        """Encode images [batch, channels, height, width], uint8 or float in 0..1, of any size, grey or colour.

        The centre square is resized to `image_size` (bicubic, antialiased), grey is repeated for colour and colour
        made grey by its luma: the very functions that made the training images, so full-size images and those that
        `open_images` made of them give the same features. Raises ValueError for other numbers of channels.
        """
        return self.backbone(self.preprocess(images))

    def preprocess(self, images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "batch c size size"]:
        """Do everything that comes before the backbone; see `forward`."""
        if images.ndim != 4:
            raise ValueError(f"expected images [batch, channels, height, width], got a tensor {list(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"expected uint8 or float images, got {images.dtype}")
        images = resize_square(with_channels(images, self.channels), self.image_size)
        images = images.to(self.mean.dtype) / 255 if images.dtype == torch.uint8 else images
        return (images - self.mean) / self.std
