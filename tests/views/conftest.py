"""Shared images: smooth enough to be like photographs, with noise, flat areas and full black and
white.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F


@pytest.fixture
def pictures():
    def make(count: int, channels: int, height: int, width: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(count * 1000 + channels * 100 + height)
        width = width or height
        coarse = torch.rand(
            count, channels, max(2, height // 5), max(2, width // 5), generator=generator
        )
        smooth = F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=False)
        rough = (
            smooth * 1.3
            - 0.15
            + 0.1 * torch.randn(count, channels, height, width, generator=generator)
        )
        rough[0, :, : height // 2] = 0.4  # no colour: hue is undefined there
        return (rough.clamp(0, 1) * 255).round().to(torch.uint8)

    return make
