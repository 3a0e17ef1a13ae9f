"""Views from a function of the user's own."""

import pickle

import pytest
import torch
from torchvision.transforms import v2

from nearfar.views import ViewFunction, ViewPlan, make_views, plan

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
TRANSFORM = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])


def torchvision_views(images):
    """One crop for the whole batch, which is what torchvision's transforms do with a batch."""
    return [TRANSFORM(images), TRANSFORM(images).float() / 255]


def noisy(images):
    """Every image with noise of its own, changed in place."""
    images += torch.randint(0, 50, images.shape, dtype=torch.uint8)
    return [images, images / 255, images[:, :, :8, :8]]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_views_are_what_the_function_gives_normalised(pictures):
    images = pictures(5, 3, 32)
    views = ViewFunction(torchvision_views, 32, 3)
    assert (len(views), views.name, views.crops(32)) == (2, "torchvision_views", None)
    made = make_views(images, views, seeded(3), MEAN, STD)
    torch.manual_seed(int(torch.randint(2**62, (), generator=seeded(3))))
    first, second = torchvision_views(images)
    for ours, theirs in zip(made, (first / 255, second), strict=True):
        torch.testing.assert_close(ours, v2.functional.normalize(theirs, MEAN, STD), atol=1e-5, rtol=1e-5)


def test_only_the_generator_decides_and_the_global_one_is_put_back(pictures):
    images, views = pictures(4, 3, 32), ViewFunction(noisy, 32, 3)
    before, generator = images.clone(), seeded(1)
    state = torch.get_rng_state()
    first, second = (make_views(images, views, generator, MEAN, STD) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(images, before)
    torch.manual_seed(99)
    again = make_views(images, views, seeded(1), MEAN, STD)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])


def test_parts_of_a_batch_do_not_share_their_numbers(pictures):
    """The same images at two places of a batch: with one seed for both they would get the same noise."""
    images, views = pictures(4, 3, 32)[:2], ViewFunction(noisy, 32, 3)
    parts = [make_views(images, views, seeded(), MEAN, STD, slice(at, at + 2), 8)[0] for at in (0, 2, 2)]
    assert not torch.equal(parts[0], parts[1]) and torch.equal(parts[1], parts[2])


@pytest.mark.parametrize("views", [ViewFunction(noisy, 32, 3), plan("multi-crop", 32, 3)], ids=["function", "plan"])
def test_picked_views_are_made_alone(pictures, views):
    one = views.pick([2])
    assert len(one) == 1 and one.name == views.name
    [small] = make_views(pictures(3, 3, 32), one, seeded(), MEAN, STD)
    sizes = {"noisy": 8, "multi-crop": 14}
    assert small.shape == (3, 3, sizes[views.name], sizes[views.name])
    assert len(views.pick([0, 2]).pick([1])) == 1
    if isinstance(views, ViewFunction):
        whole = make_views(pictures(3, 3, 32), views, seeded(), MEAN, STD)
        assert torch.equal(small, whole[2])
        assert torch.equal(make_views(pictures(3, 3, 32), views.pick([1, 2]).pick([1]), seeded(), MEAN, STD)[0], small)


def test_a_function_that_can_be_pickled_reaches_another_process(pictures):
    views = ViewFunction(torchvision_views, 32, 3, name="mine")
    again = pickle.loads(pickle.dumps(views))
    made = [make_views(pictures(3, 3, 32), each, seeded(), MEAN, STD) for each in (views, again)]
    assert again.name == "mine" and torch.equal(made[0][1], made[1][1])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda images: images, "must return a list of tensors, not a Tensor"),
        (lambda images: [], "must return a list"),
        (lambda images: [images[:1]], r"must give views \[2, 3, side, side\] of these images, not \[1, 3, 16, 16\]"),
        (lambda images: [images[:, :, :8]], r"not \[2, 3, 8, 16\]"),
        (lambda images: [images.numpy()], "not a ndarray"),
        (lambda images: [images.int()], "uint8 or floats in 0..1, not torch.int32"),
        (lambda images: [images.float()], "gives floats from 0 to 255: give them in 0..1"),
        (lambda images: [(images / 255 - 0.5) / 0.2], "not normalised"),
        (lambda images: 1 / 0, "fails: division by zero"),
    ],
)
def test_functions_that_give_no_views_are_refused(function, words):
    with pytest.raises(ValueError, match=words) as error:
        ViewFunction(function, 16, 3)
    assert "\n" not in str(error.value)


def test_crops_cannot_be_given_to_a_function(pictures):
    with pytest.raises(ValueError, match="from whole images, not from crops"):
        make_views([pictures(2, 3, 32)] * 2, ViewFunction(torchvision_views, 32, 3), seeded(), MEAN, STD)


def test_a_plan_is_written_as_plain_values_and_read_back():
    import yaml

    for name in ("strong", "sce-multi-crop", "grayscale"):
        views = plan(name, 32, 1)
        assert ViewPlan.from_dict(yaml.safe_load(yaml.safe_dump(views.to_dict()))) == views
    short = ViewPlan.from_dict({"views": [{"scale": [0.5, 1], "flip": 0}, {}]})
    assert short.views[0].scale == (0.5, 1) and short.views[1].flip == 0.5 and short.views[1].size is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"views": [{}, {"scal": [0, 1]}]}, "view 1 of the plan has no 'scal'; did you mean 'scale'"),
        ({"view": []}, "a view plan has no 'view'; did you mean 'views'"),
        ({"name": "x"}, "needs 'views', a list"),
        ({"views": "strong"}, "needs 'views', a list"),
        ({"views": []}, "at least one view"),
        ({"views": ["strong"]}, "view 0 of the plan is given as names and values, got 'strong'"),
        ({"views": [{"scale": 0.5}]}, r"view 0 of the plan: scale is a range \[low, high\], got 0.5"),
        ({"views": [{"flip": "often"}]}, "flip is a number, got 'often'"),
        ({"views": [{"flip": 2}]}, "probability from 0 to 1"),
        ("strong", "a view plan is given as names and values"),
    ],
)
def test_plain_values_that_are_no_plan_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        ViewPlan.from_dict(values)
