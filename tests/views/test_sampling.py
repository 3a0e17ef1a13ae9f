import math
from dataclasses import replace

import torch

from nearfar.views import View, ViewPlan, plan, sample_boxes
from nearfar.views.sampling import BOX_NUMBERS, sample_view, uniform_table

COUNT = 20_000


def sampled(view, side=32, count=COUNT, seed=0):
    table = uniform_table(ViewPlan("one", (view,)), torch.Generator().manual_seed(seed), count)
    return sample_view(view, table[:, 0], side, side)


def close(share, expected):
    """Within five standard deviations of a share of COUNT samples."""
    return (
        abs(float(share) - expected)
        < 5 * math.sqrt(max(expected * (1 - expected), 1e-9) / COUNT) + 1e-9
    )


FULL = View(
    flip=0.3,
    flip_vertical=0.4,
    rot90=0.6,
    affine=0.6,
    degrees=20.0,
    translate=0.1,
    zoom=(0.8, 1.1),
    shear=5.0,
    jitter=0.8,
    brightness=0.4,
    contrast=0.5,
    saturation=1.5,
    hue=0.1,
    grayscale=0.2,
    blur=0.5,
    sigma=(0.1, 2.0),
    solarize=0.25,
    noise=0.7,
    noise_std=(0.02, 0.1),
)


def test_probabilities_are_those_of_the_view():
    d = sampled(FULL)
    for name in ("flip", "flip_vertical", "affine", "grayscale", "blur", "solarize", "noise"):
        assert close(getattr(d, name).float().mean(), getattr(FULL, name)), name
    for quarters in (1, 2, 3):
        assert close((d.quarters == quarters).float().mean(), FULL.rot90 / 3), quarters
    assert close((d.hue != 0).float().mean(), FULL.jitter)
    assert close((d.factors != 1).any(1).float().mean(), FULL.jitter)


def test_amounts_fill_their_ranges():
    d = sampled(FULL)
    jittered = d.hue != 0
    amounts = {
        "brightness": (d.factors[jittered, 0], 0.6, 1.4),
        "contrast": (d.factors[jittered, 1], 0.5, 1.5),
        "saturation": (d.factors[jittered, 2], 0.0, 2.5),
        "hue": (d.hue[jittered], -0.1, 0.1),
        "sigma": (d.sigma, 0.1, 2.0),
        "noise": (d.noise_std, 0.02, 0.1),
        "degrees": (d.motion[:, 0], -20, 20),
        "right": (d.motion[:, 1], -0.1, 0.1),
        "down": (d.motion[:, 2], -0.1, 0.1),
        "zoom": (d.motion[:, 3], 0.8, 1.1),
        "shear x": (d.motion[:, 4], -5, 5),
        "shear y": (d.motion[:, 5], -5, 5),
    }
    for name, (values, low, high) in amounts.items():
        width = high - low
        assert low - 1e-5 <= values.min() <= low + 0.01 * width, name
        assert high - 0.01 * width <= values.max() <= high + 1e-5, name
        assert abs(values.mean() - (low + high) / 2) < 0.015 * width, name
    assert (
        torch.corrcoef(torch.stack([v[: int(jittered.sum())] for v, _, _ in amounts.values()]))
        .triu(1)
        .abs()
        .max()
        < 0.05
    )


def test_all_orders_of_the_four_changes_come_equally_often():
    d = sampled(FULL)
    # 0..2, 0..2 and 0..3 tell the 24 orders apart
    kind = d.order[:, 0] * 12 + d.order[:, 1] * 4 + d.hue_place
    counts = torch.bincount(kind, minlength=36)
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert (counts / COUNT - 1 / 24).abs().max() < 0.01


