"""The one resize, against Pillow, and the one change of channels."""

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.views import resize_square, with_channels


@pytest.mark.parametrize("shape", [(90, 110), (33, 20), (20, 20)])
def test_bytes_become_what_pillow_makes_of_the_centre_square(shape):
    raw = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    side, (top, left) = min(shape), [(length - min(shape)) // 2 for length in shape]
    square = Image.fromarray(raw).crop((left, top, left + side, top + side))
    expected = torch.tensor(np.asarray(square.resize((24, 24), Image.Resampling.BICUBIC))).permute(2, 0, 1)
    ours = resize_square(torch.from_numpy(raw).permute(2, 0, 1)[None], 24)[0]
    assert ours.dtype == torch.uint8 and (ours.int() - expected.int()).abs().max() <= 1


def test_floats_stay_in_range_and_squares_of_the_size_as_they_are():
    edges = torch.eye(9).repeat(2, 1, 1, 1)  # a bicubic filter overshoots at edges
    assert (resize_square(edges, 20).min(), resize_square(edges, 20).max()) == (0, 1)
    assert torch.equal(resize_square(edges, 9), edges)
    assert resize_square(torch.empty(0, 1, 9, 8), 5).shape == (0, 1, 5, 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_resizes_bytes_as_the_cpu_does():
    images = torch.randint(0, 256, (4, 3, 90, 110), dtype=torch.uint8)
    assert (resize_square(images.cuda(), 32).cpu().int() - resize_square(images, 32).int()).abs().max() <= 1


def test_colour_becomes_grey_as_in_pillow_and_grey_is_repeated():
    raw = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    expected = torch.tensor(np.asarray(Image.fromarray(raw).convert("L")))
    images = torch.from_numpy(raw).permute(2, 0, 1)[None]
    assert (with_channels(images, 1)[0, 0].int() - expected.int()).abs().max() <= 1
    assert (with_channels(images / 255, 1)[0, 0] * 255 - expected).abs().max() <= 1
    assert torch.equal(with_channels(images[:, :1], 3), images[:, :1].repeat(1, 3, 1, 1))
    with pytest.raises(ValueError, match="2 channels cannot be made into 3"):
        with_channels(images[:, :2], 3)
