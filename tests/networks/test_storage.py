"""Encoders on disk."""

import json
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import nn

from nearfar.networks import Encoder, build_backbone, load_encoder, save_encoder


def saved(folder: Path, name: str = "small", size: int = 8) -> Encoder:
    """An encoder with moved statistics, in eval mode, written into a folder."""
    encoder = Encoder(build_backbone(name, image_size=size, channels=3), size, 3, (0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
    encoder(torch.rand(8, 3, size, size))
    save_encoder(folder, encoder.eval())
    return encoder


@pytest.mark.parametrize(("name", "size"), [("small", 8), ("resnet18", 32), ("vit_tiny_patch16_224", 32)])
def test_the_same_features_after_loading(tmp_path: Path, name: str, size: int) -> None:
    encoder = saved(tmp_path / "run", name, size)
    again = load_encoder(tmp_path / "run")
    images = torch.randint(0, 256, (4, 3, size + 5, size + 5), dtype=torch.uint8)
    assert torch.equal(again(images), encoder(images))
    assert not again.training
    assert (again.name, again.num_features, again.image_size) == (name, encoder.num_features, size)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.json",
        "encoder.json",
        "encoder.safetensors",
    ]


def test_weights_load_into_timm(tmp_path: Path) -> None:
    encoder = saved(tmp_path, "resnet18", 64)
    about = json.loads((tmp_path / "encoder.json").read_text())
    net = timm.create_model(about["name"], num_classes=0, **about["arguments"])
    net.load_state_dict(load_file(tmp_path / "encoder.safetensors"))
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(net.eval()(images), encoder.backbone(images))
    assert about["small_stem"] is False and about["num_features"] == 512


def test_small_stem_is_stated_and_all_else_fits_timm(tmp_path: Path) -> None:
    encoder = saved(tmp_path, "resnet18", 32)
    about = json.loads((tmp_path / "encoder.json").read_text())
    assert about["small_stem"] is True
    net = timm.create_model("resnet18", num_classes=0)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    net.load_state_dict(load_file(tmp_path / "encoder.safetensors"))
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(net.eval()(images), encoder.backbone(images))


def test_description_holds_the_preprocessing(tmp_path: Path) -> None:
    saved(tmp_path)
    about = json.loads((tmp_path / "encoder.json").read_text())
    assert about["mean"] == pytest.approx([0.4, 0.5, 0.6]) and about["std"] == pytest.approx([0.2, 0.2, 0.3])
    assert (about["image_size"], about["channels"], about["num_features"]) == (8, 3, 256)
    assert about["nearfar"].count(".") == 2


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"encoder\.json is missing"):
        load_encoder(tmp_path)
    saved(tmp_path)
    (tmp_path / "encoder.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"encoder\.safetensors is missing"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"\x80\x04c", None])
def test_damaged_weights_give_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    saved(tmp_path)
    file = tmp_path / "encoder.safetensors"
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    with pytest.raises(ValueError, match=r"encoder.safetensors is damaged") as caught:
        load_encoder(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "no_such_net"},
        {"name": "hf_hub:someone/net"},
        {"arguments": {"in_chans": 3, "image_size": 8, "unknown": 1}},
        {"image_size": "eight"},
        {"mean": [0.5]},
        {"arguments": None},
    ],
)
def test_a_wrong_description_gives_one_clear_line(tmp_path: Path, change: dict) -> None:
    saved(tmp_path)
    file = tmp_path / "encoder.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=r"encoder.json does not describe an encoder") as caught:
        load_encoder(tmp_path)
    assert "\n" not in str(caught.value)


def test_another_nets_weights_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    saved(tmp_path / "b", "resnet18", 32)
    (tmp_path / "b" / "encoder.safetensors").replace(tmp_path / "a" / "encoder.safetensors")
    with pytest.raises(ValueError, match="of another encoder"):
        load_encoder(tmp_path / "a")


def test_truncated_json_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "encoder.json").write_text('{"name": "sm')
    with pytest.raises(ValueError, match="does not describe"):
        load_encoder(tmp_path)


class Net(nn.Module):
    """A user's own net."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images)).mean((2, 3))


def saved_own(folder: Path) -> Encoder:
    encoder = Encoder(build_backbone(Net(), image_size=8, channels=3), 8, 3, (0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
    encoder(torch.rand(8, 3, 8, 8))
    save_encoder(folder, encoder.eval())
    return encoder


def test_an_encoder_of_ones_own_is_loaded_into_a_copy_of_what_is_given(tmp_path: Path) -> None:
    encoder, given = saved_own(tmp_path), Net()
    about = json.loads((tmp_path / "encoder.json").read_text())
    assert about["object"] == f"{Net.__module__}.Net" and "name" not in about and about["num_features"] == 6
    untouched = given.conv.weight.clone()
    again = load_encoder(tmp_path, given)
    images = torch.randint(0, 256, (4, 3, 11, 9), dtype=torch.uint8)
    assert torch.equal(again(images), encoder(images)) and not again.training
    assert torch.equal(given.conv.weight, untouched)
    assert again.name == f"{Net.__module__}.Net"


def test_an_encoder_of_ones_own_is_asked_for_and_must_fit(tmp_path: Path) -> None:
    saved_own(tmp_path / "own")
    saved(tmp_path / "named")
    line = rf"^this run's encoder is an object of your own \({Net.__module__}\.Net\): give it again, "
    with pytest.raises(ValueError, match=line + r"e\.g\. nearfar\.load\(run, encoder=Net\(\)\)$"):
        load_encoder(tmp_path / "own")
    for other, words in ((Net(width=5), "of another encoder than .*Net: .*size mismatch"), (nn.Linear(2, 2), "fails")):
        with pytest.raises(ValueError, match=words) as caught:
            load_encoder(tmp_path / "own", other)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="encoder is 'small', which is built by its name"):
        load_encoder(tmp_path / "named", Net())


def test_nothing_is_imported_for_the_name_in_a_file(tmp_path: Path) -> None:
    saved_own(tmp_path)
    file = tmp_path / "encoder.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"object": "antigravity.Net"}))
    with pytest.raises(ValueError, match=r"encoder=Net\(\)"):
        load_encoder(tmp_path)
    load_encoder(tmp_path, Net())
    assert "antigravity" not in sys.modules
