import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits

from nearfar.maps import ClusterEmbedding, cluster_embedding, map_quality
from nearfar.maps.cluster_embedding import entropic_affinities, forces, squared_distances
from nearfar.maps.repulsion import similarity_sums
from nearfar.neighbours import nearest_rows
from nearfar.threads import map_in_threads


def plain(coordinates, p, alpha):
    """The gradient of J of SACLR's Eq. 1 by sums over pairs, and 1 / s of these coordinates."""
    n = len(coordinates)
    apart = coordinates[:, None] - coordinates
    q = 1 / (1 + (apart**2).sum(2))
    np.fill_diagonal(q, 0)
    normaliser = ((alpha * p * n * (n - 1) + 1 - alpha) * q).sum()
    return 4 * ((p * q - q**2 / normaliser)[:, :, None] * apart).sum(1), normaliser


def symmetric(index, one_way):
    """The matrix p of all pairs, from its definition: the mean of p_j|i / n and p_i|j / n."""
    whole = np.zeros((len(index), len(index)))
    np.put_along_axis(whole, index.numpy(), np.broadcast_to(one_way, index.shape), 1)
    return (whole + whole.T) / (2 * len(index))


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0])
def test_sums_over_all_pairs_on_a_mesh(dim, spread):
    points = spread * torch.randn(700, dim, generator=torch.Generator().manual_seed(dim))
    exact = points.double().requires_grad_()
    expected = (1 / (1 + (exact[:, None] - exact).square().sum(2))).sum(1) - 1
    [gradient] = torch.autograd.grad(expected.sum(), exact)  # each pair moves two sums
    sums, slopes = similarity_sums(points)
    assert (sums - expected).abs().max() < 0.02 * expected.mean()
    coarse = 0.1 if dim == 3 and spread == 8.0 else 0.02  # the mesh of a wide cube
    assert (slopes - gradient / 2).norm() < coarse * gradient.norm() / 2


def test_points_that_are_few_equal_or_far_apart_have_finite_sums():
    for points in (torch.zeros(5, 2), torch.tensor([[0.0, 0.0], [1e5, 3.0]]), torch.eye(2)):
        sums, slopes = similarity_sums(points)
        assert sums.isfinite().all() and slopes.isfinite().all()
    sums, slopes = similarity_sums(torch.tensor([[0.0, 0.0], [40.0, 30.0]]))
    assert sums == pytest.approx([1 / 2501] * 2, rel=0.2) and slopes.abs().max() < 1e-3


