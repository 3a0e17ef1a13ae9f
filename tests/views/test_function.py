"""Views from a function of the user's own."""

import pickle

import pytest
import torch
from torchvision.transforms import v2

from nearfar.views import ViewFunction, make_views, plan

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
        torch.testing.assert_close(
            ours, v2.functional.normalize(theirs, MEAN, STD), atol=1e-5, rtol=1e-5
        )


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
    """The same images at two places of a batch: with one seed for both they would get the same
    noise.
    """
    images, views = pictures(4, 3, 32)[:2], ViewFunction(noisy, 32, 3)
    parts = [
        make_views(images, views, seeded(), MEAN, STD, slice(at, at + 2), 8)[0] for at in (0, 2, 2)
    ]
    assert not torch.equal(parts[0], parts[1]) and torch.equal(parts[1], parts[2])


def test_picked_views_are_made_alone(pictures):
    views = ViewFunction(noisy, 32, 3)
    *_, small = make_views(pictures(3, 3, 32), views, seeded(), MEAN, STD)
    for picked in (views.pick([2]), views.pick([1, 2]).pick([1])):
        [view] = make_views(pictures(3, 3, 32), picked, seeded(), MEAN, STD)
        assert view.shape == (3, 3, 8, 8) and torch.equal(view, small)
    assert [view.size for view in plan("multi-crop", 32, 3).pick([0, 2]).views] == [32, 14]


def test_a_function_that_can_be_pickled_reaches_another_process(pictures):
    views = ViewFunction(torchvision_views, 32, 3)
    again = pickle.loads(pickle.dumps(views))
    made = [make_views(pictures(3, 3, 32), each, seeded(), MEAN, STD) for each in (views, again)]
    assert again.name == "torchvision_views" and torch.equal(made[0][1], made[1][1])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda images: images, "not a Tensor"),
        (lambda images: [], "not 0 views"),
        (
            lambda images: [images[:1]],
            r"not torch.uint8 \[1, 3, 16, 16\]",
        ),
        (lambda images: [images[:, :, :8]], r"torch.uint8 \[2, 3, 8, 16\]"),
        (lambda images: [images.numpy()], "not a ndarray"),
        (lambda images: [images.int()], "not torch.int32"),
        (lambda images: [images.float()], "from 0 to 255"),
        (lambda images: [(images / 255 - 0.5) / 0.2], "not normalised"),
        (lambda images: 1 / 0, "fails: division by zero"),
    ],
)
def test_functions_that_give_no_views_are_refused(function, words):
    with pytest.raises(ValueError, match=words) as error:
        ViewFunction(function, 16, 3)
    assert "\n" not in str(error.value)


def test_crops_cannot_be_given_to_a_function(pictures):
    with pytest.raises(ValueError, match="not from crops"):
        make_views(
            [pictures(2, 3, 32)] * 2, ViewFunction(torchvision_views, 32, 3), seeded(), MEAN, STD
        )


def each_alone(images):
    return [torch.stack([jitter(image) for image in images]) for _ in range(2)]


jitter = v2.Compose([v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4)])
FUNCTIONS = {  # and whether each draws once for the whole batch
    "v2": (lambda images: [jitter(images), jitter(images)], True),
    "v2, one of two": (lambda images: [images, v2.RandomRotation(30)(images)], True),
    "v2, image by image": (each_alone, False),
    "without chance": (lambda images: [images, images.flip(3)], False),
    "by torch": (
        lambda images: [
            images,
            (images + torch.randint(9, (len(images), 1, 1, 1))).to(torch.uint8),
        ],
        False,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_draws_once_for_the_whole_batch_is_noticed(name, caplog):
    function, once = FUNCTIONS[name]
    ViewFunction(function, image_size=16, channels=3)
    assert ("once for the whole batch" in caplog.text) == once
