"""Encoders whose features are cut down to a few numbers, where there are many images."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nearfar.device import seeded
from nearfar.networks.encoder import Encoder
from nearfar.networks.folding import folded

DIRECTIONS = 128  # numbers that are left of an image's features
FITTED = 2048  # images whose features give the directions


class Shortened(Encoder):
    """An encoder whose features are cut down to a few directions: images -> [batch, directions].

    The directions are those along which unit rows of features are longest (the singular vectors of
    a sample, without a mean), so that cosines stay nearly what they were.
    """

    directions: Tensor

    def __init__(self, encoder: Encoder, directions: Float[Tensor, "dim directions"]) -> None:
        lighter = folded(encoder, least=0)
        moments = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
        form = encoder.image_size, encoder.channels
        super().__init__(lighter.backbone, *form, *moments, encoder.value_range)
        self.register_buffer("directions", directions)
        self.eval()

    @property
    def num_features(self) -> int:
        """Features of an image."""
        return self.directions.shape[1]

    def forward(self, images: Tensor) -> Float[Tensor, "batch directions"]:
        """Return the features along the directions."""
        return F.normalize(super().forward(images), dim=1) @ self.directions


def longest_directions(features: Float[Tensor, "images dim"]) -> Float[Tensor, "dim directions"]:
    """Return the directions along which unit rows of features are longest: 128, or as many as
    there are images or numbers.
    """
    with seeded("cpu", 0):
        count = min(DIRECTIONS, *features.shape)
        return torch.svd_lowrank(F.normalize(features, dim=1), count, niter=4)[2].contiguous()
