"""Quarter turns and upside-down flips are exact, and come after the crop and before everything
else.
"""

from dataclasses import replace

import pytest
import torch
from torchvision.transforms.v2 import functional as V

from nearfar.views import View, ViewPlan, make_views, plan
from nearfar.views.sampling import sample_view, uniform_table

WHOLE = View(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)


def made(images, view, seed=0):
    """The views of images, and the parameters they were made with."""
    single, channels, side = ViewPlan("one", (view,)), images.shape[1], images.shape[-1]
    [views] = make_views(
        images, single, torch.Generator().manual_seed(seed), [0.0] * channels, [1.0] * channels
    )
    table = uniform_table(single, torch.Generator().manual_seed(seed), len(images))
    return views, sample_view(view, table[:, 0], side, side)


@pytest.mark.parametrize(("side", "channels"), [(9, 1), (32, 3), (64, 4)])
def test_orientations_are_torchvisions(pictures, side, channels):
    images = pictures(24, channels, side)
    views, sampled = made(images, replace(WHOLE, flip=0.5, flip_vertical=0.5, rot90=0.75))
    for image, view, across, down, quarters in zip(
        images, views, sampled.flip, sampled.flip_vertical, sampled.quarters.tolist(), strict=True
    ):
        image = V.horizontal_flip(image) if across else image
        image = V.vertical_flip(image) if down else image
        assert (view - V.rotate(image, 90 * quarters) / 255).abs().max() <= 1e-6
    assert set(sampled.quarters.tolist()) == {0, 1, 2, 3} and sampled.flip_vertical.any()


def test_a_turned_view_is_the_view_turned(pictures):
    images = pictures(16, 3, 40)
    strong = replace(plan("strong-gamma", 40, 3).views[0], solarize=0.0)
    still, _ = made(images, strong)
    turned, sampled = made(images, replace(strong, rot90=1.0))
    assert sampled.quarters.min() == 1
    for before, after, quarters in zip(still, turned, sampled.quarters.tolist(), strict=True):
        torch.testing.assert_close(after, before.rot90(quarters, (1, 2)), atol=1e-5, rtol=0)
