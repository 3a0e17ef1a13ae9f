"""A name of a net may have arguments behind it, which its constructor takes and its files keep."""

import json

import numpy as np
import pytest
import timm
import torch

import nearfar
from nearfar.evaluation import extract
from nearfar.networks import build_backbone
from nearfar.networks.backbone import fitting_size, name_and_arguments, size_step

VIT = "vit_tiny_patch16_224"
SMALL_PATCHES = f"{VIT}(patch_size=4, depth=2, drop_path_rate=0.3)"


def test_a_name_with_arguments_is_taken_apart():
    assert name_and_arguments("resnet18") == ("resnet18", {})
    assert name_and_arguments(SMALL_PATCHES) == (
        VIT,
        {"patch_size": 4, "depth": 2, "drop_path_rate": 0.3},
    )
    assert size_step(VIT) == 16 and size_step(SMALL_PATCHES) == 4
    assert fitting_size(SMALL_PATCHES, 26, 32) in (24, 28)


def test_the_net_is_that_of_timm_with_these_arguments():
    torch.manual_seed(0)
    backbone = build_backbone(SMALL_PATCHES, image_size=32, channels=3)
    torch.manual_seed(0)
    own = timm.create_model(
        VIT, num_classes=0, img_size=32, dynamic_img_size=True, in_chans=3,
        patch_size=4, depth=2, drop_path_rate=0.3,
    )  # fmt: skip
    assert backbone.net.state_dict().keys() == own.state_dict().keys()
    assert backbone.net.patch_embed.num_patches == own.patch_embed.num_patches == 64
    assert backbone.net.blocks[1].drop_path1.drop_prob == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (f"{VIT}(patch_size=4", "is no name with arguments"),
        (f"{VIT}(4)", "arguments are written name=value"),
        (f"{VIT}(patch_size=open('x'))", "is no name with arguments"),
        (f"{VIT}(**x)", "is no name with arguments"),
        (f"{VIT}(patch_size=4)(5)", "arguments are written name=value"),
        (f"{VIT}(in_chans=1)", "in_chans is that of the"),
        (f"{VIT}(checkpoint_path='x')", "argument 'checkpoint_path'"),
        (f"{VIT}(patch_size='four')", "cannot be built"),
        ("resnet1(drop_path_rate=.1)", "no encoder 'resnet1'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(name, says, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16), np.uint8)
    with pytest.raises(ValueError, match=says.replace("(", r"\(")) as error:
        nearfar.pretrain(images, encoder=name, out=str(tmp_path / "run"), epochs=1, batch_size=8)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_keeps_its_arguments(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    options = {"epochs": 1, "batch_size": 8, "workers": 0, "beside": "none", "held_out": 8}
    run = nearfar.pretrain(images, encoder=SMALL_PATCHES, out=str(tmp_path / "run"), **options)
    assert run.settings.encoder == SMALL_PATCHES
    about = json.loads((run.path / "config.json").read_text())
    assert about["architecture"] == VIT and about["model_args"]["patch_size"] == 4
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    features = extract(nearfar.load(run), pixels)
    assert features.shape == (40, 192)
    resumed = nearfar.resume(run, data=images, epochs=2)
    assert not torch.equal(extract(nearfar.load(resumed), pixels), features)
    on = nearfar.pretrain(
        images, encoder=SMALL_PATCHES, init=str(run.path), out=str(tmp_path / "on"), **options
    )
    assert nearfar.load(on).backbone.net.patch_embed.patch_size == (4, 4)
