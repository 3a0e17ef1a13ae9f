"""Encoders side by side: their features, on disk, in timm, joined again, fine-tuned and exported."""

import json

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import interpolate, normalize

import nearfar
from nearfar.data import Images, photographs
from nearfar.evaluation import colour_histogram, finetune_accuracies, hog, raw_pixels, tuning
from nearfar.networks import (
    Encoder,
    build_backbone,
    export_onnx,
    export_program,
    layer_scales,
    load_encoder,
    named_encoder,
    save_encoder,
    write_timm_folder,
)


def tiny(size: int = 32, channels: int = 3, **more) -> Encoder:
    """A net with random weights."""
    torch.manual_seed(size)
    moments = [0.4] * channels, [0.25] * channels
    backbone = build_backbone("tiny", image_size=size, channels=channels)
    return Encoder(backbone, size, channels, *moments, **more).eval()


@torch.no_grad()
def test_features_are_rows_of_unit_length_times_their_weights() -> None:
    """As computed by hand: what a net and simple features give of the same images, each resized
    and normalised for itself.
    """
    net, images = tiny(16), torch.rand(4, 3, 40, 40)
    joined = nearfar.join({net: 2.0, "edges": 0.5, "colours": 0.25, "pixels": 1}, image_size=40)
    small = interpolate(images, (16, 16), mode="bicubic", antialias=True).clamp(0, 1)
    by_hand = [
        2 * normalize(net.backbone.net((small - 0.4) / 0.25), dim=1),
        0.5 * normalize(hog(images), dim=1),
        0.25 * colour_histogram(images),
        normalize(raw_pixels(images), dim=1),
    ]
    torch.testing.assert_close(joined(images), torch.cat(by_hand, 1))
    assert (joined.num_features, joined.image_size) == (joined(images).shape[1], 40)


@torch.no_grad()
def test_the_size_is_that_of_the_largest_encoder() -> None:
    assert nearfar.join([tiny(16), tiny(24), "edges"]).image_size == 24
    assert nearfar.join(["edges", "colours"]).image_size == 128
    large = torch.randint(0, 256, (2, 3, 60, 50), dtype=torch.uint8)
    once = nearfar.join([tiny(24)])(large)
    torch.testing.assert_close(once, normalize(tiny(24)(large), dim=1))


@torch.no_grad()
def test_an_encoder_for_colour_takes_grayscale_by_repeating_it() -> None:
    gray, images = tiny(16, 1), torch.rand(3, 1, 16, 16)
    joined = nearfar.join([gray, tiny(16), "colours"])
    wanted = [gray(images), tiny(16)(images.expand(-1, 3, -1, -1)), colour_histogram(images)]
    torch.testing.assert_close(joined(images), torch.cat([normalize(x, dim=1) for x in wanted], 1))
    assert joined.channels == 1
    with pytest.raises(ValueError, match="3 and 4 channels, "):
        nearfar.join([tiny(16, 4), tiny(16)])
    with pytest.raises(ValueError, match="different value ranges"):
        nearfar.join([tiny(16, 1, value_range=top) for top in ((0, 4095), (0, 65535))])
    assert nearfar.join([tiny(16, 1, value_range=(0, 9)), "edges"]).value_range == [0, 9]


