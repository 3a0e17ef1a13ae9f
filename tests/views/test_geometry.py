"""Crops, motions and the one resize, against torchvision and Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from nearfar.views import geometry, resize_square, with_channels
from nearfar.views.geometry import affine, crop

STEP = 2 / 255


def boxes(generator, count, height, width):
    tall = torch.randint(2, height + 1, (count,), generator=generator)
    wide = torch.randint(2, width + 1, (count,), generator=generator)
    top = (torch.rand(count, generator=generator) * (height - tall + 1)).long()
    left = (torch.rand(count, generator=generator) * (width - wide + 1)).long()
    return torch.stack([top, left, tall, wide], 1)


@pytest.mark.parametrize(
    ("height", "width", "size", "channels"),
    [
        (8, 8, 8, 1),
        (40, 30, 10, 4),
        (20, 20, 31, 2),
        (96, 96, 96, 3),
        (150, 120, 40, 1),
    ],
)
def test_a_crop_is_torchvisions_resized_crop(pictures, height, width, size, channels):
    images = pictures(12, channels, height, width)
    generator = torch.Generator().manual_seed(0)
    box = boxes(generator, 12, height, width)
    flip = torch.rand(12, generator=generator) < 0.5
    ours = crop(images, box, size, flip)
    assert ours.shape == (12, channels, size, size)
    for image, (top, left, tall, wide), mirrored, mine in zip(
        images, box.tolist(), flip, ours, strict=True
    ):
        theirs = V.resized_crop(image, top, left, tall, wide, [size, size], antialias=True)
        theirs = V.horizontal_flip(theirs) if mirrored else theirs
        assert (mine - theirs / 255).abs().max() <= STEP


def test_products_and_single_resizes_agree_at_a_large_scale(pictures):
    images = pictures(4, 3, 128)
    box = boxes(torch.Generator().manual_seed(3), 4, 128, 128)
    flip = torch.tensor([True, False, True, False])
    products = geometry._crop_product(images, box, 56, flip)
    assert (crop(images, box, 56, flip) - products).abs().max() <= 1 / 255


SIDE = 32
MOTIONS = [  # degrees, right, down (pixels of 32), zoom, shear x, shear y
    (0.0, 0, 0, 1.0, 0.0, 0.0),
    (30.0, 0, 0, 1.0, 0.0, 0.0),
    (-14.0, 3, -5, 1.0, 0.0, 0.0),
    (0.0, 0, 0, 1.3, 0.0, 0.0),
    (0.0, 0, 0, 0.7, 12.0, 0.0),
    (20.0, -2, 4, 0.9, -8.0, 10.0),
]


def test_motion_onto_the_border_is_torchvisions_affine_of_a_padded_image(pictures):
    images = pictures(len(MOTIONS), 3, SIDE)
    motion = torch.tensor(MOTIONS)
    motion[:, 1:3] /= SIDE
    ours = affine(images / 255, motion)
    for image, (angle, right, down, zoom, *shear), mine in zip(images, MOTIONS, ours, strict=True):
        padded = V.pad(image / 255, [SIDE], padding_mode="edge")
        theirs = V.affine(padded, angle, [right, down], zoom, shear, InterpolationMode.BILINEAR)
        assert (mine - V.center_crop(theirs, [SIDE, SIDE])).abs().max() <= 2 / 255


@pytest.mark.parametrize("shape", [(90, 110), (33, 20), (20, 20)])
def test_bytes_become_what_pillow_makes_of_the_centre_square(shape):
    raw = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    side, (top, left) = min(shape), [(length - min(shape)) // 2 for length in shape]
    square = Image.fromarray(raw).crop((left, top, left + side, top + side))
    expected = torch.tensor(np.asarray(square.resize((24, 24), Image.Resampling.BICUBIC))).permute(
        2, 0, 1
    )
    ours = resize_square(torch.from_numpy(raw).permute(2, 0, 1)[None], 24)[0]
    assert ours.dtype == torch.uint8 and (ours.int() - expected.int()).abs().max() <= 1


def test_floats_stay_in_range_and_squares_of_the_size_as_they_are():
    edges = torch.eye(9).repeat(2, 1, 1, 1)  # a bicubic filter overshoots at edges
    assert (resize_square(edges, 20).min(), resize_square(edges, 20).max()) == (0, 1)
    assert torch.equal(resize_square(edges, 9), edges)
    assert resize_square(torch.empty(0, 1, 9, 8), 5).shape == (0, 1, 5, 5)


def test_colour_becomes_grayscale_as_in_pillow_and_grayscale_is_repeated():
    raw = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    expected = torch.tensor(np.asarray(Image.fromarray(raw).convert("L")))
    images = torch.from_numpy(raw).permute(2, 0, 1)[None]
    assert (with_channels(images, 1)[0, 0].int() - expected.int()).abs().max() <= 1
    assert (with_channels(images / 255, 1)[0, 0] * 255 - expected).abs().max() <= 1
    assert torch.equal(with_channels(images[:, :1], 3), images[:, :1].repeat(1, 3, 1, 1))
    with pytest.raises(ValueError, match=r"2 channels .* into 3"):
        with_channels(images[:, :2], 3)
