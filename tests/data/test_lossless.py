"""Files that hold their pixels exactly."""

import io

import numpy as np
import pytest
from PIL import Image

from nearfar.data.pictures import is_lossless

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def saved(form, mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("GIF", {"mode": "P"}),
        ("BMP", {}),
        ("PPM", {}),
        ("TGA", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": True, "mode": "RGBA"}),
        ("WEBP", {"lossless": True, "exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}),
    ],
)
def test_lossless_files(form, options, tmp_path):
    data = saved(form, **options)
    assert is_lossless(data)
    (tmp_path / "image").write_bytes(data)
    assert is_lossless(str(tmp_path / "image"))
    assert isinstance(is_lossless(data[: len(data) // 2]), bool)  # cut off


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"quality": 100}),
        ("WEBP", {}),
        ("WEBP", {"mode": "RGBA"}),
        ("TIFF", {"compression": "jpeg"}),
        ("JPEG2000", {}),
    ],
)
def test_lossy_files(form, options):
    assert not is_lossless(saved(form, **options))


def test_animated_webp_files_are_told_by_their_first_frame():
    frames = [Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)]
    for lossless in (True, False):
        file = io.BytesIO()
        frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], lossless=lossless)
        assert is_lossless(file.getvalue()) == lossless
    assert not is_lossless(b"no image")
