"""A run in other tools, through the public functions: files that are loaded again, and a folder for
the Hub.
"""

import json
import shlex
import shutil
from dataclasses import replace

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

import nearfar
from nearfar import run as run_module
from nearfar.data import photographs
from nearfar.networks import exporting
from nearfar.pages.model_card import model_card

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path_factory.mktemp("runs") / "halves"))
    nearfar.evaluate(run, protocol=("knn",))
    return run


@pytest.fixture(scope="module")
def images():
    return photographs(3, 8, 1)


@pytest.fixture
def expected(run, images):
    with torch.no_grad():
        return run.encoder(images)


def of_timm(run, folder, images):
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        return net(run.encoder.preprocess(images))


def test_a_run_folder_is_a_timm_model_and_holds_its_weights_once(run, images, expected):
    torch.testing.assert_close(of_timm(run, run.path, images), expected)
    kept = {path.name for path in run.path.glob("*.safetensors")} - {"features.safetensors"}
    assert kept == {"encoder.safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch", "safetensors", "timm"])
def test_an_export_gives_the_same_features_elsewhere(run, images, expected, to, log):
    path = nearfar.export(run, to=to)
    assert path.parent == run.path / "export"
    assert "largest difference" in log.text
    if to == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path)
        assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
        features = torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])
    elif to == "torch":
        features = torch.export.load(path).module()(images)
    elif to == "timm":
        features = of_timm(run, path, images)
    else:
        assert load_file(path).keys() == load_file(run.path / "encoder.safetensors").keys()
        return
    torch.testing.assert_close(features.detach(), expected, atol=1e-4, rtol=0)
    assert not [file for file in path.parent.iterdir() if ".partial" in file.name]