def test_crops_follow_the_distribution_of_torchvision():
    from torchvision.transforms.v2 import RandomResizedCrop

    transform = RandomResizedCrop(32, scale=(0.2, 1.0))
    torch.manual_seed(0)
    image = torch.zeros(1, 40, 25)
    rows = [transform.make_params([image]) for _ in range(4000)]
    theirs = torch.tensor(
        [[row[k] for k in ("top", "left", "height", "width")] for row in rows]
    ).double()
    uniform = torch.rand(
        4000, BOX_NUMBERS, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    ours = sample_boxes(uniform, 40, 25, (0.2, 1.0), (3 / 4, 4 / 3)).double()
    assert (ours.mean(0) - theirs.mean(0)).abs().max() < 0.4
    assert (ours.std(0) - theirs.std(0)).abs().max() < 0.3


def test_an_image_too_narrow_for_any_crop_gives_the_largest_central_box():
    uniform = torch.rand(1, BOX_NUMBERS, generator=torch.Generator(), dtype=torch.float64)
    boxes = [
        sample_boxes(uniform, *size, (1.0, 1.0), (3 / 4, 4 / 3)) for size in ((10, 100), (90, 9))
    ]
    assert torch.cat(boxes).tolist() == [[0, 43, 10, 13], [39, 0, 12, 9]]


def test_views_and_images_are_sampled_independently():
    two = plan("strong", 32, 3)
    table = uniform_table(two, torch.Generator().manual_seed(0), 2000)
    first, second = (sample_view(two.views[i], table[:, i], 32, 32) for i in range(2))
    assert len(first.box.unique(dim=0)) > 1000
    assert len(first.factors.unique(dim=0)) > 1500
    assert abs(torch.corrcoef(torch.stack([first.factors[:, 0], second.factors[:, 0]]))[0, 1]) < 0.1


def test_the_eight_orientations_come_equally_often():
    """Of a microscope's images, and independent of what else is sampled from the same columns."""
    d = sampled(replace(FULL, flip=0.5, flip_vertical=0.0, rot90=0.75))
    for mirrored in (False, True):
        for quarters in range(4):
            orientation = (d.flip == mirrored) & (d.quarters == quarters)
            assert close(orientation.float().mean(), 1 / 8)
            assert close((orientation & d.affine).float().mean(), FULL.affine / 8)
    d = sampled(replace(FULL, flip=0.5, flip_vertical=0.5))
    assert close((d.flip & d.flip_vertical).float().mean(), 1 / 4)


def test_samples_are_those_of_before_quarter_turns():
    """Written by the code before `rot90` and `flip_vertical`: a run of that time goes on with its
    own numbers.
    """
    strong = plan("strong", 32, 3)
    table = uniform_table(strong, torch.Generator().manual_seed(7), 3)
    assert table.shape == (3, 2, 46)
    d = sample_view(strong.views[0], table[:, 0], 32, 32)
    assert d.box.tolist() == [[8, 12, 24, 18], [12, 7, 19, 22], [1, 9, 18, 23]]
    assert d.flip.tolist() == [False, False, True]
    factors = [
        [0.670837, 1.115075, 1.174051],
        [0.605876, 0.668861, 1.371820],
        [1.178494, 1.231788, 1.045443],
    ]
    torch.testing.assert_close(d.factors, torch.tensor(factors), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        d.hue, torch.tensor([-0.031298, 0.071311, 0.040312]), atol=1e-6, rtol=0
    )
    assert d.noise_seed.tolist() == [1583440276466811, 5655038117985546, 8997294791670471]


def test_some_images_keep_their_colours_in_all_views_and_the_others_are_sampled_as_without():
    changing = View(
        size=8,
        jitter=1.0,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        hue=0.1,
        grayscale=0.3,
        drop=0.4,
    )
    some = uniform_table(
        ViewPlan("some", (changing,) * 3, 0.5), torch.Generator().manual_seed(0), 4000
    )
    none = uniform_table(ViewPlan("none", (changing,) * 3), torch.Generator().manual_seed(0), 4000)
    kept = torch.ones(4000, dtype=torch.bool)
    for view in range(3):
        with_, without = (sample_view(changing, table[:, view], 32, 32) for table in (some, none))
        same = (with_.factors == 1).all(1) & (with_.hue == 0) & ~with_.grayscale & ~with_.drop
        kept &= same
        for name in ("factors", "hue", "grayscale", "drop"):
            assert torch.equal(getattr(with_, name)[~same], getattr(without, name)[~same])
        assert torch.equal(with_.box, without.box) and torch.equal(with_.flip, without.flip)
        assert torch.equal(kept, same)  # the same images in all views
    assert abs(float(kept.float().mean()) - 0.5) < 4 * 0.5 / 4000**0.5
