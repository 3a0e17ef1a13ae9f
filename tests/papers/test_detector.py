"""Detectors are built as the settings say, on the weights and feature maps of the encoder, and
learn.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nearfar.networks import Encoder, build_backbone
from nearfar_papers.annotations import open_annotated
from nearfar_papers.detection import (
    average_precision,
    detector_optimizer,
    find_objects,
    fit_detector,
    rate_factor,
)
from nearfar_papers.detector import DETECTORS, TASKS, FeatureMaps, build_detector, detector_settings

SMALL_IMAGES = dict(sides=(64,), longest=64, batch_size=2, steps=1, workers=0, regions=8)
TINY = dict(**SMALL_IMAGES, proposals=(20, 20), kept=(20, 20), channels=32)


def encoder(name, image_size=64, channels=3):
    torch.manual_seed(0)
    backbone = build_backbone(name, image_size=image_size, channels=channels)
    return Encoder(backbone, image_size, channels, [0.5] * channels, [0.25] * channels)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("small", "keypoints"),
        ("small-c4", "detect"),
        ("lorac", "segment"),
        ("sce", "segment"),
        ("sce", "keypoints"),
    ],
)
def test_every_setting_takes_one_step(coco_folder, name, task):
    train, test = open_annotated(coco_folder)
    net, settings = encoder("small"), replace(DETECTORS[name], **TINY)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    detector = build_detector(net, settings, task, 2, 2 if task == "keypoints" else 0)
    trunk = detector.backbone.maps.backbone.net
    torch.testing.assert_close(trunk.state_dict(), net.backbone.net.state_dict())
    fit_detector(detector, train, settings)
    assert not torch.equal(
        trunk.conv.weight, net.backbone.net.conv.weight
    )  # all stages are trained
    assert all(
        torch.equal(value, before[key]) for key, value in net.state_dict().items()
    )  # in a copy
    objects = find_objects(detector, test)
    assert 0 <= average_precision(test, objects, TASKS[task])["AP"] <= 1


def test_the_papers_detectors_of_a_resnet_50():
    net = encoder("resnet50", 224)
    lorac = build_detector(net, replace(DETECTORS["lorac"], **SMALL_IMAGES), "segment", 2)
    norms = [
        module for module in lorac.backbone.pyramid.modules() if isinstance(module, nn.BatchNorm2d)
    ]
    assert len(norms) == 8  # four maps, two convolutions each
    assert lorac.rpn.anchor_generator.sizes == ((32,), (64,), (128,), (256,), (512,))
    assert lorac.roi_heads.box_roi_pool.scales == [1 / 4, 1 / 8, 1 / 16, 1 / 32]
    sce = build_detector(net, replace(DETECTORS["sce"], **SMALL_IMAGES), "segment", 2)
    assert sce.backbone.out_channels == 1024 and sce.rpn.anchor_generator.sizes == (
        (32, 64, 128, 256, 512),
    )
    assert (
        sce.roi_heads.box_head.stage
        is sce.roi_heads.mask_head.stage
        is sce.backbone.maps.backbone.net.layer4
    )
    with torch.no_grad():
        assert sce.roi_heads.mask_predictor(
            sce.roi_heads.mask_head(torch.zeros(2, 1024, 14, 14))
        ).shape[2:] == (14, 14)


def test_anchors_stand_where_the_maps_are():
    """The small net's stride need not be a power of two: 14 px for images of 224 px."""
    detector = build_detector(encoder("small", 224), DETECTORS["small"], "detect", 1)
    images, _ = detector.transform([torch.zeros(3, 480, 640)])
    maps = list(detector.backbone(images.tensors).values())
    anchors = detector.rpn.anchor_generator(images, maps)[0]
    first = anchors[: maps[0].shape[2] * maps[0].shape[3] * 6].view(
        maps[0].shape[2], maps[0].shape[3], 6, 4
    )
    centres = (first[..., :2] + first[..., 2:]) / 2
    assert (
        centres[1, 2, 0].tolist() == [28, 14]
        and detector.roi_heads.box_roi_pool.scales[0] == 1 / 14
    )


def test_one_line_for_a_transformer_and_for_an_unknown_setting():
    with pytest.raises(ValueError, match=r"'vit_tiny_patch16_224' .*ResNets"):
        build_detector(encoder("vit_tiny_patch16_224", 32), DETECTORS["small"], "detect", 1)
    with pytest.raises(ValueError, match="small or a ResNet"):
        build_detector(encoder("mobilenetv3_small_050"), DETECTORS["sce"], "detect", 1)
    with pytest.raises(ValueError, match="not 4 channels"):
        build_detector(encoder("small", channels=4), DETECTORS["small"], "detect", 1)
    with pytest.raises(ValueError, match="did you mean 'lorac'"):
        detector_settings("loracs")


def test_a_detector_learns_the_images_that_it_was_trained_on(coco_folder):
    train, _ = open_annotated(coco_folder)
    settings = replace(
        DETECTORS["small"],
        **{**TINY, "steps": 40, "regions": 32, "proposals": (100, 50), "kept": (100, 50)},
    )
    detector = build_detector(encoder("small"), settings, "detect", 2)
    fit_detector(detector, train, settings)
    assert average_precision(train, find_objects(detector, train))["AP50"] > 0.6


def test_norms_have_their_own_weight_decay():
    detector = build_detector(encoder("small"), DETECTORS["lorac"], "detect", 2)
    rest, norms = detector_optimizer(detector, DETECTORS["lorac"]).param_groups
    assert (rest["weight_decay"], norms["weight_decay"]) == (1e-4, 0)
    assert sum(parameter.numel() for parameter in norms["params"]) == 2 * (
        64 * 3 + 256 * 3 + 6 * 256
    )  # trunk; six in the pyramid


def test_the_learning_rate_rises_and_falls_twice():
    settings = replace(DETECTORS["lorac"], warmup=10)
    rates = [rate_factor(step, 90, settings) for step in range(90)]
    assert rates[0] == 1e-3 and rates[10] == rates[59] == 1
    assert rates[60] == rates[79] == pytest.approx(0.1) and rates[80] == rates[89] == pytest.approx(
        0.01
    )


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
        assert [level.shape[1:] for level in maps(torch.zeros(1, 1, side, side))] == [
            (dim, side // stride, side // stride)
            for dim, stride in zip(channels, strides, strict=True)
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