@pytest.mark.parametrize(
    "members",
    [
        [16, "edges"],
        ["edges", "colours"],
        pytest.param([16, "resnet18", "pixels"], marks=pytest.mark.slow),
    ],
)
def test_saved_loaded_and_built_by_timm_it_gives_the_same_features(tmp_path, members) -> None:
    nets = {16: tiny(16)}
    torch.manual_seed(0)
    backbone = build_backbone("resnet18", image_size=32, channels=3)  # with a small stem
    nets["resnet18"] = Encoder(backbone, 32, 3, [0.5] * 3, [0.2] * 3).eval()
    encoder = nearfar.join(
        [nets.get(member, member) for member in members], [0.5, 1.5, 2.0][: len(members)]
    )
    images = torch.randint(0, 256, (3, 3, 50, 40), dtype=torch.uint8)
    save_encoder(tmp_path, encoder)
    again = nearfar.load(tmp_path)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    with torch.no_grad():
        expected = encoder(images)
        assert torch.equal(again(images), expected) and not again.training
        torch.testing.assert_close(net(encoder.preprocess(images)), expected)
        named = named_encoder(str(tmp_path), encoder.image_size, 3)
        assert torch.equal(named(images), expected)
        net.reset_classifier(7)
        assert net(encoder.preprocess(images)).shape == (3, 7)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "nearfar_joined"
    assert again.num_features == expected.shape[1] == encoder.num_features
    crops = photographs(3, encoder.image_size, 3)
    (tmp_path / "hub").mkdir()
    assert write_timm_folder(tmp_path / "hub", encoder, crops) < 1e-5


@torch.no_grad()
def test_members_of_a_joined_encoder_share_its_weight(tmp_path) -> None:
    images = torch.rand(2, 3, 16, 16)
    inner = nearfar.join([tiny(16), "edges"], [3.0, 4.0])
    outer = nearfar.join({inner: 2.0, "colours": 1.0})
    expected = [2 * normalize(inner(images), dim=1), colour_histogram(images)]
    torch.testing.assert_close(outer(images), torch.cat(expected, 1))
    assert inner(images).norm(dim=1).tolist() == pytest.approx([5, 5])  # which is as it was
    save_encoder(tmp_path, outer)
    assert torch.equal(load_encoder(tmp_path)(images), outer(images))
    again = nearfar.join([tmp_path])
    torch.testing.assert_close(again(images), normalize(outer(images), dim=1))


@torch.no_grad()
def test_weights_of_the_package_are_a_member_by_their_name() -> None:
    images = torch.rand(2, 3, 128, 128)
    joined = nearfar.join(["nearfar"])
    expected = normalize(named_encoder("nearfar", 128, 3)(images), dim=1)
    torch.testing.assert_close(joined(images), expected)


@pytest.mark.parametrize(
    ("members", "weights", "message"),
    [
        (["edges", "no such net"], None, "'no such net'"),
        (["edges"], [0.0], "must be above 0"),
        (["edges"], [float("nan")], "must be above 0"),
        ([], None, "has 1 to 64 members"),
        ("edges", None, "members are a list"),
        (["edges"], [1.0, 2.0], "with as many weights"),
        ({"edges": 1.0}, [1.0], "leave weights out"),
    ],
)
def test_a_mistake_gets_one_line(members, weights, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        nearfar.join(members, weights)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["image_size", "channels"])
@pytest.mark.parametrize("number", [0, -3])
def test_a_size_that_no_image_has_is_no_default(name, number) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        nearfar.join(["edges"], **{name: number})


def test_weights_of_any_kind_of_number_are_taken() -> None:
    plain = nearfar.join(["edges", "colours"], [1.0, 0.5], image_size=16)
    of_numpy = nearfar.join(["edges", "colours"], np.float32([1, 0.5]), image_size=16)
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(plain(images), of_numpy(images))


def test_a_line_says_that_colour_is_lost_beside_an_encoder_for_grayscale(log) -> None:
    nearfar.join([tiny(16, 1), "edges"])
    assert "become gray" not in log.text
    joined = nearfar.join([tiny(16), tiny(16, 1)])
    assert joined.channels == 1 and "become gray" in log.text


