"""Views of floats, and of images with other channels than grayscale and colour."""

import pytest
import torch

from nearfar.views import View, ViewPlan, fit_views, from_range, make_views, plan


def seeded():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("channels", [1, 2, 3, 13])
def test_floats_give_the_views_of_their_bytes(side, channels):
    images = torch.randint(0, 256, (6, channels, side, side), dtype=torch.uint8, generator=seeded())
    moments = [0.5] * channels, [0.25] * channels
    for name in ("channels", "strong+weak"):
        the_plan = plan(name, side, channels)
        narrow = make_views(images, the_plan, seeded(), *moments)
        wide = make_views(images.float() / 255, the_plan, seeded(), *moments)
        for view, other in zip(narrow, wide, strict=True):
            assert view.shape == (6, channels, side, side)
            # a CPU crops large uint8 images to whole numbers, and contrast may double that
            assert (view - other).abs().max() < (6 / 255 / 0.25 if side > 48 else 1e-4)


def test_one_channel_is_lost_and_becomes_its_mean():
    images = torch.rand(200, 4, 8, 8, generator=seeded())
    still = dict(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    [view] = make_views(
        images, ViewPlan("drop", (View(drop=0.5, **still),)), seeded(), [0.0] * 4, [1.0] * 4
    )
    flat = view.flatten(2).std(2) < 1e-6
    assert flat.sum(1).max() == 1 and 70 < flat.sum() < 130
    assert (flat.sum(0) > 8).all()  # each of the four in its turn
    torch.testing.assert_close(view.mean((2, 3)), images.mean((2, 3)))
    torch.testing.assert_close(view[~flat], images[~flat])
    [grayscale] = make_views(
        images[:, :1], ViewPlan("drop", (View(drop=1.0, **still),)), seeded(), [0.0], [1.0]
    )
    torch.testing.assert_close(grayscale, images[:, :1])


def test_other_channels_get_views_that_mix_none():
    assert fit_views(("strong", "weak", "small"), 64, 13) == (
        "channels",
        "channels-weak",
        "channels-small",
    )
    assert fit_views(("strong", "weak"), 32, 2) == ("channels", "channels-weak")
    strong, weak = plan("channels+channels-weak", 64, 13).views
    assert strong.hue == strong.saturation == strong.grayscale == 0 < strong.drop
    assert weak.jitter == weak.drop == weak.blur == weak.noise == 0


def test_a_range_is_cut_at_its_ends():
    numbers = torch.tensor([[0.0, 50.0], [100.0, 200.0]]).view(2, 1, 2)
    assert from_range(numbers, [0, 100, 100, 300]).flatten().tolist() == [0, 0.5, 0, 0.5]
    assert from_range(numbers, [50, 150]).flatten().tolist() == [0, 0, 0.5, 1]
    with pytest.raises(ValueError, match=r"2 channels .*2 or 4 numbers"):
        from_range(numbers, [0, 1, 0, 1, 0, 1])
