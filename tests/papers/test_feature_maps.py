"""Feature maps are those that the net itself goes through, at the strides that are said."""

import pytest
import torch
from torch import nn

from nearfar.networks import build_backbone
from nearfar.papers.detector import FeatureMaps


@pytest.mark.parametrize(
    ("name", "image_size", "strides", "channels"),
    [
        ("small", 64, [4, 8, 16], [64, 64, 256]),
        ("small", 32, [2, 4, 8], [64, 64, 256]),
        ("small", 224, [14, 28, 56], [64, 64, 256]),
        ("resnet18", 224, [4, 8, 16, 32], [64, 128, 256, 512]),
        ("resnet18", 32, [1, 2, 4, 8], [64, 128, 256, 512]),  # 3x3 stem with stride 1, no max-pool
        ("convnext_atto", 64, [4, 8, 16, 32], [40, 80, 160, 320]),
    ],
)
def test_strides_and_channels(name, image_size, strides, channels):
    backbone = build_backbone(name, image_size=image_size, channels=1)
    maps = FeatureMaps(backbone, 1)
    assert (maps.strides, maps.channels) == (strides, channels)
    side = 2 * strides[-1]
    with torch.no_grad():
        assert [one.shape[1:] for one in maps(torch.zeros(1, 1, side, side))] == [
            (dim, side // stride, side // stride) for dim, stride in zip(channels, strides, strict=True)
        ]


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_the_mean_of_the_last_map_is_the_feature(name):
    backbone = build_backbone(name, image_size=64, channels=3).eval()
    maps, images = FeatureMaps(backbone, 3), torch.randn(2, 3, 96, 64)
    assert not backbone.training  # the mode stays as it was
    with torch.no_grad():
        last = maps(images)[-1]
        torch.testing.assert_close(last.mean((2, 3)), backbone(images))
        stage, outputs = maps.split_last()  # what C4 does in two parts
        torch.testing.assert_close(stage(maps(images)[-1]), last)
    assert outputs == last.shape[1]


class Flat(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))


def test_one_line_for_what_has_no_maps():
    for encoder, said in (("vit_tiny_patch16_224", "of one size only"), (Flat(), "Flat' gives no feature maps: ")):
        with pytest.raises(ValueError, match=said):
            FeatureMaps(build_backbone(encoder, image_size=32, channels=3), 3)
