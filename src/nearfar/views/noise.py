"""Gaussian noise with a deviation and a seed for each image."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def noise_(
    images: Float[Tensor, "n channels h w"], deviation: Float[Tensor, " n"], seed: Int[Tensor, " n"]
) -> Float[Tensor, "n channels h w"]:
    """Add gaussian noise in place and clamp to 0..1.

    Sampled on the CPU from a seed for each image, so it is the same on every device and in every split of a batch.
    """
    generator = torch.Generator()
    field = torch.empty(images.shape)
    for image, value in zip(field, seed.tolist(), strict=True):
        image.normal_(generator=generator.manual_seed(value))
    return images.add_(field.mul_(deviation[:, None, None, None]).to(images.device)).clamp_(0, 1)
