"""The encoder sees full-size images as the cache and arrays give them for training."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nearfar.data import open_images
from nearfar.networks import Architecture, Backbone, Encoder


def encoder(size, channels):
    """An encoder that neither normalises nor computes: its preprocessing gives values in 0..1."""
    backbone = Backbone(nn.Flatten(), Architecture("flatten"), channels * size * size)
    return Encoder(backbone, size, channels, [0.0] * channels, [1.0] * channels)


@pytest.mark.parametrize(
    ("width", "height", "size", "channels"),
    [(110, 90, 32, 3), (90, 111, 32, 3), (91, 120, 32, 1), (20, 25, 32, 3), (48, 33, 33, 3)],
)
def test_folder_array_and_encoder_give_the_same_pixels(tmp_path, width, height, size, channels):
    """Noise has the sharpest edges there are, so another filter or another crop is off by tens of
    255.
    """
    raw = np.random.default_rng(0).integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    for number, image in enumerate(raw):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    cached = open_images(tmp_path, image_size=size, channels=channels).pixels
    assert cached.shape == (3, channels, size, size)
    images = torch.from_numpy(raw).permute(0, 3, 1, 2)
    for seen in (
        open_images(raw, image_size=size, channels=channels).pixels,
        255 * encoder(size, channels).preprocess(images),
    ):
        assert (seen.float() - cached.float()).abs().max() <= 1
    smooth = 255 * encoder(size, channels).preprocess(
        images / 255
    )  # floats are not rounded on the way
    assert (smooth - cached.float()).abs().mean() < 1
