"""The layers of a backbone by depth: learning rates, and stages that stay."""

import pytest
import torch
from torch import nn

from nearfar.networks import build_backbone, layer_scales
from nearfar.networks.layers import first_stages


def by_name(net: nn.Module, decay: float) -> dict[str, float]:
    scales = layer_scales(net, decay)
    return {name: scales[id(weights)] for name, weights in net.named_parameters() if id(weights) in scales}


@pytest.mark.parametrize(
    ("name", "size", "depths"),
    [  # counted by hand, from the projector down
        ("small", 96, {"blocks.1.conv1.weight": 1, "blocks.0.norm2.bias": 2, "conv.weight": 3, "norm.weight": 3}),
        (
            "resnet18",
            64,
            {"layer4.1.conv2.weight": 1, "layer4.0.bn1.bias": 2, "layer1.0.bn2.bias": 8, "conv1.weight": 9},
        ),
        ("convnext_atto", 64, {"head.norm.weight": 1, "stages.3.blocks.1.norm.weight": 2, "stem.0.weight": 14}),
        (
            "vit_tiny_patch16_224",
            64,
            {"norm.weight": 1, "blocks.11.norm1.bias": 1, "blocks.0.norm1.bias": 12, "pos_embed": 13},
        ),
    ],
)
def test_the_rate_falls_by_the_decay_with_each_layer(name: str, size: int, depths: dict[str, int]) -> None:
    net = build_backbone(name, image_size=size, channels=3).net
    scales = by_name(net, 0.5)
    assert len(scales) == len(list(net.parameters()))
    assert {key: scales[key] for key in depths} == {key: 0.5**depth for key, depth in depths.items()}


def test_without_decay_all_rates_are_the_same() -> None:
    assert layer_scales(build_backbone("small", image_size=8, channels=1).net, 1.0) == {}


@pytest.mark.parametrize(
    ("name", "size", "frozen", "free"),
    [
        ("resnet18", 64, ["conv1", "bn1", "layer1"], ["layer2", "layer3", "layer4"]),
        ("convnext_atto", 64, ["stem", "stages.0"], ["stages.1", "stages.2", "stages.3", "head"]),
        ("vit_tiny_patch16_224", 64, ["cls_token", "pos_embed", "patch_embed", "blocks.0."], ["blocks.11.", "norm"]),
        ("small", 96, ["conv", "norm", "blocks.0"], ["blocks.1"]),
    ],
)
def test_the_first_two_stages_stay_and_the_rest_trains(name: str, size: int, frozen: list, free: list) -> None:
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
    assert moved and not {key for key in moved if key.startswith(tuple(frozen))}  # statistics of the norms included


def test_too_many_stages_or_none_known_give_one_line() -> None:
    net = build_backbone("resnet18", image_size=64, channels=3).net
    with pytest.raises(ValueError, match="--frozen 5 leaves nothing of 'resnet18' to train: it has 5 stages"):
        first_stages(net, 5, "resnet18")
    with pytest.raises(ValueError, match="'mine' has no stages that timm knows: use --frozen 0"):
        first_stages(nn.Linear(2, 2), 1, "mine")
