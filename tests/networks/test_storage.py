"""Encoders on disk: a timm model, read without running code."""

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest
import timm
import torch
from timm.data import create_transform, resolve_model_data_config
from torch import nn
from torchvision.transforms.functional import to_pil_image

import nearfar
from nearfar.networks import Encoder, build_backbone, load_encoder, save_encoder


def saved(
    folder: Path,
    name: str | nn.Module = "small",
    size: int = 8,
    channels: int = 3,
    value_range=None,
) -> Encoder:
    """An encoder with moved statistics, in eval mode, written into a folder."""
    torch.manual_seed(0)
    moments = (0.4, 0.5, 0.6, 0.3, 0.2)[:channels], (0.2, 0.25, 0.3, 0.2, 0.1)[:channels]
    backbone = build_backbone(name, image_size=size, channels=channels)
    encoder = Encoder(backbone, size, channels, *moments, value_range)
    with torch.no_grad():
        encoder(torch.rand(8, channels, size, size))
    save_encoder(folder, encoder.eval())
    return encoder


def described(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("name", "size", "channels"),
    [
        ("small", 96, 3),
        ("medium", 48, 1),
        ("resnet18", 32, 5),
        ("resnet18.a1_in1k", 64, 1),
        ("resnetv2_18", 32, 3),
        ("test_convnext", 64, 3),
        ("vit_tiny_patch16_224", 32, 3),
    ],
)
def test_nearfar_and_timm_build_the_same_net_again(
    tmp_path: Path, name: str, size: int, channels: int
) -> None:
    encoder = saved(tmp_path, name, size, channels)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "encoder.safetensors"]
    again = load_encoder(tmp_path)
    images = torch.randint(0, 256, (4, channels, size + 5, size + 5), dtype=torch.uint8)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(again(images), encoder(images)) and not again.training
        images = torch.rand(2, channels, size, size)
        torch.testing.assert_close(net(images), encoder.backbone(images))
        net.reset_classifier(7)
        assert net(images).shape == (2, 7)
    assert (again.name, again.num_features) == (name.partition(".")[0], encoder.num_features)
    assert again.backbone.architecture.small_stem == encoder.backbone.architecture.small_stem
    config = resolve_model_data_config(net)
    assert config["input_size"] == (channels, size, size)
    assert (config["mean"], config["std"]) == (
        encoder.mean.flatten().tolist(),
        encoder.std.flatten().tolist(),
    )


