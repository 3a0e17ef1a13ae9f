"""An output never replaces a file that is not ours, and one that cannot be written is noticed
before the work.
"""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import nearfar
from nearfar.training import request

pytestmark = pytest.mark.usefixtures("known_speed")

OPTIONS = dict(
    epochs=1, batch_size=16, held_out=16, encoder="small", method="simclr", precision="32-true"
)


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run to spoil."""
    return shutil.copytree(trained.path, tmp_path / "run")


@pytest.fixture
def no_work(monkeypatch):
    """Fail where anything is computed."""

    def computed(*given, **named):
        raise AssertionError("computed before the output was looked at")

    monkeypatch.setattr(
        torch.nn.Module, "__call__", computed
    )  # a function may be bound elsewhere; every encoder is one


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("out", ["rows.xyz", "nowhere/rows.csv", "there.csv"])
def test_embeddings_replace_nothing(out, run, tmp_path, no_work):
    (tmp_path / "there.csv").symlink_to("nothing")
    before = files(tmp_path)
    with pytest.raises((ValueError, OSError)):
        nearfar.embed(run, out=tmp_path / out)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("limit", 0),
        ("seed", 2**32),
        ("test_share", 1.0),
        ("protocol", ["nn"]),
    ],
)
def test_values_that_make_no_sense(option, value, run, no_work):
    with pytest.raises(ValueError, match=option):
        nearfar.evaluate(run, **{option: value})


def test_weights_that_are_not_numbers_are_not_embedded(run, tmp_path):
    weights = load_file(run / "encoder.safetensors")
    weights["conv.weight"][0] = torch.nan
    save_file(weights, run / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"conv\.weight .*not finite"):
        nearfar.embed(run, out=tmp_path / "rows.csv")
    assert not (tmp_path / "rows.csv").exists()
    with pytest.raises(ValueError, match="not finite"):
        nearfar.pretrain("digits", out=tmp_path / "new", init=str(run), **OPTIONS)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": None}, "it lacks batch_size"),
        ({"frobnicate": 3}, "no setting or hyperparameter 'frobnicate'"),
        ({"temperature": "hot"}, "`temperature` must be a number"),
        ({"encoder": "resnet10t"}, "of another run"),
    ],
)
def test_a_run_whose_settings_were_changed(change, says, run):
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ValueError, match=says):
        nearfar.resume(run)


@pytest.mark.parametrize("change", [{"step": "x"}, {"model": {}}, {"optimizer": {}}, None])
def test_a_checkpoint_of_something_else(change, run):
    path = run / "checkpoints" / "last.ckpt"
    torch.save([] if change is None else torch.load(path) | change, path)
    with pytest.raises(ValueError, match=r"last\.ckpt is (not|of another)"):
        nearfar.resume(run)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"model_args": {"in_chans": 1, "image_size": 8, "checkpoint_path": "x.pth"}},
            "argument 'checkpoint_path'",
        ),
        (
            {"architecture": "resnet18", "model_args": {"in_chans": 1, "pretrained_cfg": {}}},
            "argument 'pretrained_cfg'",
        ),
        ({"model_args": {"in_chans": 10**15, "image_size": 8}}, "does not describe an encoder"),
        ({"model_args": 5}, "does not describe an encoder"),
        (
            {"pretrained_cfg": {"input_size": [1, -4, -4], "mean": [0.5], "std": [0.2]}},
            "does not describe an encoder",
        ),
    ],
)
def test_an_encoder_that_asks_for_more_than_its_form(change, says, run, unchecked):
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=says):
        nearfar.load(run)


@pytest.mark.parametrize(
    "content", [b"text\n", b"", b"PK\x03\x04", {}, {1: torch.ones(2)}, {"state_dict": 5}]
)
def test_starting_weights_that_are_none(content, tmp_path, images_file):
    path = tmp_path / "weights.pth"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=r"weights\.pth"):
        nearfar.pretrain(images_file, out=tmp_path / "new", init=str(path), **OPTIONS)
    assert not (tmp_path / "new").exists()


def test_tensorboard_without_its_package_is_one_line_and_no_folder(
    images_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(request, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install"):
        nearfar.pretrain(
            images_file,
            epochs=1,
            batch_size=16,
            tensorboard=True,
            out=str(tmp_path / "r"),
        )
    assert not (tmp_path / "r").exists()