EDGES = {"name": "edges", "image_size": 16, "mean": [0.0] * 3, "std": [1.0] * 3, "weight": 1.0}
NESTED = {"name": "joined", "arguments": {"members": [EDGES]}}
HOSTILE = {
    "fetched": [EDGES | {"name": "hf-hub:someone/net"}],
    "local": [EDGES | {"name": "local-dir:/etc"}],
    "nested": [EDGES | NESTED],
    "checkpoint": [EDGES | {"name": "resnet18", "arguments": {"checkpoint_path": "net.pth"}}],
    "unknown key": [EDGES | {"hook": "os.system"}],
    "no net": [EDGES | {"name": ["edges"]}],
    "huge net": [EDGES | {"name": "vit_tiny_patch16_224", "arguments": {"embed_dim": 2**14}}],
    "more weights than the file": [EDGES | {"name": "resnet18"}],
    "huge image": [EDGES | {"image_size": 10**9}],
    "no size": [EDGES | {"image_size": True}],
    "negative": [EDGES | {"weight": -1.0}],
    "infinite": [EDGES | {"weight": float("inf")}],
    "text": [EDGES | {"weight": "2"}],
    "no std": [EDGES | {"std": [0.0] * 3}],
    "no number": [EDGES | {"mean": ["x"] * 3}],
    "channels": [EDGES | {"mean": [0.0] * 3000}],
    "none": [],
    "a mapping": EDGES,
    "thousands": [EDGES] * 10_000,
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_description_is_refused_in_one_line(tmp_path, members) -> None:
    save_encoder(tmp_path, nearfar.join(["edges"], image_size=16))
    path = tmp_path / "config.json"
    about = json.loads(path.read_text())
    about["model_args"]["members"] = members
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"does not describe an encoder") as caught:
        load_encoder(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 800


def test_members_of_another_net_are_refused(tmp_path) -> None:
    save_encoder(tmp_path, tiny(16))
    path = tmp_path / "config.json"
    about = json.loads(path.read_text())
    about["model_args"]["members"] = []
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"does not describe an encoder"):
        load_encoder(tmp_path)


class Mean(nn.Module):
    """A user's own net: the mean of each channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


@torch.no_grad()
def test_a_module_of_ones_own_is_joined_in_memory_and_given_again_to_load(tmp_path) -> None:
    own = Encoder(build_backbone(Mean(), image_size=8, channels=3), 8, 3, [0.0] * 3, [1.0] * 3)
    encoder, images = nearfar.join([own, "edges"]), torch.rand(2, 3, 8, 8)
    means = normalize(images.mean((2, 3)), dim=1)
    torch.testing.assert_close(encoder(images)[:, :3], means)
    save_encoder(tmp_path, encoder)
    with pytest.raises(ValueError, match="object of your own"):
        load_encoder(tmp_path)
    assert torch.equal(load_encoder(tmp_path, encoder.backbone.net)(images), encoder(images))


@pytest.mark.slow
def test_nets_among_the_members_are_fine_tuned_and_stages_are_not_counted() -> None:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 80, (24, 3, 8, 8), dtype=np.uint8), np.arange(24) % 2
    pixels[labels == 0, :, :4] += 120
    images = Images(torch.from_numpy(pixels), names=[str(i) for i in range(24)], labels=labels)
    encoder = nearfar.join([tiny(8), "edges"])
    accuracies = finetune_accuracies(encoder, images, images, np.arange(24), tuning(100))
    assert accuracies.top1 > 0.9
    scales = layer_scales(encoder.backbone.net, 0.5)
    assert scales.keys() == {id(weights) for weights in encoder.backbone.net.parameters()}
    with pytest.raises(ValueError, match="'joined' has no stages"):
        encoder.backbone.freeze(1)


@pytest.mark.parametrize("size", [24, 40])
@pytest.mark.slow
def test_exported_it_gives_the_same_features(tmp_path, size) -> None:
    encoder = nearfar.join([tiny(16), "edges", "colours", "pixels"], image_size=size)
    images = photographs(5, size, 3)
    assert export_program(encoder, tmp_path / "net.pt2", images) < 1e-5
    if size == 40:
        pytest.importorskip("onnxruntime")
        assert export_onnx(encoder, tmp_path / "net.onnx", images) < 1e-5
