"""Preprocessing of the encoder."""

import pytest
import torch
from torch import nn
from torchvision.transforms.v2 import functional as tv

from nearfar.networks import Architecture, Backbone, Encoder, build_backbone

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def encoder(size: int = 8, channels: int = 3) -> Encoder:
    """An encoder whose features are its preprocessed pixels."""
    net = Backbone(nn.Flatten(), Architecture("flatten"), channels * size * size)
    return Encoder(net, size, channels, MEAN[:channels], STD[:channels])


def test_uint8_and_float_are_normalised_alike() -> None:
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    wanted = tv.normalize(images / 255, list(MEAN), list(STD)).flatten(1)
    torch.testing.assert_close(encoder()(images), wanted)
    torch.testing.assert_close(encoder()(images / 255), wanted)


def test_other_sizes_are_resized_with_antialiasing() -> None:
    images = torch.rand(2, 3, 24, 24)
    for given in (images, images[..., :5, :5]):
        resized = tv.resize(given, [8, 8], tv.InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
        wanted = tv.normalize(resized, list(MEAN), list(STD))
        torch.testing.assert_close(encoder()(given).view(2, 3, 8, 8), wanted)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 4, 8, 8), r"4 channels .* into 3"),
        (torch.rand(3, 8, 8), r"\[batch, channels, height, width\]"),
        (torch.ones(2, 3, 8, 8, dtype=torch.int64), "int64"),
    ],
)
def test_other_tensors_are_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder()(images)


def test_mean_and_std_need_a_number_for_each_channel() -> None:
    backbone = build_backbone("small", image_size=8, channels=3)
    with pytest.raises(ValueError, match="3 channels"):
        Encoder(backbone, 8, 3, (0.5,), (0.5,))
    with pytest.raises(ValueError, match="above 0"):
        Encoder(backbone, 8, 3, MEAN, (0.2, 0.0, 0.2))


@pytest.mark.parametrize("floats", ["0..255", "normalised", "nan", "one pixel"])
def test_floats_out_of_range_are_refused(floats):
    net = build_backbone("tiny", image_size=16, channels=3)
    encoder = Encoder(net, 16, 3, mean=[0.5] * 3, std=[0.25] * 3).eval()
    images = torch.rand(4, 3, 20, 20)
    assert encoder(images).shape == (4, 128)
    last = images.clone()
    last[-1, 0, 0, 0] = 1.5
    wrong = {"0..255": 255 * images, "normalised": (images - 0.5) / 0.25, "one pixel": last}
    wrong["nan"] = images.where(images > 0.1, torch.nan)
    with pytest.raises(ValueError, match=r"got floats from"):
        encoder(wrong[floats])
