"""A command walks a folder once, builds one table of it, and opens its images once in each size
that it needs.
"""

import os

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.data import opening
from nearfar.data.sources import encoded
from nearfar.networks import Encoder, build_backbone
from nearfar.tools.evaluate import measuring

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture
def photos(tmp_path):
    """Forty images of two classes, in a training and a test split."""
    rng = np.random.default_rng(0)
    for number in range(40):
        split, kind = "test" if number % 4 == 0 else "train", "ab"[number % 2]
        if split == "test":
            kind = "ab"[number // 4 % 2]
        folder = tmp_path / "photos" / split / kind
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, (16, 16, 3), dtype=np.uint8)
        pixels[:8] += 100 * (kind == "a")
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def counted(monkeypatch, photos):
    """Number of times that the folder is walked and its table built, and the sizes in which its
    images are opened.
    """
    seen = {"walks": 0, "tables": 0, "opened": []}
    scandir, scan, read = os.scandir, encoded.scanned, opening.open_rows

    def walked(folder="."):
        seen["walks"] += str(folder) == str(photos)
        return scandir(folder)

    def built(*args):
        seen["tables"] += 1
        return scan(*args)

    def rows_read(*args, **options):
        images = read(*args, **options)
        seen["opened"].append(images.image_size)
        return images

    monkeypatch.setattr(os, "scandir", walked)
    monkeypatch.setattr(encoded, "scanned", built)
    monkeypatch.setattr(opening, "open_rows", rows_read)
    return seen


@pytest.fixture
def run(photos, tmp_path):
    return nearfar.pretrain(photos, out=tmp_path / "run", epochs=1, batch_size=8)


@pytest.mark.parametrize("options", [{}, {"image_size": 12}, {"split": "all"}])
def test_to_pretrain_is_to_walk_once(photos, counted, tmp_path, options):
    nearfar.pretrain(photos, out=tmp_path / "run", epochs=1, batch_size=8, **options)
    assert counted == {"walks": 1, "tables": 1, "opened": [options.get("image_size", 16)]}


def test_to_resume_is_to_walk_once(run, counted):
    nearfar.resume(run)
    assert counted == {"walks": 1, "tables": 1, "opened": [16]}


@pytest.mark.parametrize("verb", ["evaluate", "duplicates", "check"])
@pytest.mark.parametrize("of_run", [True, False])
def test_a_tool_walks_once(verb, of_run, request, photos, monkeypatch, tmp_path):
    target = request.getfixturevalue("run") if of_run else photos
    counted = request.getfixturevalue("counted")
    monkeypatch.chdir(tmp_path)
    getattr(nearfar, verb)(target)
    assert counted == {"walks": 1, "tables": 1, "opened": [16]}


def test_larger_images_for_the_frozen_net_need_no_other_walk(
    photos, tmp_path, request, monkeypatch
):
    run = nearfar.pretrain(photos, out=tmp_path / "run", epochs=1, batch_size=8, image_size=12)
    backbone = build_backbone("tiny", image_size=16, channels=3)
    net = Encoder(backbone, 16, 3, mean=[0.5] * 3, std=[0.25] * 3)
    monkeypatch.setattr(measuring, "frozen_net", lambda photos: net)
    counted = request.getfixturevalue("counted")
    assert "pretrained_frozen" in nearfar.evaluate(run, protocol=["knn_3"])
    assert counted == {"walks": 1, "tables": 1, "opened": [12, 16]}
