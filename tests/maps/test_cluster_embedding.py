import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits

from nearfar.maps import ClusterEmbedding, map_quality
from nearfar.maps.cluster_embedding import (
    divergence,
    entropic_affinities,
    mean_similarity,
    nearest_squared,
    sampled_mean_similarity,
)

DRAWS = 200


def symmetric(rows, k, perplexity):
    """The matrix p of all pairs, from its definition: the mean of p_j|i / n and p_i|j / n."""
    squared, index = nearest_squared(rows, None, k, "euclidean")
    one_way = np.zeros((len(rows), len(rows)))
    np.put_along_axis(one_way, index.numpy(), entropic_affinities(squared.double(), perplexity).numpy(), 1)
    return (one_way + one_way.T) / (2 * len(rows))


def plain_loop(coordinates, p, alpha, rate, steps):
    """Gradient descent on the I-divergence of SACLR's Eq. 1 by sums over pairs; yields J, its gradient and 1 / s."""
    n = len(coordinates)
    s = 1 / (n * (n - 1))
    coordinates = coordinates.copy()
    for step in range(steps):
        value, gradient, normaliser = 0.0, np.zeros_like(coordinates), 0.0
        for i in range(n):
            for j in range(n):
                if i != j:
                    apart = coordinates[i] - coordinates[j]
                    q = 1 / (1 + apart @ apart)
                    value += s * q - p[i, j] * np.log(q)
                    force = 2 * (p[i, j] * q - s * q**2) * apart
                    gradient[i] += force
                    gradient[j] -= force
                    normaliser += (alpha * p[i, j] * n * (n - 1) + 1 - alpha) * q
        yield value, gradient, normaliser, coordinates.copy()
        move = rate * (1 - step / steps) * n * gradient
        coordinates = coordinates - move * np.minimum(1, 5 / np.linalg.norm(move, axis=1, keepdims=True))
        s = 1 / normaliser


@pytest.mark.parametrize(("count", "alpha"), [(30, 0.5), (31, 0.0)])
def test_value_gradient_and_scale_are_those_of_a_plain_loop_over_several_steps(count, alpha):
    rng = np.random.default_rng(count)
    rows = torch.from_numpy(rng.normal(size=(count, 5)).astype(np.float32))
    start = rng.normal(size=(count, 2))
    squared, index = nearest_squared(rows, None, 9, "euclidean")
    weights = (entropic_affinities(squared.double(), 3.0) / count).flatten()
    edges = torch.arange(count).repeat_interleave(9), index.flatten()
    partition = torch.ones((), dtype=torch.float64)
    for value, gradient, normaliser, coordinates in plain_loop(start, symmetric(rows, 9, 3.0), alpha, 0.5, 4):
        here = torch.from_numpy(coordinates).requires_grad_()
        loss, partition = divergence(here, *edges, weights, partition, alpha)
        [found] = torch.autograd.grad(loss, here)
        assert loss.item() == pytest.approx(value, rel=1e-9)
        assert np.allclose(found, gradient, rtol=1e-8, atol=1e-10)
        assert partition.item() == pytest.approx(normaliser / (count * (count - 1)), rel=1e-9)


def test_the_estimator_takes_the_steps_of_the_plain_loop():
    rng = np.random.default_rng(0)
    rows, start = rng.normal(size=(24, 6)).astype(np.float32), rng.normal(size=(24, 2))
    found = ClusterEmbedding(perplexity=4, init=start, max_iter=6, alpha=0.3).fit(rows)
    steps = list(plain_loop(start, symmetric(torch.from_numpy(rows), 12, 4.0), 0.3, 0.5, 6))
    _, gradient, normaliser, coordinates = steps[-1]
    move = 0.5 * (1 / 6) * 24 * gradient
    coordinates = coordinates - move * np.minimum(1, 5 / np.linalg.norm(move, axis=1, keepdims=True))
    assert np.allclose(found.embedding_, coordinates - coordinates.mean(0), atol=1e-5)
    assert found.partition_ == pytest.approx(normaliser / (24 * 23), rel=1e-6)


