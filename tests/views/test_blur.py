import pytest
import torch
from torchvision.transforms.v2 import functional as V

from nearfar.views.photometric import blur, kernel_size


@pytest.mark.parametrize(("side", "kernel", "channels"), [(32, 3, 3), (64, 7, 1), (96, 9, 3), (40, 23, 2)])
def test_blur_is_torchvisions_with_a_sigma_for_each_image(pictures, side, kernel, channels):
    images = pictures(4, channels, side)
    sigma = torch.tensor([0.1, 0.6, 1.1, 2.0])
    ours = blur(images / 255, sigma, kernel)
    for image, deviation, mine in zip(images, sigma.tolist(), ours, strict=True):
        theirs = V.gaussian_blur(image, [kernel, kernel], [deviation, deviation])
        assert (mine - theirs / 255).abs().max() <= 2 / 255
        exact = V.gaussian_blur(image / 255, [kernel, kernel], [deviation, deviation])
        torch.testing.assert_close(mine, exact, atol=1e-5, rtol=0)


def test_the_kernel_is_a_tenth_of_the_side():
    assert [kernel_size(side) for side in (8, 32, 64, 96, 160, 224)] == [3, 3, 7, 9, 17, 23]


def test_an_image_of_two_pixels_can_be_blurred():
    flat = torch.full((1, 1, 2, 2), 0.25)
    torch.testing.assert_close(blur(flat, torch.tensor([1.0]), 5), flat)
