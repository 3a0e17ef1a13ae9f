"""Colour, blur and noise, within 2 of 255 of torchvision."""

import pytest
import torch
from torchvision.transforms.v2 import functional as V

from nearfar.views.photometric import blur, jitter_, kernel_size, noise_, turn_hue

STEP = 2 / 255
NOT = torch.zeros(6)
FACTORS = [0.0, 0.2, 0.7, 1.0, 1.4, 2.0]
ADJUST = [V.adjust_brightness, V.adjust_contrast, V.adjust_saturation]


def one_factor(which):
    factors = torch.ones(6, 3)
    factors[:, which] = torch.tensor(FACTORS)
    return factors


def same_order(count):
    return torch.arange(3).expand(count, 3), torch.full((count,), 3)


@pytest.mark.parametrize(("which", "channels"), [(0, 1), (1, 1), (0, 3), (1, 3), (2, 3)])
def test_each_factor_is_torchvisions_adjustment(pictures, which, channels):
    images = pictures(6, channels, 32)
    ours = jitter_(images / 255, one_factor(which), NOT, *same_order(6))
    for image, factor, mine in zip(images, FACTORS, ours, strict=True):
        assert (mine - ADJUST[which](image / 255, factor)).abs().max() <= STEP
        assert (mine - ADJUST[which](image, factor) / 255).abs().max() <= STEP


def test_saturation_and_hue_leave_other_channel_counts_alone(pictures):
    images = pictures(6, 4, 16) / 255
    changed = jitter_(images.clone(), one_factor(2), torch.full((6,), 0.3), *same_order(6))
    contrast = jitter_(images.clone(), one_factor(1), NOT, *same_order(6))
    # the rest of a blend with factor f: f x + (1 - f) x's mean over all channels, here for f = 0.7
    expected = (0.7 * images[2] + 0.3 * images[2].mean()).clamp(0, 1)
    torch.testing.assert_close(contrast[2], expected)
    torch.testing.assert_close(changed, images)


def test_hue_is_torchvisions(pictures):
    images = pictures(9, 3, 32)
    turns = [-0.5, -0.3, -0.1, -0.01, 0.0, 0.05, 0.1, 0.37, 0.5]
    ours = turn_hue(images / 255, torch.tensor(turns))
    for image, turn, mine in zip(images, turns, ours, strict=True):
        assert (mine - V.adjust_hue(image / 255, turn)).abs().max() <= STEP
        assert (mine - V.adjust_hue(image, turn) / 255).abs().max() <= STEP


def test_hue_at_the_corners_of_the_colour_cube_and_between_is_torchvisions():
    level = torch.linspace(0, 1, 9)
    cube = torch.stack(torch.meshgrid(level, level, level, indexing="ij")).view(1, 3, 27, 27)
    for turn in (-0.5, -1 / 3, -0.12, 0.0, 0.2, 1 / 6, 0.5):
        ours = turn_hue(cube, torch.tensor([turn]))
        torch.testing.assert_close(ours, V.adjust_hue(cube, turn), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("side", "kernel", "channels"), [(32, 3, 3), (64, 7, 1), (96, 9, 3), (40, 23, 2)]
)
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


def test_noise_has_each_images_own_deviation_and_is_clamped():
    images = torch.full((3, 3, 40, 40), 0.5)
    noisy = noise_(images.clone(), torch.tensor([0.0, 0.05, 2.0]), torch.tensor([1, 2, 3]))
    torch.testing.assert_close(noisy[0], images[0])
    assert abs(noisy[1].std() - 0.05) < 0.003
    assert abs(noisy[1].mean() - 0.5) < 0.003
    assert noisy[2].min() == 0
    assert noisy[2].max() == 1


def test_noise_depends_on_the_seed_alone():
    images = torch.full((2, 1, 8, 8), 0.5)
    deviation = torch.tensor([0.1, 0.1])
    both = noise_(images.clone(), deviation, torch.tensor([7, 8]))
    alone = noise_(images[:1].clone(), deviation[:1], torch.tensor([8]))
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])
