"""An exported encoder gives, in the other tool, the features that it gives here."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from nearfar.data import photographs
from nearfar.networks import (
    Encoder,
    build_backbone,
    export_onnx,
    export_program,
    export_weights,
    write_timm_folder,
)


def encoder_of(name: str, size: int, channels: int) -> tuple[Encoder, torch.Tensor]:
    """A net with random weights and moved statistics, and photographs."""
    torch.manual_seed(0)
    images = photographs(5, size, channels)
    moments = (0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.3)[:channels]
    encoder = Encoder(
        build_backbone(name, image_size=size, channels=channels), size, channels, *moments
    )
    with torch.no_grad():
        encoder(images)
    return encoder.eval(), images


@pytest.mark.slow
def test_onnx_gives_the_same_features_for_any_number_of_images(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    encoder, images = encoder_of("test_vit", 64, 1)  # the small net: tests/commands
    error = export_onnx(encoder, tmp_path / "net.onnx", images)
    session = onnxruntime.InferenceSession(
        tmp_path / "net.onnx", providers=["CPUExecutionProvider"]
    )
    for count in (1, 5):
        (features,) = session.run(["features"], {"images": images[:count].numpy()})
        with torch.no_grad():
            expected = encoder(images[:count]).numpy()
        np.testing.assert_allclose(features, expected, atol=1e-4)
        assert np.abs(features - expected).max() <= error + 1e-6 < 1e-4
    assert session.get_inputs()[0].shape == ["batch", 1, 64, 64]
    about = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    assert (about["size"], about["channels"], about["dtype"]) == (64, 1, "uint8")


@pytest.mark.parametrize("value_range", [[0, 4095], [-2.5, 7.5]])
def test_an_encoder_of_more_than_eight_bits_takes_the_numbers_of_files(tmp_path, value_range):
    encoder, images = encoder_of("tiny", 16, 1)
    encoder.value_range = value_range
    assert export_program(encoder, tmp_path / "net.pt2", images) < 1e-4
    extra = {"preprocessing.json": ""}
    program = torch.export.load(tmp_path / "net.pt2", extra_files=extra).module()
    about = json.loads(extra["preprocessing.json"])
    assert (about["dtype"], about["value_range"]) == ("float32", value_range)
    shares = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    numbers = value_range[0] + shares * (value_range[1] - value_range[0])
    with torch.no_grad():
        torch.testing.assert_close(program(numbers), encoder(shares), atol=1e-4, rtol=0)
    with pytest.raises(Exception, match=r"[Uu]int8|Byte|dtype"):  # what Pillow has cut to 8 bits
        program(images)


def test_a_file_of_weights_says_what_it_is(tmp_path):
    encoder, images = encoder_of("small", 32, 3)
    assert export_weights(encoder, tmp_path / "net.safetensors", images) < 1e-6
    with safe_open(tmp_path / "net.safetensors", "pt") as file:
        about = json.loads(file.metadata()["nearfar"])
        assert torch.equal(file.get_tensor("conv.weight"), encoder.backbone.net.conv.weight)
    assert about["architecture"] == "nearfar_small"
    assert about["pretrained_cfg"]["mean"] == pytest.approx([0.4, 0.5, 0.6])


class Stubborn(nn.Module):
    """A net that looks at its images, which cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        means = images.mean((1, 2, 3), keepdim=False)[:, None] * self.scale
        return means if means.sum().item() > 0 else -means


def test_what_cannot_be_traced_gets_one_line(tmp_path):
    encoder = Encoder(
        build_backbone(Stubborn(), image_size=8, channels=1), 8, 1, [0.5], [0.2]
    ).eval()
    with pytest.raises(ValueError, match=r"torch\.export .*Stubborn: ") as caught:
        export_program(encoder, tmp_path / "net.pt2", photographs(2, 8, 1))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="timm cannot build"):
        write_timm_folder(tmp_path, encoder, photographs(2, 8, 1))
    assert not list(tmp_path.iterdir())
