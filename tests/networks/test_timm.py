"""A saved encoder is a timm model: `timm.create_model("local-dir:FOLDER")` gives the same net."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from timm.data import create_transform, resolve_model_data_config
from torchvision.transforms.functional import to_pil_image

from nearfar.networks import Encoder, build_backbone, find_weights, load_encoder, save_encoder

SAVED = [
    ("small", 8, 1),
    ("small", 96, 3),
    ("tiny", 32, 3),
    ("medium", 48, 3),
    ("resnet10t", 64, 1),
    ("resnet18", 32, 3),
    ("resnetv2_18", 32, 3),
    ("convnext_atto", 64, 3),
    ("vit_tiny_patch16_224", 32, 3),
]


def saved(folder: Path, name: str, size: int, channels: int = 3) -> Encoder:
    """An encoder with moved statistics, written into a folder."""
    torch.manual_seed(0)
    moments = (0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.3)[:channels]
    encoder = Encoder(build_backbone(name, image_size=size, channels=channels), size, channels, *moments)
    with torch.no_grad():
        encoder(torch.rand(8, channels, size, size))
    save_encoder(folder, encoder.eval())
    return encoder


@pytest.mark.parametrize(("name", "size", "channels"), SAVED)
def test_timm_builds_the_same_net(tmp_path: Path, name: str, size: int, channels: int) -> None:
    encoder = saved(tmp_path, name, size, channels)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.rand(2, channels, size, size)
    with torch.no_grad():
        torch.testing.assert_close(net(images), encoder.backbone(images))
        assert timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=7)(images).shape == (2, 7)
    config = resolve_model_data_config(net)
    assert config["input_size"] == (channels, size, size)
    assert (config["mean"], config["std"]) == (encoder.mean.flatten().tolist(), encoder.std.flatten().tolist())


@pytest.mark.parametrize(("name", "size"), [("small", 96), ("medium", 48), ("resnet18", 32), ("resnetv2_18", 32)])
def test_maps_have_the_strides_that_timm_is_told(tmp_path: Path, name: str, size: int) -> None:
    saved(tmp_path, name, size)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, features_only=True).eval()
    with torch.no_grad():
        maps = net(torch.rand(1, 3, size, size))
    assert [one.shape[1] for one in maps] == net.feature_info.channels()
    assert [size // one.shape[-1] for one in maps] == net.feature_info.reduction()


def test_timms_transform_makes_the_images_that_the_encoder_sees(tmp_path: Path) -> None:
    encoder = saved(tmp_path, "small", 32)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    rough = torch.rand(3, 12, 8)
    photo = (torch.nn.functional.interpolate(rough[None], scale_factor=8, mode="bicubic").clamp(0, 1) * 255).byte()
    image = create_transform(**resolve_model_data_config(net))(to_pil_image(photo[0]))
    assert (image - encoder.preprocess(photo)[0]).abs().mean() < 0.01


def test_nothing_is_said_of_weights_that_are_not_these(tmp_path: Path) -> None:
    saved(tmp_path, "resnet18.a1_in1k", 64)
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["architecture"] == "resnet18"
    assert not about["pretrained_cfg"].keys() & {"license", "tag", "paper_ids", "hf_hub_id", "url", "origin_url"}


@pytest.mark.parametrize(("name", "size"), [("small", 8), ("medium", 48), ("resnet18", 32), ("resnet18", 64)])
def test_a_new_run_starts_from_such_a_folder(tmp_path: Path, name: str, size: int) -> None:
    """Also from one in timm's form alone, as it comes from the Hub, and at another size."""
    encoder = saved(tmp_path / "run", name, size)
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "config.json").write_bytes((tmp_path / "run" / "config.json").read_bytes())
    (hub / "model.safetensors").write_bytes((tmp_path / "run" / "encoder.safetensors").read_bytes())
    images = torch.rand(2, 3, size, size)
    for folder in (tmp_path / "run", hub):
        assert find_weights(str(folder)).encoder == name
        for other in (size, 2 * size):
            backbone = build_backbone(name, image_size=other, channels=3, init=folder).eval()
            with torch.no_grad():
                torch.testing.assert_close(backbone(images), encoder.backbone(images))
            assert load_encoder(tmp_path / "run").backbone.architecture.small_stem == backbone.architecture.small_stem


def test_our_names_are_not_those_of_timm() -> None:
    for name, other in (("nearfar_small", "small"), ("nearfar_small_stem", "a ResNet with --small-stem")):
        with pytest.raises(ValueError, match=rf"^{name} is what timm calls it: use {other}$"):
            build_backbone(name, image_size=32, channels=3)


def test_a_file_cannot_make_timm_fetch_another_net(tmp_path: Path) -> None:
    saved(tmp_path, "resnet18", 32)
    (tmp_path / "encoder.json").unlink()
    about = json.loads((tmp_path / "config.json").read_text())
    about["model_args"]["base"] = "hf-hub:someone/net"
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="not on 'hf-hub:someone/net'"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    with pytest.raises(ValueError, match="not of 'resnet18'"):
        build_backbone("resnet18", image_size=32, channels=3, init=tmp_path)


def test_importing_a_module_is_enough(tmp_path: Path) -> None:
    saved(tmp_path / "small", "small", 8)
    saved(tmp_path / "stem", "resnet18", 32)
    script = (
        "import nearfar.timm, timm, sys; [timm.create_model(f'local-dir:{f}', pretrained=True) for f in sys.argv[1:]]"
    )
    run = [sys.executable, "-c", script, str(tmp_path / "small"), str(tmp_path / "stem")]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
