"""A few images of a source: evenly spaced, as `open_images` has them, and without decoding the
others.
"""

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import open_images, opening


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(31):
        smooth = np.kron(
            rng.integers(0, 256, (4, 5, 3), dtype=np.uint8), np.ones((30, 30, 1), dtype=np.uint8)
        )
        Image.fromarray(smooth).save(tmp_path / f"{number:02d}.png")
    return tmp_path


def test_they_are_evenly_spaced_and_the_same_as_in_the_whole(folder, tmp_path_factory, monkeypatch):
    decoded = []
    real = opening.decode
    monkeypatch.setattr(opening, "decode", lambda *args: decoded.append(args) or real(*args))
    some = open_images(folder, few=4, image_size=40)
    assert len(decoded) == 4
    assert some.names == ["00.png", "10.png", "20.png", "30.png"]
    whole = open_images(folder, image_size=40, cache_dir=tmp_path_factory.mktemp("cache"))
    gap = some.pixels.int() - whole.gather(torch.tensor([0, 10, 20, 30])).int()
    assert gap.abs().max() <= 1


def test_unreadable_ones_are_left_out_and_none_at_all_is_said(folder, tmp_path):
    (folder / "10.png").write_bytes(b"no image")
    assert open_images(folder, few=4, image_size=16).names == ["00.png", "20.png", "30.png"]
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"1 images in .*bad'.*; a\.png"):
        open_images(bad, few=4)


def test_size_and_channels_are_those_of_the_images(folder):
    assert (open_images(folder, few=3).image_size, open_images(folder, few=3).channels) == (224, 3)
    digits = open_images("digits", few=5)
    assert digits.names == [
        "digits/0000",
        "digits/0449",
        "digits/0898",
        "digits/1347",
        "digits/1796",
    ]
    assert digits.pixels.shape == (5, 1, 8, 8)
    assert len(open_images(np.zeros((3, 9, 9), dtype=np.uint8), few=12)) == 3


def test_of_several_sources_they_are_no_more(folder):
    assert [len(open_images([folder, "digits"], few=few)) for few in (2, 3, 5)] == [2, 3, 5]


@pytest.mark.parametrize(
    "options", [{"few": 0}, {"few": 2.0}, {"few": "2"}, {"image_size": "8"}, {"image_size": 8.0}]
)
def test_numbers_of_another_kind_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        open_images(np.zeros((3, 8, 8), np.uint8), **options)
