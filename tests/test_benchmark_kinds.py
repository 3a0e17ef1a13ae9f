"""benchmarks/kinds.py: what its sets promise, and which command installs what is missing."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NOWHERE = Path("no-data")
DRAWN = {"tiles": ("tile", "DEFECTS"), "pages": ("page", "LAYOUTS"), "signs": ("sign", "SIGNS")}
PACKAGED = {  # training and test images, of the first and the last class
    "emoji": (1235, 309, 68, 160),
    "icons": (1800, 450, 320, 120),
    "fonts": (1820, 754, 70, 70),
    "stamps": (570, 143, 117, 30),
    "textures": (624, 144, 101, 111),
    "fashion-mnist": (4000, 2000, None, None),
}


@pytest.fixture
def kinds(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("kinds")


@pytest.fixture
def drawn(kinds):
    return importlib.import_module("drawn")


def contents(images):
    return {image.numpy().tobytes() for image in images.pixels}


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_images_are_the_same_again_and_none_is_in_both_parts(kinds, drawn, name):
    draw, classes = (getattr(drawn, each) for each in DRAWN[name])
    load = kinds.of_drawing(draw, list(classes), 12, 4)
    train, again, test = (load(NOWHERE, split) for split in ("train", "train", "test"))
    assert train.pixels.equal(again.pixels) and (train.labels == again.labels).all()
    counts = np.bincount(train.labels)
    assert (counts[0], counts[-1], len(counts)) == (12, 4, len(classes))
    assert np.bincount(test.labels).tolist() == (counts // 4).tolist()
    assert len(contents(train) | contents(test)) == len(train) + len(test)
    assert (np.diff(train.labels) < 0).any()  # not sorted by class: every fifth has all of them
    assert train.pixels.shape[1:] == (3 if name == "signs" else 1, *[train.image_size] * 2)


@pytest.mark.parametrize("defect", ["blowhole", "crack"])
def test_a_defect_is_darker_than_its_surroundings_and_no_other_spot_is(drawn, defect):
    def darkest(kind):
        depths = []
        for seed in range(20):
            image = drawn.tile(kind, np.random.default_rng(seed)).astype(float)
            depths.append(np.median(image) - np.partition(image.ravel(), 5)[5])
        return np.array(depths)

    assert np.median(darkest(defect)) > 1.4 * np.median(darkest("none"))


def test_left_is_the_mirror_image_of_right(drawn):
    fronts = []
    for name in ("turn left", "turn right"):
        front = Image.new("RGB", (129, 129))
        drawn.SIGNS[name](ImageDraw.Draw(front))
        fronts.append(front)
    left, right = np.asarray(fronts[0], int), np.asarray(ImageOps.mirror(fronts[1]), int)
    assert (np.abs(left - right).max(2) > 60).mean() < 0.01
    assert (np.abs(left - np.asarray(fronts[1], int)).max(2) > 60).mean() > 0.05


def test_a_page_of_an_article_has_more_ink_than_a_letter(drawn):
    article, letter = (
        np.mean([drawn.page(kind, np.random.default_rng(seed)) for seed in range(12)])
        for kind in ("article", "letter")
    )
    assert article < letter - 5


@pytest.mark.parametrize("name", PACKAGED)
def test_images_of_packages_are_divided_once_for_all(kinds, name):
    try:
        train, again, test = (
            kinds.SETS[name].load(NOWHERE, split) for split in ("train", "train", "test")
        )
    except (FileNotFoundError, ModuleNotFoundError) as error:
        pytest.skip(str(error))
    trained, tested, first, last = PACKAGED[name]
    assert (len(train), len(test)) == (trained, tested)
    assert train.pixels.equal(again.pixels) and (train.labels == again.labels).all()
    counts = np.bincount(train.labels)
    assert first is None or (counts[0], counts[-1]) == (first, last)
    assert set(train.labels) == set(test.labels) == set(range(len(counts)))
    assert len(contents(train) & contents(test)) <= 0.01 * len(test)
    if name == "fonts":  # every fifth image is a letter of one of 14 fonts
        _, held = kinds.parts(kinds.SETS[name], NOWHERE, "held-out")
        assert np.bincount(held.labels).tolist() == [14] * 26


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("emoji", "npm install emoji-datasource-google"),
        ("icons", "pip install --no-deps qtawesome"),
        ("textures", "pip install scikit-image"),
        ("fonts", "apt install fonts-urw-base35 "),
        ("stamps", "apt install tuxpaint-stamps-default"),
        ("fashion-mnist", "apt install dataset-fashion-mnist"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    kinds, monkeypatch, tmp_path, name, command
):
    for folder in ("FONTS", "STAMPS", "FASHION"):
        monkeypatch.setattr(kinds, folder, tmp_path / "none")
    monkeypatch.setattr(kinds, "find_spec", lambda module: None)
    monkeypatch.delenv("NODE_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FileNotFoundError, ModuleNotFoundError), match=command):
        kinds.SETS[name].load(NOWHERE, "train")
