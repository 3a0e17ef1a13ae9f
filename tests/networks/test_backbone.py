"""Backbones by name and from modules: stem, channels, size, errors."""

import logging
import threading

import pytest
import torch
from torch import nn

from nearfar.networks import Architecture, build_backbone


@pytest.mark.parametrize(
    ("name", "image_size", "channels", "features"),
    [
        ("small", 8, 1, 256),
        ("small", 28, 1, 256),
        ("small", 32, 3, 256),
        ("small", 96, 4, 256),
        ("resnet18", 32, 2, 512),
        ("resnet18d", 32, 3, 512),
        ("resnetv2_50", 32, 3, 2048),
        ("vit_tiny_patch16_224", 32, 1, 192),
        ("mobilenetv3_small_050", 32, 3, 1024),  # timm's own num_features says 288, its output has 1024
        ("convnext_atto", 64, 5, 320),
    ],
)
def test_features_of_each_kind_of_net(name: str, image_size: int, channels: int, features: int) -> None:
    backbone = build_backbone(name, image_size=image_size, channels=channels)
    out = backbone(torch.rand(2, channels, image_size, image_size))
    assert out.shape == (2, features)
    assert backbone.num_features == features
    assert backbone.training


def test_resnet_stem_follows_the_image_size(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nearfar")
    small, large = (build_backbone("resnet18", image_size=size, channels=3) for size in (63, 64))
    assert small.net.conv1.weight.shape == (64, 3, 3, 3) and small.net.conv1.stride == (1, 1)
    assert isinstance(small.net.maxpool, nn.Identity)
    assert large.net.conv1.weight.shape == (64, 3, 7, 7) and isinstance(large.net.maxpool, nn.MaxPool2d)
    assert "3x3 stem with stride 1 and no max-pool" in caplog.messages[0] and "63 px" in caplog.messages[0]
    assert "its own stem" in caplog.messages[1]
    feature_maps = small.net.forward_features(torch.rand(1, 3, 32, 32))
    assert feature_maps.shape == (1, 512, 4, 4)  # 32 px halved three times, not five


def test_vision_transformer_is_built_for_the_size_and_takes_smaller_crops() -> None:
    backbone = build_backbone("vit_tiny_patch16_224", image_size=64, channels=3).eval()
    assert backbone.net.pos_embed.shape == (1, 1 + 16, 192)
    assert backbone(torch.rand(2, 3, 32, 32)).shape == (2, 192)


def test_feature_maps_are_kept_in_channels_last_order() -> None:
    backbone = build_backbone("resnet18", image_size=32, channels=3)
    feature_maps = backbone.net.forward_features(torch.rand(2, 3, 32, 32))
    assert feature_maps.is_contiguous(memory_format=torch.channels_last)


def test_an_architecture_builds_the_same_net_again() -> None:
    backbone = build_backbone("resnet18", image_size=32, channels=1)
    again = Architecture("resnet18", {"in_chans": 1}, small_stem=True).build(32)
    assert backbone.architecture == again.architecture
    assert {k: v.shape for k, v in backbone.state_dict().items()} == {k: v.shape for k, v in again.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "image_size", "channels", "message"),
    [
        ("resnet81", 32, 3, "did you mean 'resnet18"),
        ("smal", 32, 3, "did you mean 'small'"),
        ("hf_hub:timm/resnet18.a1_in1k", 32, 3, "unknown encoder"),  # would reach for the network
        ("vit_tiny_patch16_224", 8, 3, "8 px"),
        ("small", 2, 3, "4 px"),
        ("small", 0, 3, "1 or more"),
        ("resnet18", 32, 0, "1 or more"),
    ],
)
def test_bad_names_and_sizes_are_refused(name: str, image_size: int, channels: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_backbone(name, image_size=image_size, channels=channels)
    assert "\n" not in str(caught.value)


class Own(nn.Module):
    """A user's net, with batch normalisation and weights of its own."""

    def __init__(self, channels: int = 3, out: int = 7) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(channels, 5, 3), nn.BatchNorm2d(5), nn.Linear(5, out)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.conv(images)).relu().mean((2, 3)))


class Lambda(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.function(images)


def test_a_module_becomes_a_backbone_with_its_weights_and_stays_as_it_was() -> None:
    own = Own().eval()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    backbone = build_backbone(own, image_size=16, channels=3)
    assert (backbone.num_features, backbone.architecture, backbone.training) == (7, None, True)
    assert backbone.name.endswith(".Own") and backbone.name == f"{Own.__module__}.Own"
    images = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(backbone.eval()(images), own(images))
    backbone.train()(images).sum().backward()
    with torch.no_grad():
        backbone.net.conv.weight.add_(1)
    assert not own.training and own.conv.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())


def test_a_lazy_module_and_starting_weights(tmp_path) -> None:
    lazy = build_backbone(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), image_size=6, channels=2)
    assert lazy(torch.rand(3, 2, 6, 6)).shape == (3, 4)
    weights = Own().state_dict()
    torch.save(weights, tmp_path / "own.pth")
    backbone = build_backbone(Own(), image_size=16, channels=3, init=tmp_path / "own.pth")
    assert all(torch.equal(value, weights[name]) for name, value in backbone.net.state_dict().items())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Own(channels=1), "'.*Own' cannot take images of 16 px and 3 channels: "),
        (nn.Conv2d(3, 4, 3), r"Conv2d' must return features \[batch, dim\] as floats; .* \[2, 4, 14, 14\]"),
        (Lambda(lambda x: (x.flatten(1),)), "it gives a tuple"),
        (Lambda(lambda x: x.mean((0, 2, 3))[None]), r"\[1, 3\]"),
        (Lambda(lambda x: x.flatten(1).argmax(1, keepdim=True)), r"torch.int64 \[2, 1\]"),
        (Lambda(threading.Lock()), "cannot be copied: "),
    ],
)
def test_modules_that_are_no_backbone_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_backbone(module, image_size=16, channels=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("size", "asked", "stride"), [(96, None, 2), (96, True, 1), (32, None, 1), (32, False, 2)])
def test_a_small_stem_can_be_asked_for_at_any_size(size, asked, stride):
    """SCE takes the 3x3 stem for STL-10's 96 px too."""
    backbone = build_backbone("resnet18", image_size=size, channels=3, small_stem=asked)
    assert backbone.net.conv1.stride == (stride, stride)
    assert backbone.architecture.small_stem == (stride == 1)
