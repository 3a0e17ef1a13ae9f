"""`--limit` takes a random sample by the seed and says so: of sorted data, the first images are of
few classes.
"""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

import nearfar
from nearfar.data import open_images
from nearfar.data.images import sample
from nearfar.maps import load_map

OPTIONS = dict(
    epochs=1, batch_size=8, held_out=0, encoder="small", method="simclr", precision="32-true"
)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=500)


@pytest.fixture(scope="module")
def sorted_file(tmp_path_factory):
    """Forty images of each of two classes, one class after the other."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("sorted") / "sorted.npz"
    np.savez(
        path, images=rng.integers(0, 256, (80, 8, 8), dtype=np.uint8), labels=np.repeat([0, 1], 40)
    )
    return str(path)


@pytest.fixture(scope="module")
def run(sorted_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "r"
    return nearfar.pretrain(sorted_file, limit=20, seed=3, out=out, **OPTIONS)


def test_a_sample_is_a_function_of_the_seed(sorted_file):
    images = open_images(sorted_file)
    some = images.sampled(20, 3)
    assert some.names == images.sampled(20, 3).names == sorted(set(some.names)) and len(some) == 20
    assert some.names != images.sampled(20, 4).names and set(some.labels) == {0, 1}
    assert set(images.sampled(10, 3).names) < set(some.names)
    assert images.sampled(80, 3) is images.sampled(None, 3) is images


def test_training_takes_a_sample(run, sorted_file, tmp_path, log):
    pictures = json.loads((run.path / "neighbours.json").read_text())["pictures"].values()
    shown = {int(picture["name"]) for picture in pictures}
    assert shown <= set(sample(80, 20, 3).tolist()) and max(shown) >= 40 > min(shown)
    nearfar.pretrain(sorted_file, limit=16, out=tmp_path / "r", **OPTIONS)
    assert "simclr on 16 images" in log.text and " of 80, seed 0)" in log.text


def test_a_map_draws_a_sample_and_finds_it_again(run, sorted_file, tmp_path, log):
    page = nearfar.map(
        run,
        limit=30,
        seed=1,
        layout="cluster-embedding",
        epochs=2,
        out=tmp_path / "m.html",
    ).path
    assert "30 of 80 images" in log.text and "(seed 1)" in log.text
    data = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text()
    )[0]
    assert json.loads(data)["parts"]["names-0"] == open_images(sorted_file).sampled(30, 1).names
    assert load_map(tmp_path / "m.safetensors").about["sample"] == 1
    new = nearfar.map(run, sorted_file, limit=5, seed=2, add_to=page, out=tmp_path / "n.html").path
    assert "5 of 80 images" in log.text and "(seed 2)" in log.text
    named = [point["name"] for point in json.loads(new.with_suffix(".json").read_text())["new"]]
    assert named == open_images(sorted_file).sampled(5, 2).names


def test_a_few_labels_are_a_sample(run, console, log):
    accuracies = nearfar.evaluate(run, limit=12, protocol=["linear"], seed=5, baselines=False)
    assert "12 of 64 images" in log.text and "(seed 5)" in log.text
    assert 0 <= accuracies["trained"]["linear"] <= 1
    nearfar.evaluate(run, protocol=["linear"], seed=5, baselines=False)
    assert "20 of 64 images" in log.text and "(seed 3)" in log.text
