import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from nearfar.maps import fit_map


@pytest.fixture(scope="module")
def digits():
    """1797 images of 10 classes, [images, 8, 8] in 0..1, and their labels."""
    data = load_digits()
    return torch.tensor(data.images / 16, dtype=torch.float32), data.target


def features(images):
    """Stand-in for a trained backbone: the class structure of digits in 20 dimensions, by a fixed linear map."""
    data = load_digits()
    flat = data.images.reshape(-1, 64) / 16
    means = np.stack([flat[data.target == c].mean(0) for c in range(10)])
    between = np.linalg.svd(means - means.mean(0), full_matrices=False)[2][:9]
    return images.flatten(1) @ torch.tensor(between.T, dtype=torch.float32)


def views(images, count):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([images + 0.15 * torch.randn(images.shape, generator=generator) for _ in range(count)])


def neighbour_accuracy(places, labels):
    """10-NN label accuracy on the map, 5-fold."""
    return cross_val_score(KNeighborsClassifier(10), np.asarray(places), labels, cv=5).mean()


def test_map_of_digits_keeps_classes_together_better_than_two_principal_components(digits):
    images, labels = digits
    seen = torch.stack([features(view) for view in views(images, 4)])
    places = fit_map(seen, features(images), epochs=60)
    on_map = neighbour_accuracy(places, labels)
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


def test_map_is_centred_and_widest_along_x(groups):
    places = fit_map(groups, epochs=20)
    assert places.shape == (60, 2) and places.dtype == torch.float32
    assert places.mean(0).abs().max() < 1e-4
    covariance = torch.cov(places.T)
    assert covariance[0, 0] >= covariance[1, 1]
    assert covariance[0, 1].abs() < 1e-3 * covariance[0, 0]


def test_groups_end_up_apart(groups):
    places = fit_map(groups, epochs=150)
    distance = torch.cdist(places, places).fill_diagonal_(torch.inf)
    assert (distance.argmin(1) % 3 == torch.arange(60) % 3).float().mean() > 0.95


def test_same_seed_same_map_whatever_the_global_random_state_which_is_kept(groups):
    torch.manual_seed(1)
    first = fit_map(groups, epochs=3, seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(fit_map(groups, epochs=3, seed=5), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(fit_map(groups, epochs=3, seed=6), first)


def test_scale_and_offset_free_features_and_no_gradient_to_them(groups):
    seen = groups.clone().requires_grad_()
    places = fit_map(seen, epochs=3)
    assert seen.grad is None and not places.requires_grad
    assert torch.allclose(fit_map(7.5 * groups, epochs=3), places, atol=1e-3)


def test_places_are_read_from_the_given_features(groups):
    moved = groups[0].roll(1, dims=0)
    places = fit_map(groups, groups[0], epochs=5)
    rolled = fit_map(groups, moved, epochs=5)
    assert torch.allclose(rolled, places.roll(1, dims=0), atol=1e-3)


def test_progress_counts_the_epochs(groups):
    seen = []
    fit_map(groups, epochs=3, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_few_images_have_finite_places(groups, count):
    places = fit_map(groups[:, :count], epochs=2)
    assert places.shape == (count, 2) and places.isfinite().all()


@pytest.mark.parametrize(
    ("seen", "extra", "words"),
    [
        (torch.zeros(1, 5, 3), {}, "two views"),
        (torch.zeros(2, 0, 3), {}, "at least one image"),
        (torch.zeros(5, 3), {}, "views, images, dim"),
        (torch.full((2, 5, 3), torch.nan), {}, "not finite"),
        (torch.zeros(2, 5, 3), {"features": torch.zeros(4, 3)}, r"\[5, 3\]"),
        (torch.zeros(2, 5, 3), {"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_wrong_input_gets_a_clear_line(unchecked, seen, extra, words):
    with pytest.raises(ValueError, match=words):
        fit_map(seen, **extra)