@pytest.mark.parametrize("perplexity", [9.0, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_forces_are_the_gradient_of_the_divergence(alpha, perplexity):
    rng = np.random.default_rng(3)
    rows = torch.from_numpy(rng.normal(size=(60, 5)).astype(np.float32))
    coordinates = 2 * rng.normal(size=(60, 2))
    distance, index = nearest_rows(rows, k=9, metric="euclidean")
    one_way = entropic_affinities(squared_distances(distance, "euclidean"), perplexity)
    gradient, normaliser = plain(coordinates, symmetric(index, one_way.numpy()), alpha)
    attraction, repulsion, partition = forces(
        torch.from_numpy(coordinates).float(), index, one_way, alpha
    )
    assert partition == pytest.approx(normaliser / (60 * 59), rel=2e-3)
    assert np.linalg.norm((attraction - repulsion).numpy() - gradient) < 0.01 * np.linalg.norm(
        gradient
    )


@pytest.mark.slow
def test_the_map_is_a_minimum_of_the_divergence_of_t_sne():
    rows = load_digits().data[:300].astype(np.float32)
    made = ClusterEmbedding(max_iter=1000, random_state=1).fit(rows)
    distance, index = nearest_rows(torch.from_numpy(rows), k=30, metric="euclidean")
    p = symmetric(index, entropic_affinities(distance**2, 20.0).numpy())

    def divergence(coordinates):
        q = 1 / (1 + ((coordinates[:, None] - coordinates) ** 2).sum(2))
        total = q.sum() - len(q)
        return np.log(total) - (p * np.log(q)).sum(), total

    value, total = divergence(made.embedding_)
    assert made.partition_ == pytest.approx(total / (300 * 299), rel=0.02)
    noise = np.random.default_rng(0).normal(size=(4, 300, 2))
    others = [factor * made.embedding_ for factor in (0.9, 1.1)] + [
        made.embedding_ + 0.3 * shift for shift in noise
    ]
    assert all(divergence(coordinates)[0] > value for coordinates in others)


def test_neighbours_that_are_known_are_not_searched_again():
    rows = load_digits().data[:200].astype(np.float32)
    near = nearest_rows(torch.from_numpy(rows), k=40, metric="cosine")
    embedding = ClusterEmbedding(metric="cosine", max_iter=30).fit(rows)
    same = ClusterEmbedding(metric="cosine", max_iter=30).fit(rows, neighbours=near)
    assert np.array_equal(same.embedding_, embedding.embedding_)


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


def test_digits_fall_into_their_classes(digits):
    rows, labels = digits[0][:500], digits[1][:500]
    coordinates = ClusterEmbedding(max_iter=150).fit_transform(rows)
    quality = map_quality(torch.from_numpy(rows).float(), torch.from_numpy(coordinates), labels)
    assert coordinates.shape == (500, 2) and coordinates.dtype == np.float32
    assert np.abs(coordinates.mean(0)).max() < 1e-4
    assert (
        quality.knn_map > 0.93 and quality.trustworthiness > 0.95
    )  # two principal components: 0.62 and 0.83


def test_a_larger_alpha_draws_clusters_together(digits):
    rows, labels = digits[0][:300], digits[1][:300]

    def tightness(alpha):
        coordinates = ClusterEmbedding(max_iter=120, alpha=alpha).fit_transform(rows)
        centres = np.stack([coordinates[labels == c].mean(0) for c in range(10)])
        return np.linalg.norm(coordinates - centres[labels], axis=1).mean()

    assert tightness(0.5) < 0.6 * tightness(0.0)


def test_new_rows_are_placed_near_their_like(digits):
    rows, labels = digits
    fitted = ClusterEmbedding(max_iter=150).fit(rows[:700])
    new = fitted.transform(rows[700:1000])
    nearest = np.linalg.norm(new[:, None] - fitted.embedding_, axis=2).argmin(1)
    assert (labels[:700][nearest] == labels[700:1000]).mean() > 0.88
    own = fitted.transform(rows[:50])
    assert (
        np.median(np.linalg.norm(own - fitted.embedding_[:50], axis=1))
        < 0.15 * fitted.embedding_.std()
    )
    assert np.allclose(
        fitted.transform(rows[700:710]), new[:10], atol=1e-4
    )  # whichever others come with them


def test_it_is_a_scikit_learn_estimator():
    given = ClusterEmbedding(alpha=0.25, perplexity=5, metric="cosine", max_iter=30)
    copy = clone(given)
    assert copy.get_params() == given.get_params() and copy is not given
    assert vars(given) == given.get_params()  # __init__ stores its parameters and nothing else
    assert copy.fit_transform(np.random.default_rng(0).normal(size=(40, 4))).shape == (40, 2)
    state = torch.get_rng_state()
    first, again, other = (
        ClusterEmbedding(max_iter=20, random_state=seed).fit_transform(np.eye(12))
        for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_the_steps_move_a_bar(bars):
    ClusterEmbedding(max_iter=2).fit(np.eye(12))
    assert bars[-2:] == [("laying out the map", done, 2) for done in (1, 2)]


@pytest.mark.parametrize("given", [dict(transform_output="pandas"), dict(assume_finite=True)])
def test_what_scikit_learn_and_torch_are_set_to_elsewhere_changes_no_map(given):
    rows = np.random.default_rng(0).normal(size=(40, 4))
    plain = ClusterEmbedding(max_iter=20).fit_transform(rows)
    torch.set_default_dtype(torch.float64)
    try:
        with sklearn.config_context(**given):
            again = ClusterEmbedding(max_iter=20).fit_transform(rows)
    finally:
        torch.set_default_dtype(torch.float32)
    assert isinstance(again, np.ndarray) and np.array_equal(plain, again)


@pytest.mark.parametrize("rows", [np.zeros((50, 3)), np.eye(2), np.ones((7, 1))])
def test_few_or_equal_rows_have_finite_places(rows):
    assert np.isfinite(ClusterEmbedding(max_iter=20).fit_transform(rows)).all()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (dict(alpha=1.5), r"`alpha` must .* 1, not 1\.5"),
        (dict(max_iter=0), r"`max_iter` must .* 1, not 0"),
        (dict(metric="manhattan"), r"`metric` 'manhattan'.* cosine, euclidean"),
        (dict(n_components=4), r"`n_components` must .* 3, not 4"),
        (dict(init="spectral"), "init must be 'pca'"),
    ],
)
def test_wrong_values_get_a_clear_line(unchecked, values, says):
    with pytest.raises(ValueError, match=says):
        ClusterEmbedding(**values).fit(np.random.default_rng(0).normal(size=(9, 4)))


def test_entropic_affinities_are_gaussian_and_have_the_perplexity_asked_for():
    squared = (
        torch.rand(40, 30, generator=torch.Generator().manual_seed(0)).double().sort(1).values * 1e4
    )
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
    with pytest.raises(ValueError, match=r"`perplexity` must .* 4, not 5"):
        entropic_affinities(torch.ones(3, 4), 5.0)


@pytest.fixture(scope="module")
def of_digits():
    """500 digits, their neighbours, and their layout without a tenth of them, which is at NaN; in
    the second one without the zeros.
    """
    rows, labels = (torch.from_numpy(values[:500]) for values in load_digits(return_X_y=True))
    near = nearest_rows(rows.float(), k=30)
    layouts = []
    for new in (torch.arange(500) % 10 == 0, labels == 0):
        layout = torch.full((500, 2), torch.nan)
        layout[~new] = torch.from_numpy(ClusterEmbedding(max_iter=150).fit_transform(rows[~new]))
        layouts.append((layout, new))
    return near, labels, layouts


@pytest.mark.parametrize("kind", [0, 1])
def test_new_points_settle_among_their_neighbours_and_the_others_stay(of_digits, kind):
    near, labels, layouts = of_digits
    layout, new = layouts[kind]
    settled = cluster_embedding.settled(near, layout, "euclidean")
    assert torch.equal(settled[~new], layout[~new])
    apart = torch.cdist(settled[new], settled)
    nearest = apart.topk(6, largest=False).indices[:, 1:]
    assert (labels[nearest] == labels[new][:, None]).float().mean() > 0.9
    assert settled.isfinite().all() and apart[:, new].fill_diagonal_(9.0).min() > 1e-3


def test_without_new_points_none_moves(of_digits):
    near, _, [(layout, _), _] = of_digits
    whole = layout.nan_to_num()
    assert torch.equal(cluster_embedding.settled(near, whole, "euclidean"), whole)


@pytest.mark.parametrize("dim", [1, 2])
def test_forces_do_not_depend_on_the_number_of_threads(dim):
    rng = torch.Generator().manual_seed(dim)
    points = 20 * torch.randn(70_000, dim, generator=rng)  # several groups of rows, and meshes
    index = torch.randint(0, len(points), (len(points), 5), generator=rng)
    probability = torch.full(index.shape, 0.2)
    made = []
    for count in (1, 3):
        with map_in_threads(count) as each:
            made.append(forces(points, index, probability, 0.0, each))
    (attraction, repulsion, partition), again = made
    assert torch.equal(again[0], attraction) and torch.equal(again[1], repulsion)
    assert again[2] == partition


def test_sums_on_a_mesh_in_several_parts_are_those_of_all_pairs():
    points = 6 * torch.randn(70_000, 2, generator=torch.Generator().manual_seed(0))
    sums, slopes = similarity_sums(points)
    some = points[::1000].double().requires_grad_()
    expected = (1 / (1 + (some[:, None] - points).square().sum(2))).sum(1) - 1
    [gradient] = torch.autograd.grad(expected.sum(), some)
    assert (sums[::1000] - expected).abs().max() < 0.01 * expected.mean()
    assert (slopes[::1000] - gradient).norm() < 0.02 * gradient.norm()
