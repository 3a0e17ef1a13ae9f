"""Starting weights from files."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nearfar.networks import build_backbone, load_pretrained


def weights(channels: int = 3) -> dict[str, Tensor]:
    net = build_backbone("small", image_size=8, channels=channels).net
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in net.state_dict().items()}


def test_everything_of_a_safetensors_file_is_loaded(tmp_path: Path) -> None:
    saved = weights()
    save_file(saved, tmp_path / "w.safetensors")
    backbone = build_backbone("small", image_size=8, channels=3, init=tmp_path / "w.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in backbone.net.state_dict().items())


def test_a_run_folder_will_do(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "encoder.safetensors")
    net = build_backbone("small", image_size=8, channels=3).net
    report = load_pretrained(net, tmp_path)
    count = len(net.state_dict())
    assert f"{count} of {count} tensors loaded" in report and ";" not in report


def test_prefix_wrapping_and_leftovers_of_a_checkpoint(tmp_path: Path) -> None:
    saved = weights()
    content = {f"module.encoder.{name}": value for name, value in saved.items()}
    content["module.encoder.fc.weight"] = torch.zeros(10, 256)
    del content["module.encoder.norm.bias"]
    torch.save({"epoch": 3, "state_dict": content}, tmp_path / "w.pth")
    net = build_backbone("small", image_size=8, channels=3).net
    report = load_pretrained(net, tmp_path / "w.pth")
    assert torch.equal(net.conv.weight, saved["conv.weight"])
    assert "1 missing (norm.bias)" in report and "1 not used (fc.weight)" in report and "\n" not in report


def test_other_channels_get_an_adapted_first_convolution(tmp_path: Path) -> None:
    saved = weights(channels=3)
    torch.save(saved, tmp_path / "w.pth")
    net = build_backbone("small", image_size=8, channels=1).net
    report = load_pretrained(net, tmp_path / "w.pth")
    assert "1 adapted (conv.weight [64, 3, 3, 3] to [64, 1, 3, 3])" in report
    torch.testing.assert_close(net.conv.weight, saved["conv.weight"].sum(1, keepdim=True))
    assert torch.equal(net.blocks[0].conv1.weight, saved["blocks.0.conv1.weight"])


def test_what_has_another_shape_is_skipped_and_named(tmp_path: Path) -> None:
    saved = weights() | {"conv.weight": torch.zeros(32, 3, 3, 3)}
    torch.save(saved, tmp_path / "w.pth")
    net = build_backbone("small", image_size=8, channels=3).net
    before = net.conv.weight.clone()
    report = load_pretrained(net, tmp_path / "w.pth")
    assert "1 of another shape (conv.weight [32, 3, 3, 3] for [64, 3, 3, 3])" in report
    assert torch.equal(net.conv.weight, before)


class Payload:
    """What an attacker would put into a pickle."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("touched"),))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv.weight": Payload()}, tmp_path / "w.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Payload()))
    for name in ("w.pth", "plain.pth"):
        with pytest.raises(ValueError, match="cannot read weights"):
            load_pretrained(nn.Linear(1, 1), tmp_path / name)
    assert not (tmp_path / "touched").exists()


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    net = build_backbone("small", image_size=8, channels=3).net
    with pytest.raises(FileNotFoundError, match="no file"):
        load_pretrained(net, tmp_path / "absent.pth")
    (tmp_path / "broken.safetensors").write_bytes(b"\x00" * 50)
    with pytest.raises(ValueError, match="cannot read weights"):
        load_pretrained(net, tmp_path / "broken.safetensors")
    (tmp_path / "empty.pth").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot read weights"):
        load_pretrained(net, tmp_path / "empty.pth")
    torch.save({"layer1.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"nothing in .*other.pth fits.*layer1.weight"):
        load_pretrained(net, tmp_path / "other.pth")
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    with pytest.raises(ValueError, match="no dictionary"):
        load_pretrained(net, tmp_path / "tensor.pth")
