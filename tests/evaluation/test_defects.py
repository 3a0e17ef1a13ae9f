"""Measures of single images, and the limits beyond which they count."""

import sys

import numpy as np
import pytest
from PIL import Image, ImageFilter

from nearfar.data import open_images
from nearfar.data.measures import measures, opencv
from nearfar.tools.check.image_issues import find_image_issues
from tests.pictures import write_dicom


def texture(seed, side=128, low=40, high=210):
    chance = np.random.default_rng(seed)
    return np.kron(chance.integers(low, high, (side // 4, side // 4)), np.ones((4, 4))).astype(
        np.uint8
    )


def test_measures_are_those_of_the_definitions():
    pixels = np.zeros((100, 100), np.uint8)
    pixels[:30], pixels[30:32] = 255, 100
    deviation, high, white, blur = measures(pixels)
    assert (
        deviation == pytest.approx(pixels.std(), rel=1e-5)
        and high == 255
        and white == pytest.approx(0.3)
    )
    assert 0 <= blur < 0.5  # a sharp edge
    ramp = np.tile(
        np.arange(0, 200, 2, dtype=np.uint8), (100, 1)
    )  # blurring a ramp changes nothing but its ends
    assert measures(ramp)[3] > 0.9
    assert measures(np.full((20, 20), 9, np.uint8)) == (0, 9, 0, 0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (3, 2), (40, 61), (256, 300)])
def test_opencv_has_the_numbers_of_numpy(shape, monkeypatch):
    pytest.importorskip("cv2", reason="pip install 'nearfar[edits]'")
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    images = [pixels, pixels // 16 * 16, pixels // 200 * 255, pixels // 9, np.sort(pixels)]
    by_opencv = [measures(image) for image in images]
    opencv.cache_clear()
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "cv2", None)  # as if it were not installed
        assert [measures(image) for image in images] == by_opencv
    opencv.cache_clear()


def test_blur_grows_with_the_radius():
    image = Image.fromarray(texture(0))
    blur = [
        measures(np.asarray(image.filter(ImageFilter.GaussianBlur(radius))))[3]
        for radius in (0, 1, 2, 4)
    ]
    assert blur == sorted(blur) and blur[-1] > blur[0] + 0.3


def test_only_what_differs_from_the_set_is_a_defect(tmp_path):
    for number in range(40):
        Image.fromarray(texture(number) // 8).save(
            tmp_path / f"{number:02d}.png"
        )  # all of them dark
    Image.fromarray(texture(99)).filter(ImageFilter.GaussianBlur(6)).save(tmp_path / "blurred.png")
    issues = find_image_issues(open_images(tmp_path))
    assert issues["dark"] == [] and issues["odd size"] == [] and issues["nearly uniform"] == []
    assert [row for row, _ in issues["blurred"]] == [40]


def test_arrays_have_no_files_and_are_measured_all_the_same():
    pixels = np.stack([texture(number, 32) for number in range(30)])
    pixels[4], pixels[9] = 77, pixels[9] // 10
    issues = find_image_issues(open_images(pixels))
    assert issues["nearly uniform"] == [(4, 0.0)] and [row for row, _ in issues["dark"]] == [9]
    assert "odd size" not in issues


def test_images_that_pillow_does_not_read_are_measured(tmp_path):
    pytest.importorskip("pydicom")
    for number in range(12):
        write_dicom(tmp_path / f"{number:02d}.dcm", texture(number) // (5 if number == 7 else 1))
    issues = find_image_issues(open_images(tmp_path))
    assert [row for row, _ in issues["dark"]] == [7]
