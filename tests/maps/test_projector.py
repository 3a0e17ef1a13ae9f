import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from nearfar.data import open_images
from nearfar.evaluation import extract
from nearfar.maps import finetune_map, fit_projector
from nearfar.networks import Encoder, build_backbone
from nearfar.views import View, ViewPlan

PLAN = ViewPlan("crops", (View(scale=(0.5, 1.0)), View(scale=(0.5, 1.0))))


def coordinates_of(view_features, features=None, **options):
    """Coordinates of the images by a projector that was fitted to their views."""
    return fit_projector(view_features, features, **options)(
        view_features.mean(0) if features is None else features
    )


@pytest.fixture(scope="module")
def digits():
    """400 images of 10 classes, [images, 8, 8] in 0..1, and their labels."""
    data = load_digits()
    return torch.tensor(data.images[:400] / 16, dtype=torch.float32), data.target[:400]


def features(images):
    """Stand-in for a trained backbone: the class structure of digits in 20 dimensions, by a fixed
    linear map.
    """
    data = load_digits()
    flat = data.images.reshape(-1, 64) / 16
    means = np.stack([flat[data.target == c].mean(0) for c in range(10)])
    between = np.linalg.svd(means - means.mean(0), full_matrices=False)[2][:9]
    return images.flatten(1) @ torch.tensor(between.T, dtype=torch.float32)


def views(images, count):
    generator = torch.Generator().manual_seed(0)
    return torch.stack(
        [images + 0.15 * torch.randn(images.shape, generator=generator) for _ in range(count)]
    )


def neighbour_accuracy(coordinates, labels):
    """10-NN label accuracy on the map, 5-fold."""
    return cross_val_score(KNeighborsClassifier(10), np.asarray(coordinates), labels, cv=5).mean()


@pytest.mark.slow
def test_map_of_digits_keeps_classes_together_better_than_two_principal_components(digits):
    images, labels = digits
    seen = torch.stack([features(view) for view in views(images, 4)])
    coordinates = coordinates_of(seen, features(images), epochs=160)
    on_map = neighbour_accuracy(coordinates, labels)
    flat = neighbour_accuracy(PCA(2).fit_transform(features(images).numpy()), labels)
    assert on_map > flat + 0.15
    assert on_map > 0.8


@pytest.fixture(scope="module")
def groups():
    """Views of 60 images in three groups that lie far apart in 8 dimensions; [3, 60, 8]."""
    generator = torch.Generator().manual_seed(1)
    centres = 3 * torch.eye(8)[torch.arange(60) % 3]
    images = centres + 0.5 * torch.randn(60, 8, generator=generator)
    return images + 0.2 * torch.randn(3, 60, 8, generator=generator)


def test_map_is_centred_and_widest_along_x_with_groups_apart(groups, bars):
    coordinates = coordinates_of(groups, epochs=80)
    moves = [("laying out the map", done, 80) for done in range(1, 81)]  # 60 images are one batch
    assert bars == moves
    assert coordinates.shape == (60, 2) and coordinates.dtype == torch.float32
    assert coordinates.mean(0).abs().max() < 1e-4
    covariance = torch.cov(coordinates.T)
    assert covariance[0, 0] >= covariance[1, 1]
    assert covariance[0, 1].abs() < 1e-3 * covariance[0, 0]
    distance = torch.cdist(coordinates, coordinates).fill_diagonal_(torch.inf)
    assert (distance.argmin(1) % 3 == torch.arange(60) % 3).float().mean() > 0.95
    first, again, other = (coordinates_of(groups, epochs=3, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.allclose(
        coordinates_of(7.5 * groups, epochs=3, seed=5), first, atol=1e-3
    )  # norms do not matter
    for count in (1, 2):  # very few images
        few = coordinates_of(groups[:, :count], epochs=2)
        assert few.shape == (count, 2) and few.isfinite().all()


@pytest.mark.parametrize(
    ("seen", "extra", "words"),
    [
        (torch.zeros(1, 5, 3), {}, r"not \[1, 5, 3\]"),
        (torch.full((2, 5, 3), torch.nan), {}, "not finite"),
        (torch.zeros(2, 5, 3), {"features": torch.zeros(4, 3)}, r"\[2, 5, 3\] and \[4, 3\]"),
    ],
)
def test_wrong_input_gets_a_clear_line(unchecked, seen, extra, words):
    with pytest.raises(ValueError, match=words):
        coordinates_of(seen, **extra)


@pytest.fixture(scope="module")
def start(images_file):
    """Images, an encoder of random weights and a projector that was fitted to it."""
    torch.manual_seed(0)
    images = open_images(images_file, image_size=8, channels=1)
    encoder = Encoder(
        build_backbone("small", image_size=8, channels=1), 8, 1, images.mean, images.std
    ).eval()
    seen = torch.stack(
        [extract(encoder, images.gather(torch.arange(80)).roll(shift, 3)) for shift in (0, 1)]
    )
    return images, encoder, fit_projector(seen, epochs=5)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_all_layers_move_those_given_stay_and_the_places_are_centred(start, bars):
    images, encoder, projector = start
    before = state(encoder), state(projector)
    net, head = finetune_map(encoder, projector, images, PLAN, epochs=2)
    assert same(before[0], state(encoder)) and same(before[1], state(projector))
    steps = [move[1:] for move in bars if move[0] == "laying out the map"]
    assert steps == [(1, 2), (2, 2)]  # 80 images are one batch
    for module, old in ((net, encoder), (head.net, projector.net)):
        pairs = zip(module.parameters(), old.parameters(), strict=True)
        assert all(not torch.equal(a, b) and not a.requires_grad for a, b in pairs)
    assert not net.training
    coordinates = head(extract(net, images))
    assert coordinates.mean(0).abs().max() < 1e-3 * coordinates.std()
    assert torch.cov(coordinates.T)[0, 1].abs() < 1e-3 * coordinates.var()


def test_seed_decides_alone_and_torch_s_random_state_is_kept(start):
    images, encoder, projector = start

    def coordinates(seed):
        net, head = finetune_map(encoder, projector, images, PLAN, epochs=1, seed=seed)
        return head(extract(net, images))

    kept = torch.get_rng_state()
    first = coordinates(1)
    assert torch.equal(torch.get_rng_state(), kept)
    torch.manual_seed(3)
    assert torch.equal(coordinates(1), first)
    assert not torch.equal(coordinates(2), first)
