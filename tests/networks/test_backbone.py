"""Backbones by name and from modules: stem, channels, size, errors; their layers by depth."""

import logging
import threading

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn

import nearfar
from nearfar.networks import build_backbone, layer_scales

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.mark.parametrize(
    ("name", "image_size", "channels", "features"),
    [
        ("small", 96, 4, 256),
        ("resnet18", 32, 2, 512),
        ("resnetv2_50", 32, 3, 2048),
        (
            "mobilenetv3_small_050",
            32,
            3,
            1024,
        ),  # timm's own num_features says 288, its output has 1024
        ("convnext_atto", 64, 5, 320),
    ],
)
def test_features_of_each_kind_of_net(
    name: str, image_size: int, channels: int, features: int
) -> None:
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
    assert large.net.conv1.weight.shape == (64, 3, 7, 7) and isinstance(
        large.net.maxpool, nn.MaxPool2d
    )
    assert "3x3 stem with stride 1" in caplog.messages[0] and "63 px" in caplog.messages[0]
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


@pytest.mark.parametrize(
    ("name", "image_size", "channels", "message"),
    [
        ("resnet81", 32, 3, "did you mean 'resnet18"),
        ("smal", 32, 3, "did you mean 'small'"),
        ("hf_hub:timm/resnet18.a1_in1k", 32, 3, "no encoder"),  # would reach for the network
        ("vit_tiny_patch16_224", 8, 3, "8 px"),
        ("small", 2, 3, "4 px"),
        ("nearfar_small", 32, 3, r"^nearfar_small .*use small$"),
        ("nearfar_small_stem", 32, 3, "use resnet18-small-stem$"),
        ("resnet18", 32, 0, "1 or more"),
    ],
)
def test_bad_names_and_sizes_are_refused(
    name: str, image_size: int, channels: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_backbone(name, image_size=image_size, channels=channels)
    assert "\n" not in str(caught.value)


class Own(nn.Module):
    """A user's net, with batch normalisation and weights of its own."""

    def __init__(self, channels: int = 3, out: int = 7) -> None:
        super().__init__()
        self.conv, self.norm, self.out = (
            nn.Conv2d(channels, 5, 3),
            nn.BatchNorm2d(5),
            nn.Linear(5, out),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.conv(images)).relu().mean((2, 3)))


class Lambda(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.function(images)


def test_a_module_becomes_a_backbone_with_its_weights_and_stays_as_it_was(tmp_path) -> None:
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
    torch.save(before, tmp_path / "own.pth")
    started = build_backbone(Own(), image_size=16, channels=3, init=tmp_path / "own.pth")
    assert all(torch.equal(value, before[name]) for name, value in started.net.state_dict().items())
    lazy = build_backbone(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), image_size=6, channels=2)
    assert lazy(torch.rand(3, 2, 6, 6)).shape == (3, 4)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Own(channels=1), r"'.*Own' .* 16 px and 3 channels: "),
        (
            nn.Conv2d(3, 4, 3),
            r"Conv2d' .*\[2, 4, 14, 14\]",
        ),
        (Lambda(lambda x: (x.flatten(1),)), "it gives a tuple"),
        (Lambda(lambda x: x.flatten(1).argmax(1, keepdim=True)), r"torch.int64 \[2, 1\]"),
        (Lambda(threading.Lock()), "cannot be copied: "),
    ],
)
def test_modules_that_are_no_backbone_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_backbone(module, image_size=16, channels=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("size", "name", "stride"), [(96, "", 2), (96, "-small-stem", 1), (32, "", 1)]
)
def test_a_small_stem_can_be_asked_for_at_any_size(size, name, stride):
    """SCE takes the 3x3 stem for STL-10's 96 px too."""
    backbone = build_backbone(f"resnet18{name}", image_size=size, channels=3)
    assert backbone.net.conv1.stride == (stride, stride)
    assert backbone.architecture.small_stem == (stride == 1)


