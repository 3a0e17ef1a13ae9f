"""Arrays in memory and on disk, and scikit-learn's digits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import list_splits, open_images


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((10, 200, 9, 9), "channels=200 or channels=9"),
        ((10, 9, 9, 200), "channels=9 or channels=200"),
        ((2, 20, 30, 16), "channels=20 or channels=16"),
        ((2, 64, 4, 4), "channels=64 or channels=4"),
        ((2, 9, 5, 9), "channels=9, if they come first"),
    ],
)
def test_an_ambiguous_layout_needs_a_word(tmp_path, shape, words):
    array = noise(*shape)
    np.save(tmp_path / "a.npy", array)
    for source in (array, tmp_path / "a.npy", list(array)):
        with pytest.raises(ValueError, match=words):
            open_images(source)
        for channels in (shape[1], shape[3]):
            assert open_images(source, channels=channels).channels == channels
    side = min(shape[2:])
    top, left = (shape[2] - side) // 2, (shape[3] - side) // 2
    centre = array[:, :, top : top + side, left : left + side]
    assert (open_images(array, channels=shape[1], image_size=side).pixels.numpy() == centre).all()


def test_values_become_bytes_as_documented():
    levels = np.array([0, 1, 2, 255], dtype=np.int64).reshape(1, 2, 2)
    expected = [0, 1, 2, 255]
    assert open_images(levels).pixels.reshape(-1).tolist() == expected
    for source in (
        levels / 255,
        (levels / 255).astype(np.float32),
        (levels * 257).astype(np.uint16),
    ):
        assert open_images(source, value_range="uint8").pixels.reshape(-1).tolist() == expected
    assert open_images(levels > 1).pixels.reshape(-1).tolist() == [0, 0, 255, 255]
    swapped = levels.astype(">u2") * 257
    assert open_images(swapped, value_range="uint8").pixels.reshape(-1).tolist() == expected
    assert open_images(swapped, value_range="full").pixels.reshape(-1).tolist() == [
        257 * x for x in expected
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.full((2, 4, 4), np.nan), "finite"),
        (np.zeros((4, 4)), "shape"),
        (np.zeros((0, 4, 4), np.uint8), "shape"),
        (np.array([["a"]]), "shape"),
        ((np.zeros((3, 4, 4), np.uint8), np.zeros(2, int)), "each of 3 images"),
        ((np.zeros((2, 4, 4), np.uint8), np.full(2, 0.5)), "whole numbers"),
        (np.ma.masked_equal(np.eye(4)[None].repeat(2, 0), 1), "8 of 32"),
        ([np.ma.masked_equal(np.eye(4), 1)] * 2, "4 of 16"),
    ],
)
def test_unusable_arrays_are_refused(source, words):
    with pytest.raises(ValueError, match=words):
        open_images(source)


def test_resize_keeps_the_centre_and_large_arrays_become_224():
    wide = np.zeros((1, 4, 12), np.uint8)
    wide[:, :, 4:8] = 200
    assert (open_images(wide).pixels == 200).all() and open_images(wide).image_size == 4
    assert open_images(np.zeros((1, 100, 100), np.uint8)).image_size == 224
    array = noise(2, 40, 40, 3)
    small = open_images(array, image_size=12).pixels.numpy().astype(int)
    for pixels, image in zip(small, array, strict=True):
        pillow = np.asarray(Image.fromarray(image).resize((12, 12), Image.Resampling.BICUBIC))
        np.testing.assert_allclose(pixels, pillow.transpose(2, 0, 1), atol=1)


def test_channels_can_be_asked_for():
    colour = np.full((1, 4, 4, 3), (100, 200, 50), np.uint8)
    assert open_images(colour, channels=1).pixels.unique().tolist() == [153]  # 29.9 + 117.4 + 5.7
    assert tuple(open_images(noise(1, 4, 4), channels=3).pixels.shape) == (1, 3, 4, 4)
    with pytest.raises(ValueError, match=r"5 channels .* into 3"):
        open_images(noise(1, 8, 8, 5), channels=3)


def test_npy_is_mapped_and_not_copied(tmp_path):
    array = noise(6, 8, 8, 3)
    np.save(tmp_path / "a.npy", array)
    images = open_images(tmp_path / "a.npy")
    assert (images.pixels.numpy() == array.transpose(0, 3, 1, 2)).all()
    assert images.labels is None
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(tmp_path / "a.npy") in maps.read_text()
    images.pixels[0] = 0  # changes the mapped copy, never the file
    assert (np.load(tmp_path / "a.npy") == array).all()
    with pytest.raises(ValueError, match="not divided"):
        open_images(tmp_path / "a.npy", split="test")


def test_npz_with_labels_and_splits(tmp_path):
    np.savez(tmp_path / "a.npz", x=noise(3, 8, 8), y=np.array([2, 0, 1]))
    assert open_images(tmp_path / "a.npz").labels.tolist() == [2, 0, 1]
    np.savez(
        tmp_path / "b.npz",
        train_images=noise(3, 8, 8),
        train_labels=np.array([[2], [0], [1]], np.uint8),
        test_images=noise(2, 8, 8),
        test_labels=np.array([[5], [6]], np.uint8),
    )
    assert list_splits(tmp_path / "b.npz") == ["train", "test"]
    assert open_images(tmp_path / "b.npz").labels.tolist() == [2, 0, 1]
    test = open_images(tmp_path / "b.npz", split="test")
    assert (test.labels.tolist(), test.names, test.split) == (
        [5, 6],
        ["test/000000", "test/000001"],
        "test",
    )
    assert len(open_images(tmp_path / "b.npz", split="all")) == 5
    np.savez(tmp_path / "c.npz", pictures=noise(3, 8, 8))
    with pytest.raises(ValueError, match="its keys: pictures"):
        open_images(tmp_path / "c.npz")


@pytest.mark.parametrize("shape", [(32, 32, 3), (24, 40, 3), (16, 20, 4)])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
def test_one_colour_image_is_not_taken_for_many_strips_of_grayscale(shape, kind):
    """A photograph as Pillow gives it was read as a stack of images of three pixels."""
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    height, width, channels = shape
    message = f"{channels} channels.* {height} .* {width} x {channels}"
    with pytest.raises(ValueError, match=message):
        open_images(kind(image))
    image_set = open_images(kind(image[None]))
    assert (len(image_set), image_set.channels) == (1, channels)
    many = open_images(kind(image[:, None]))
    assert (len(many), many.channels) == (height, 1)


@pytest.mark.parametrize("shape", [(3, 32, 32), (5, 8, 8), (40, 28, 28), (2, 6, 3), (9, 3, 3)])
def test_stacks_of_grayscale_images_stay_what_they_are(shape):
    assert len(open_images(np.zeros(shape, np.uint8))) == shape[0]
