"""Lines of C libraries on stderr are dropped, those of Python are not."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from nearfar.data import open_images
from nearfar.data.readers import quietly


def test_python_still_writes_and_stderr_comes_back_after_an_error(capfd, monkeypatch):
    with open(2, "w", closefd=False) as real:
        monkeypatch.setattr(sys, "stderr", real)
        with pytest.raises(ValueError, match="broken"), quietly():
            print("from Python", file=sys.stderr)
            raise ValueError("broken")
        assert sys.stderr is real
    assert capfd.readouterr().err == "from Python\n"


def test_odd_images_do_not_write_to_stderr(tmp_path, capfd):
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "TIFF", compression="tiff_adobe_deflate")
    for place in range(20, 4000, 400):
        damaged = bytearray(file.getvalue())
        damaged[place] ^= 255
        (tmp_path / f"{place}.tif").write_bytes(damaged)
    (tmp_path / "good.tif").write_bytes(file.getvalue())
    images = open_images(tmp_path)
    assert "good.tif" in images.names and images.skipped
    assert capfd.readouterr().err == ""
