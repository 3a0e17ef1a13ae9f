import pytest
import torch
from torchvision.transforms.v2 import functional as V

from nearfar.views import View, ViewPlan, make, make_views, plan, plan_names
from nearfar.views.make import apply_views
from nearfar.views.sampling import sample_view, sample_views, uniform_table


def unit(channels):
    return (0.0,) * channels, (1.0,) * channels


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", plan_names())
def test_every_plan_runs_on_every_kind_of_image(pictures, name):
    for size, channels in ((8, 1), (32, 3), (64, 4)):
        images = pictures(3, channels, size)
        the_plan = plan(name, size, channels)
        views = make_views(images, the_plan, seeded(), [0.5] * channels, [0.25] * channels)
        assert [view.shape for view in views] == [
            (3, channels, v.size, v.size) for v in the_plan.views
        ]
        for view in views:
            assert view.dtype == torch.float32
            assert view.isfinite().all()
            assert view.min() >= -2.0001
            assert view.max() <= 2.0001


def test_a_view_is_the_chain_of_torchvisions_functions(pictures):
    images = pictures(24, 3, 40)
    view = View(
        scale=(0.2, 1.0),
        jitter=0.8,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        hue=0.1,
        grayscale=0.3,
        blur=0.5,
        solarize=0.3,
    )
    single = ViewPlan("one", (view,))
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    ours = make_views(images, single, seeded(), mean, std)[0]
    sampled = sample_view(view, uniform_table(single, seeded(), 24)[:, 0], 40, 40)
    for i, image in enumerate(images):
        x = V.resized_crop(image / 255, *sampled.box[i].tolist(), [40, 40], antialias=True)
        x = V.horizontal_flip(x) if sampled.flip[i] else x
        adjust = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation)
        steps = [(adjust[k], float(sampled.factors[i, k])) for k in sampled.order[i].tolist()]
        steps.insert(int(sampled.hue_place[i]), (V.adjust_hue, float(sampled.hue[i])))
        for step, amount in steps:
            x = step(x, amount)
        x = V.rgb_to_grayscale(x, 3) if sampled.grayscale[i] else x
        x = V.gaussian_blur(x, [5, 5], [float(sampled.sigma[i])] * 2) if sampled.blur[i] else x
        x = V.solarize(x, 0.5) if sampled.solarize[i] else x
        off = (ours[i] - V.normalize(x, mean, std)).abs() * torch.tensor(std)[:, None, None]
        # around the threshold of solarize both sides are 0.5, but a rounding may put them on either
        assert off.max() <= 1e-3, i


def test_the_same_seed_gives_the_same_views_and_the_generator_moves_on(pictures):
    images, strong = pictures(6, 3, 32), plan("strong", 32, 3)
    before, generator = images.clone(), seeded(1)
    first = make_views(images, strong, generator, *unit(3))
    second = make_views(images, strong, generator, *unit(3))
    again = make_views(images, strong, seeded(1), *unit(3))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], first[1])
    make_views([images, images], strong, seeded(1), *unit(3))
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("name", "size", "channels"),
    [("strong-gamma", 32, 3), ("grayscale", 28, 1), ("multi-crop", 64, 3)],
)
def test_rows_of_a_batch_are_what_the_whole_batch_gives_them(pictures, name, size, channels):
    images, the_plan = pictures(10, channels, size), plan(name, size, channels)
    full = make_views(images, the_plan, seeded(2), *unit(channels))
    part = make_views(images[3:7], the_plan, seeded(2), *unit(channels), rows=slice(3, 7), total=10)
    for whole, some in zip(full, part, strict=True):
        torch.testing.assert_close(some, whole[3:7], atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [None, slice(2, 6)])
def test_batches_sampled_together_have_the_views_of_each_alone(pictures, rows):
    """Each batch by its own generator: those of steps ahead are what each step would sample."""
    images, the_plan = pictures(6, 3, 32), plan("microscope+microscope-small", 32, 3)
    own = images if rows is None else images[rows]
    sizes = [(32, 32)] * 2
    together = sample_views(the_plan, [seeded(s) for s in range(3)], 6, sizes, rows)
    assert len(together) == 3 * len(own)
    for step in range(3):
        sampled = together[step * len(own) : (step + 1) * len(own)]
        ahead = apply_views(own, the_plan, sampled, *unit(3))
        alone = make_views(own, the_plan, seeded(step), *unit(3), rows, 6)
        assert all(map(torch.equal, ahead, alone))
        part = apply_views(own[1:3], the_plan, sampled[1:3], *unit(3))
        assert all(torch.allclose(a, b[1:3], atol=1e-5) for a, b in zip(part, ahead, strict=True))


def test_a_batch_in_many_chunks_is_a_batch_in_one(pictures, monkeypatch):
    images, the_plan = pictures(9, 3, 32), plan("strong-gamma", 32, 3)
    whole = make_views(images, the_plan, seeded(), *unit(3))
    monkeypatch.setattr(make, "_CPU_VALUES", 2 * 3 * 32 * 32)
    many = make_views(images, the_plan, seeded(), *unit(3))
    for a, b in zip(whole, many, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["sce-multi-crop", "microscope+microscope-small"])
def test_crops_made_elsewhere_end_as_the_same_views(pictures, name):
    images = pictures(6, 3, 72)
    the_plan = plan(name, 72, 3)
    full = make_views(images, the_plan, seeded(3), *unit(3))
    table = uniform_table(the_plan, seeded(3), 6)
    boxes = [sample_view(view, table[:, i], 72, 72).box for i, view in enumerate(the_plan.views)]
    crops = [
        torch.stack(
            [
                V.resized_crop(image, *box, [view.size, view.size], antialias=True)
                for image, box in zip(images, boxes[i].tolist(), strict=True)
            ]
        )
        for i, view in enumerate(the_plan.views)
    ]
    views = make_views(crops, the_plan, seeded(3), *unit(3))
    for a, b in zip(full, views, strict=True):
        assert (a - b).abs().max() < 8 / 255  # contrast and saturation make more of half a level
        assert (a - b).abs().mean() < 0.5 / 255


WRONG = {  # images, mean, std; what is said
    "0..1, not normalised": lambda images: (images / 127.5 - 1, *unit(3)),
    "give the raw pixels": lambda images: (images.int(), *unit(3)),
    r"\[batch, channels, height, width\]": lambda images: (images[0], *unit(3)),
    "mean has 1 numbers": lambda images: (images, (0.0,), (1.0,) * 3),
    "std must be positive": lambda images: (images, (0.0,) * 3, (1.0, 0.0, 1.0)),
    "give the view a size": lambda images: (images[..., :16], *unit(3)),
}


def test_crops_that_do_not_fit_the_plan_are_refused(pictures):
    two = plan("sce-multi-crop", 72, 3)
    crops = [pictures(4, 3, view.size or 72) for view in two.views]
    with pytest.raises(ValueError, match=rf"{len(two)} views, and crops for 1"):
        make_views(crops[:1], two, seeded(), *unit(3))
    crops[-1] = pictures(4, 3, 40)
    with pytest.raises(ValueError, match=r"\[4, 3, "):
        make_views(crops, two, seeded(), *unit(3))


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_is_refused_with_what_to_do(pictures, message):
    images, mean, std = WRONG[message](pictures(4, 3, 32))
    with pytest.raises(ValueError, match=message):
        make_views(images, ViewPlan("one", (View(),)), seeded(), mean, std)