@pytest.mark.parametrize(("name", "size"), [("small", 96), ("resnet18", 32), ("resnetv2_18", 32)])
def test_maps_have_the_strides_that_timm_is_told(tmp_path: Path, name: str, size: int) -> None:
    saved(tmp_path, name, size)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, features_only=True).eval()
    with torch.no_grad():
        maps = net(torch.rand(1, 3, size, size))
    assert [stage.shape[1] for stage in maps] == net.feature_info.channels()
    assert [size // stage.shape[-1] for stage in maps] == net.feature_info.reduction()


def test_timms_transform_makes_the_images_that_the_encoder_sees(tmp_path: Path) -> None:
    encoder = saved(tmp_path, "small", 32)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    rough = torch.rand(3, 12, 8)
    photo = (
        torch.nn.functional.interpolate(rough[None], scale_factor=8, mode="bicubic").clamp(0, 1)
        * 255
    ).byte()
    image = create_transform(**resolve_model_data_config(net))(to_pil_image(photo[0]))
    assert (image - encoder.preprocess(photo)[0]).abs().mean() < 0.01


def test_the_description_says_what_timm_needs_and_nothing_of_others_weights(tmp_path: Path) -> None:
    saved(tmp_path, "resnet18.a1_in1k", 64, 1, value_range=(0, 4095))
    about = described(tmp_path)
    assert (about["architecture"], about["num_features"], about["value_range"]) == (
        "resnet18",
        512,
        [0, 4095],
    )
    assert about["nearfar"] == nearfar.__version__
    assert not about["pretrained_cfg"].keys() & {
        "license",
        "tag",
        "paper_ids",
        "hf_hub_id",
        "url",
        "origin_url",
    }
    assert load_encoder(tmp_path).value_range == [0, 4095]


def test_a_source_tree_that_is_not_installed_saves_its_encoders(
    tmp_path: Path, monkeypatch
) -> None:
    def only_others(name, known=importlib.metadata.Distribution.from_name):
        if name == "nearfar":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", only_others)
    saved(tmp_path, "tiny", 16)
    assert described(tmp_path)["nearfar"] == nearfar.__version__


def test_a_file_cannot_make_timm_fetch_another_net(tmp_path: Path) -> None:
    saved(tmp_path, "resnet18", 32)
    about = described(tmp_path)
    about["model_args"]["base"] = "hf-hub:someone/net"
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="not on 'hf-hub:someone/net'"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    with pytest.raises(ValueError, match="no encoder 'hf-hub:someone/net'"):
        load_encoder(tmp_path)
    with pytest.raises(ValueError, match="not of 'resnet18'"):
        build_backbone("resnet18", image_size=32, channels=3, init=tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        load_encoder(tmp_path)
    saved(tmp_path)
    (tmp_path / "encoder.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"encoder\.safetensors is missing"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("content", [b"\x80\x04c", None, "another net"])
def test_damaged_weights_give_one_clear_line(tmp_path: Path, content: bytes | str | None) -> None:
    saved(tmp_path)
    file = tmp_path / "encoder.safetensors"
    if content == "another net":
        saved(tmp_path / "other", "tiny")
        content = (tmp_path / "other" / file.name).read_bytes()
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    with pytest.raises(ValueError, match=r"encoder\.safetensors is damaged") as caught:
        load_encoder(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "no_such_net"},
        {"model_args": {"in_chans": 3, "checkpoint_path": "net.pth"}},
        {"model_args": None},
        {"pretrained_cfg": {"input_size": [3, True, 8], "mean": [0.5] * 3, "std": [0.5] * 3}},
        {"pretrained_cfg": {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.5]}},
        None,
    ],
)
def test_a_wrong_description_gives_one_clear_line(tmp_path: Path, change: dict | None) -> None:
    saved(tmp_path)
    text = '{"architecture": "sm' if change is None else json.dumps(described(tmp_path) | change)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json does not describe") as caught:
        load_encoder(tmp_path)
    assert "\n" not in str(caught.value)


class Net(nn.Module):
    """A user's own net."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images)).mean((2, 3))


def test_an_encoder_of_ones_own_is_loaded_into_a_copy_of_what_is_given(tmp_path: Path) -> None:
    encoder, given = saved(tmp_path, Net()), Net()
    about = described(tmp_path)
    assert (
        about["object"] == f"{Net.__module__}.Net"
        and "architecture" not in about
        and about["num_features"] == 6
    )
    untouched = given.conv.weight.clone()
    again = load_encoder(tmp_path, given)
    images = torch.randint(0, 256, (4, 3, 11, 9), dtype=torch.uint8)
    assert torch.equal(again(images), encoder(images)) and not again.training
    assert torch.equal(given.conv.weight, untouched)
    assert again.name == f"{Net.__module__}.Net"


def test_an_encoder_of_ones_own_is_asked_for_and_must_fit(tmp_path: Path) -> None:
    saved(tmp_path / "own", Net())
    saved(tmp_path / "named")
    says = rf"\({Net.__module__}\.Net\): .*nearfar\.load\(run, encoder=Net\(\)\)$"
    with pytest.raises(ValueError, match=says):
        load_encoder(tmp_path / "own")
    for other, words in (
        (Net(width=5), r"damaged .*Net: conv\.bias"),
        (nn.Linear(2, 2), "fails"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            load_encoder(tmp_path / "own", other)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="encoder is 'nearfar_small'"):
        load_encoder(tmp_path / "named", Net())


def test_nothing_is_imported_for_the_name_in_a_file(tmp_path: Path) -> None:
    saved(tmp_path, Net())
    (tmp_path / "config.json").write_text(
        json.dumps(described(tmp_path) | {"object": "antigravity.Net"})
    )
    with pytest.raises(ValueError, match=r"encoder=Net\(\)"):
        load_encoder(tmp_path)
    load_encoder(tmp_path, Net())
    assert "antigravity" not in sys.modules