@pytest.mark.parametrize(
    ("name", "size", "depths"),
    [  # counted by hand, from the projector down
        (
            "small",
            96,
            {
                "blocks.1.conv1.weight": 1,
                "blocks.0.norm2.bias": 2,
                "conv.weight": 3,
                "norm.weight": 3,
            },
        ),
        (
            "resnet18",
            64,
            {
                "layer4.1.conv2.weight": 1,
                "layer4.0.bn1.bias": 2,
                "layer1.0.bn2.bias": 8,
                "conv1.weight": 9,
            },
        ),
        (
            "convnext_atto",
            64,
            {"head.norm.weight": 1, "stages.3.blocks.1.norm.weight": 2, "stem.0.weight": 14},
        ),
        (
            "vit_tiny_patch16_224",
            64,
            {
                "norm.weight": 1,
                "blocks.11.norm1.bias": 1,
                "blocks.0.norm1.bias": 12,
                "pos_embed": 13,
            },
        ),
    ],
)
def test_the_rate_falls_by_the_decay_with_each_layer(
    name: str, size: int, depths: dict[str, int]
) -> None:
    net = build_backbone(name, image_size=size, channels=3).net
    by_id = layer_scales(net, 0.5)
    scales = {key: by_id[id(weights)] for key, weights in net.named_parameters()}
    assert {key: scales[key] for key in depths} == {
        key: 0.5**depth for key, depth in depths.items()
    }
    assert layer_scales(net, 1.0) == {}


@pytest.mark.parametrize(
    ("name", "size", "frozen", "free"),
    [
        ("resnet18", 64, ["conv1", "bn1", "layer1"], ["layer2", "layer3", "layer4"]),
        ("convnext_atto", 64, ["stem", "stages.0"], ["stages.1", "stages.2", "stages.3", "head"]),
        (
            "vit_tiny_patch16_224",
            64,
            ["cls_token", "pos_embed", "patch_embed", "blocks.0."],
            ["blocks.11.", "norm"],
        ),
        ("small", 96, ["conv", "norm", "blocks.0"], ["blocks.1"]),
    ],
)
def test_the_first_two_stages_stay_and_the_rest_trains(
    name: str, size: int, frozen: list, free: list
) -> None:
    backbone = build_backbone(name, image_size=size, channels=3)
    backbone.freeze(2)
    still = {key for key, weights in backbone.net.named_parameters() if not weights.requires_grad}
    every = {key for key, _ in backbone.net.named_parameters()}
    assert still == {key for key in every if key.startswith(tuple(frozen))}
    assert all(any(key.startswith(part) for key in every - still) for part in free)
    before = {key: value.clone() for key, value in backbone.net.state_dict().items()}
    backbone.train()
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1)
    backbone(torch.randn(4, 3, size, size)).square().sum().backward()
    optimizer.step()
    after = backbone.net.state_dict()
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert moved and not {
        key for key in moved if key.startswith(tuple(frozen))
    }  # statistics of the norms included


def test_too_many_stages_or_none_known_give_one_line() -> None:
    with pytest.raises(ValueError, match=r"`frozen=5` .*'resnet18' .*5 stages"):
        build_backbone("resnet18", image_size=64, channels=3).freeze(5)
    with pytest.raises(ValueError, match=r"Own' has no stages.*`frozen=0`"):
        build_backbone(Own(), image_size=16, channels=3).freeze(1)


class Auxiliary(nn.Module):
    """Returns a second output in training mode, as Inception does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(192, 5)

    def forward(self, images):
        out = self.linear(images.flatten(1))
        return (out, out) if self.training else out


def small_vgg():
    return torchvision.models.vgg11(num_classes=3)


NOT_ENCODERS = {
    "a class": (lambda: Auxiliary, r"not the class Auxiliary: give the module that Auxiliary\(\)"),
    "a function": (lambda: torchvision.models.resnet18, r"not the function resnet18: give"),
    "a number": (lambda: 18, "must be a name or a torch module, not 18"),
    "a classifier of torchvision": (torchvision.models.resnet18, r"classifier: set net.fc = torch"),
    "another": (torchvision.models.mobilenet_v3_small, r"classifier: set net.classifier ="),
    "one of timm": (lambda: timm.create_model("resnet10t"), "classifier of 1000 classes"),
    "two outputs": (Auxiliary, "training mode too; there it gives a tuple"),
}


@pytest.mark.parametrize("name", NOT_ENCODERS)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_encoder_is_refused_in_one_line(name, tmp_path):
    made, message = NOT_ENCODERS[name]
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    for build in (
        lambda: build_backbone(made(), image_size=8, channels=3),
        lambda: nearfar.pretrain(images, encoder=made(), out=tmp_path / "run", epochs=1),
    ):
        with pytest.raises(ValueError, match=message) as error:
            build()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_torchvision_without_its_classifier_is_an_encoder():
    net = torchvision.models.resnet18()
    net.fc = nn.Identity()
    assert build_backbone(net, image_size=32, channels=3).num_features == 512
