import pytest
import torch
from torchvision.transforms.v2 import functional as V

from nearfar.views.geometry import crop, resize_matrix

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
        (32, 32, 32, 3),
        (8, 8, 8, 1),
        (40, 30, 10, 4),
        (48, 48, 5, 3),
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
    for image, (top, left, tall, wide), mirrored, mine in zip(images, box.tolist(), flip, ours, strict=True):
        theirs = V.resized_crop(image, top, left, tall, wide, [size, size], antialias=True)
        theirs = V.horizontal_flip(theirs) if mirrored else theirs
        assert (mine - theirs / 255).abs().max() <= STEP


def test_products_and_single_resizes_agree_at_a_large_scale(pictures):
    from nearfar.views import geometry as module

    images = pictures(4, 3, 128)
    box = boxes(torch.Generator().manual_seed(3), 4, 128, 128)
    flip = torch.tensor([True, False, True, False])
    products = module._crop_product(images, box, 56, flip)
    assert (crop(images, box, 56, flip) - products).abs().max() <= 1 / 255


def test_the_whole_image_at_its_own_size_is_the_image(pictures):
    images = pictures(3, 3, 16)
    box = torch.tensor([[0, 0, 16, 16]]).expand(3, 4)
    torch.testing.assert_close(crop(images, box, 16, torch.zeros(3, dtype=torch.bool)), images / 255)


def test_resize_weights_sum_to_one_and_stay_inside_the_stretch():
    weight = resize_matrix(torch.tensor([5, 0, 9]), torch.tensor([6, 20, 1]), 20, 7)
    torch.testing.assert_close(weight.sum(2), torch.ones(3, 7))
    assert (weight >= 0).all()
    assert weight[0, :, :5].abs().max() == 0
    assert weight[0, :, 11:].abs().max() == 0
    torch.testing.assert_close(weight[2, :, 9], torch.ones(7))
