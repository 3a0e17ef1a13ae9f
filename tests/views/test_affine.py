import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from nearfar.views.geometry import affine

SIDE = 32
MOTIONS = [  # degrees, right, down (pixels of 32), zoom, shear x, shear y
    (0.0, 0, 0, 1.0, 0.0, 0.0),
    (30.0, 0, 0, 1.0, 0.0, 0.0),
    (-14.0, 3, -5, 1.0, 0.0, 0.0),
    (0.0, 0, 0, 1.3, 0.0, 0.0),
    (0.0, 0, 0, 0.7, 12.0, 0.0),
    (20.0, -2, 4, 0.9, -8.0, 10.0),
]


def moved(images):
    motion = torch.tensor(MOTIONS)
    motion[:, 1:3] /= SIDE
    return motion


@pytest.mark.parametrize("channels", [1, 3])
def test_motion_onto_black_is_torchvisions_affine(pictures, channels):
    images = pictures(len(MOTIONS), channels, SIDE)
    ours = affine(images / 255, moved(images), edge="zeros")
    for image, (angle, right, down, zoom, *shear), mine in zip(images, MOTIONS, ours, strict=True):
        theirs = V.affine(image / 255, angle, [right, down], zoom, shear, InterpolationMode.BILINEAR)
        assert (mine - theirs).abs().max() <= 2 / 255


def test_motion_onto_the_border_is_torchvisions_affine_of_a_padded_image(pictures):
    images = pictures(len(MOTIONS), 3, SIDE)
    ours = affine(images / 255, moved(images))
    for image, (angle, right, down, zoom, *shear), mine in zip(images, MOTIONS, ours, strict=True):
        padded = V.pad(image / 255, [SIDE], padding_mode="edge")
        theirs = V.affine(padded, angle, [right, down], zoom, shear, InterpolationMode.BILINEAR)
        assert (mine - V.center_crop(theirs, [SIDE, SIDE])).abs().max() <= 2 / 255