@pytest.mark.parametrize("count", [3, 4, 41, 1500])
def test_mean_over_all_pairs(count):
    coordinates = torch.randn(
        count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    expected = (1 / (1 + torch.pdist(coordinates).square())).mean()
    found = mean_similarity(coordinates)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    gradients = [torch.autograd.grad(value, coordinates)[0] for value in (found, expected)]
    assert torch.allclose(*gradients, atol=1e-12)


def test_sampled_mean_and_gradient_are_unbiased(count=11):
    torch.manual_seed(0)
    coordinates = torch.randn(count, 2, dtype=torch.float64).requires_grad_()
    exact = mean_similarity(coordinates)
    draws = [sampled_mean_similarity(coordinates, 1) for _ in range(DRAWS)]
    values = torch.stack(draws).detach()
    assert abs(values.mean() - exact) < 4 * values.std() / DRAWS**0.5
    gradients = torch.stack([torch.autograd.grad(value, coordinates)[0] for value in draws])
    error = (gradients.mean(0) - torch.autograd.grad(exact, coordinates)[0]).abs()
    assert (error < 5 * gradients.std(0) / DRAWS**0.5 + 1e-12).all()


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


@pytest.mark.parametrize("exact", [True, False])
def test_digits_fall_into_their_classes(digits, exact):
    rows, labels = digits[0][:500], digits[1][:500]
    coordinates = ClusterEmbedding(max_iter=150, exact=exact).fit_transform(rows)
    quality = map_quality(torch.from_numpy(rows).float(), torch.from_numpy(coordinates), labels)
    assert coordinates.shape == (500, 2) and coordinates.dtype == np.float32
    assert np.abs(coordinates.mean(0)).max() < 1e-4
    assert quality.knn_map > 0.93 and quality.trustworthiness > 0.95  # two principal components: 0.62 and 0.83


def test_a_larger_alpha_draws_clusters_together(digits):
    rows, labels = digits[0][:300], digits[1][:300]

    def tightness(alpha):
        coordinates = ClusterEmbedding(max_iter=120, alpha=alpha).fit_transform(rows)
        centres = np.stack([coordinates[labels == c].mean(0) for c in range(10)])
        return np.linalg.norm(coordinates - centres[labels], axis=1).mean()

    assert tightness(0.5) < 0.6 * tightness(0.0)


def test_new_rows_are_placed_near_their_like(digits):
    rows, labels = digits
    fitted = ClusterEmbedding(max_iter=150, exact=False).fit(rows[:700])
    new = fitted.transform(rows[700:1000])
    nearest = np.linalg.norm(new[:, None] - fitted.embedding_, axis=2).argmin(1)
    assert (labels[:700][nearest] == labels[700:1000]).mean() > 0.88
    own = fitted.transform(rows[:50])
    assert np.median(np.linalg.norm(own - fitted.embedding_[:50], axis=1)) < 0.15 * fitted.embedding_.std()
    assert np.allclose(fitted.transform(rows[700:710]), new[:10], atol=1e-4)  # whichever others come with them


def test_it_is_a_scikit_learn_estimator():
    given = ClusterEmbedding(alpha=0.25, perplexity=5, metric="cosine", max_iter=30)
    copy = clone(given)
    assert copy.get_params() == given.get_params() and copy is not given
    assert vars(given) == given.get_params()  # __init__ stores its parameters and nothing else
    assert copy.fit_transform(np.random.default_rng(0).normal(size=(40, 4))).shape == (40, 2)
    state = torch.get_rng_state()
    first, again, other = (
        ClusterEmbedding(max_iter=20, exact=False, random_state=seed).fit_transform(np.eye(12)) for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    steps = []
    ClusterEmbedding(max_iter=2, progress=lambda *at: steps.append(at)).fit(np.eye(12))
    assert steps == [(1, 2), (2, 2)]


@pytest.mark.parametrize("rows", [np.zeros((50, 3)), np.eye(2), np.ones((7, 1))])
def test_few_or_equal_rows_have_finite_places(rows):
    for exact in (True, False):
        assert np.isfinite(ClusterEmbedding(max_iter=20, exact=exact).fit_transform(rows)).all()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (dict(alpha=1.5), "alpha must be 0 to 1, not 1.5"),
        (dict(max_iter=0), "max_iter must be at least 1, not 0"),
        (dict(metric="manhattan"), "metric must be one of cosine, euclidean"),
        (dict(exact="never"), "exact must be True, False or 'auto', not 'never'"),
        (dict(init="spectral"), "init must be 'pca' or an array"),
    ],
)
def test_wrong_values_get_a_clear_line(unchecked, values, says):
    with pytest.raises(ValueError, match=says):
        ClusterEmbedding(**values).fit(np.random.default_rng(0).normal(size=(9, 4)))


def test_entropic_affinities_are_gaussian_and_have_the_perplexity_asked_for():
    squared = torch.rand(40, 30, generator=torch.Generator().manual_seed(0)).double().sort(1).values * 1e4
    squared[1] *= 1e-9
    p = entropic_affinities(squared, 8.0)
    assert torch.allclose(p.sum(1), torch.ones(40).double())
    assert torch.allclose((-(p * p.log()).sum(1)).exp(), torch.full((40,), 8.0).double(), rtol=1e-9)
    slope = (p[:, :1] / p).log()[:, 1:] / (
        squared[:, 1:] - squared[:, :1]
    )  # beta_i, whichever neighbour it is read from
    assert torch.allclose(slope, slope[:, :1].expand(-1, 29), rtol=1e-6)


def test_equal_distances_weigh_the_same_and_too_large_a_perplexity_is_refused():
    assert torch.equal(entropic_affinities(torch.ones(3, 4), 2.0), torch.full((3, 4), 0.25))
    with pytest.raises(ValueError, match="1 to the number of neighbours, 4, not 5"):
        entropic_affinities(torch.ones(3, 4), 5.0)