def test_outputs_are_looked_at_before_the_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "load", None)
    (tmp_path / "there.pt2").touch()
    for to, out, words in (
        ("torch", "there.pt2", "exists already"),
        ("torch", "net.onnx", r"ends in \.onnx"),
        ("timm", "there.pt2", "exists already"),
        ("onnx", "no/net.onnx", "cannot write"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            nearfar.export(run, to=to, out=tmp_path / out)


def test_onnx_without_its_libraries_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'nearfar\[onnx\]'"):
        nearfar.export(run, to="onnx")


def test_a_failed_export_leaves_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="nothing is kept"):
        nearfar.export(run, to="safetensors", out=tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="nothing is kept"):
        nearfar.push(run, "a/b")
    assert not list(tmp_path.iterdir())


def test_a_failed_export_leaves_the_one_before(run, monkeypatch):
    folder = nearfar.export(run, to="timm")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="nothing is kept"):
        nearfar.export(run, to="timm")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir() if "partial" in path.name] == []


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in the place of the Hub, and the options with which repositories were made."""
    options = {}

    class Hub:
        def __init__(self, **_):
            pass

        def create_repo(self, repo, **given):
            options[repo] = given
            return f"hub/{repo}"

        def upload_folder(self, repo_id, folder_path, **_):
            shutil.copytree(folder_path, tmp_path / "hub" / repo_id)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return tmp_path / "hub", options


def test_push_sends_the_folder_that_timm_loads(run, images, expected, hub):
    place = nearfar.push(run, "someone/halves", license="mit", private=True)
    assert place == "hub/someone/halves" and hub[1] == {
        "someone/halves": {"private": True, "exist_ok": True}
    }
    folder = hub[0] / "someone" / "halves"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    torch.testing.assert_close(of_timm(run, folder, images), expected)
    _, metadata, card = (folder / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(metadata)
    assert (facts["library_name"], facts["license"]) == ("timm", "mit") and "timm" in facts["tags"]
    assert 'create_model("hf-hub:someone/halves", pretrained=True)' in card
    assert "80 images of 8 px" in card and "16 of them were held out" in card
    assert run.verdict.words in card
    knn = run.results[-1]["trained"]["knn"]
    metrics = facts["model-index"][0]["results"][0]["metrics"]
    assert {"type": "accuracy", "value": knn, "name": "kNN"} in metrics
    assert f"{100 * knn:.1f}" in next(
        line for line in card.splitlines() if line.startswith("| Trained encoder")
    )
    assert "They started from random numbers." in card
    assert "Similarity Contrastive Estimation" in card.partition("## Citation")[2]
    assert str(run.path.parent) not in card and "halves.npz" not in card  # nothing of this machine
    assert json.loads((folder / "config.json").read_text())["pretrained_cfg"]["license"] == "mit"


def test_the_command_on_the_card_trains_the_same_encoder(
    run, images_file, images, expected, tmp_path
):
    from nearfar.cli import main

    card = model_card(run, "someone/halves", None, None)
    command = card.partition("## Command\n\n```\n")[2].partition("\n```")[0]
    words = shlex.split(command.replace("DATA", images_file))
    assert main([*words[1:], "--out", str(tmp_path / "again")]) == 0
    with torch.no_grad():
        torch.testing.assert_close(nearfar.load(tmp_path / "again")(images), expected)


def test_mistakes_of_push_get_one_line(run, monkeypatch):
    for name in ("halves", "a/b/c", "../x"):
        with pytest.raises(ValueError, match="nearfar push RUN owner/name"):
            nearfar.push(run, name)

    def refuse(*_, **__):
        raise RuntimeError("401 Unauthorized\nand more")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    with pytest.raises(ValueError, match=r"a/b: 401 Unauthorized Log in") as caught:
        nearfar.push(run, "a/b")
    assert "\n" not in str(caught.value)


def test_the_licence_of_starting_weights_is_told(run, images_file, hub, tmp_path):
    nearfar.push(run, "a/first", license="cc-by-4.0")
    options = dict(epochs=1, batch_size=16, encoder="small", method="simclr")
    again = nearfar.pretrain(
        images_file, out=tmp_path / "run", init=str(hub[0] / "a" / "first"), **options
    )
    nearfar.push(again, "a/more")
    card = (hub[0] / "a" / "more" / "README.md").read_text()
    assert "license: cc-by-4.0" in card and "which are under cc-by-4.0" in card
    assert str(tmp_path) not in card


def test_the_licence_of_a_pretrained_net_beside_the_trained_one_is_stated(run, hub, tmp_path):
    joined = nearfar.Run(shutil.copytree(run.path, tmp_path / "joined"))
    replace(joined.settings, beside="pretrained+edges").save(joined.path / "config.yaml")
    nearfar.push(joined.path, "a/joined")
    card = (hub[0] / "a" / "joined" / "README.md").read_text()
    assert "license: apache-2.0" in card and "tf_efficientnet_lite0" in card
    about = json.loads((hub[0] / "a" / "joined" / "config.json").read_text())
    assert about["pretrained_cfg"]["license"] == "apache-2.0"


def test_the_card_of_images_of_more_than_eight_bits_has_their_range(run, tmp_path):
    deep = nearfar.Run(shutil.copytree(run.path, tmp_path / "deep"))
    file = deep.path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"value_range": [0.0, 4095.0]}))
    card = model_card(deep, "someone/halves", None, None)
    assert "4095.0" in card and ".convert(" not in card


class Own(torch.nn.Module):
    """A user's own net."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 6, 3)

    def forward(self, images):
        return self.conv(images).amax((2, 3))


def test_an_encoder_of_ones_own_is_exported_when_given_again(images_file, tmp_path):
    options = dict(epochs=1, batch_size=16, encoder=Own(), method="simclr")
    run = nearfar.pretrain(images_file, out=tmp_path / "run", **options)
    path = nearfar.export(run, to="torch", out=tmp_path / "own.pt2", encoder=Own())
    image = np.full((1, 1, 8, 8), 9, dtype=np.uint8)
    given = torch.export.load(path).module()(torch.from_numpy(image)).detach()
    torch.testing.assert_close(
        given, nearfar.load(run, encoder=Own())(torch.from_numpy(image)).detach()
    )
    with pytest.raises(ValueError, match="which timm cannot build"):
        nearfar.export(run, to="timm", out=tmp_path / "hub", encoder=Own())
    with pytest.raises(ValueError, match="give it again"):
        nearfar.push(run, "a/b")
    assert not (tmp_path / "hub").exists()
