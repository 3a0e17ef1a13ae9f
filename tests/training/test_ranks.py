"""RankMe and LiDAR against their formulas in float64 NumPy, and where the answer is known."""

import math

import numpy as np
import pytest
import torch

from nearfar.training.health import lidar, rankme


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def entropy_rank(values):
    share = values / values.sum() + 1e-7
    return np.exp(-(share * np.log(share)).sum())


@pytest.mark.parametrize("shape", [(50, 12), (12, 50)])
def test_rankme_is_the_entropy_of_the_singular_values_of_the_rows_as_they_are(shape):
    z = normal(*shape) * torch.logspace(0, -2, shape[1]) + 0.3
    expected = entropy_rank(np.linalg.svd(z.double().numpy(), compute_uv=False))
    assert rankme(z) == pytest.approx(expected, rel=1e-9)


def test_rankme_counts_equal_directions_and_an_offset_as_one_more():
    rows = torch.cat([torch.eye(20), -torch.eye(20)])
    assert rankme(rows) == pytest.approx(20, rel=1e-4)
    assert rankme(torch.full((30, 8), 0.4)) == pytest.approx(1, abs=1e-4)
    assert rankme(torch.zeros(30, 8)) == 1.0
    assert math.isnan(rankme(torch.tensor([[1.0, math.nan], [0.0, 1.0]])))


def naive_lidar(z, delta=1e-4):
    """The paper's matrices, image by image, with the inverse square root from an eigendecomposition."""
    views, images, dim = z.shape
    means = z.mean(0)
    between, within = np.zeros((dim, dim)), delta * np.eye(dim)
    for i in range(images):
        offset = means[i] - means.mean(0)
        between += np.outer(offset, offset) / images
        for v in range(views):
            away = z[v, i] - means[i]
            within += np.outer(away, away) / (images * views)
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    return entropy_rank(np.linalg.eigvalsh(root @ between @ root).clip(0))


@pytest.mark.parametrize(("views", "images", "dim"), [(5, 30, 8), (3, 6, 40), (2, 12, 12)])
def test_lidar_is_the_papers_matrix_image_by_image(views, images, dim):
    z = normal(images, dim) * torch.logspace(0, -1, dim) + 0.5 * normal(views, images, dim, seed=1)
    assert lidar(z) == pytest.approx(naive_lidar(z.double().numpy()), rel=1e-6)


def test_lidar_does_not_count_directions_in_which_views_differ_as_images_do():
    """Images differ in 4 of 32 directions; noise of the views fills the others, and fools RankMe only."""
    images, noise = torch.zeros(200, 32), normal(20, 200, 32, seed=1)
    images[:, :4] = 3 * normal(200, 4)
    noise[:, :, :4] *= 0.1
    z = images + noise
    assert lidar(z) == pytest.approx(4, abs=0.4)
    assert rankme(z[0]) > 20


def test_lidar_of_one_point_is_one_and_of_bad_numbers_none():
    assert lidar(torch.full((4, 10, 6), 0.3)) == pytest.approx(1, abs=1e-4)
    assert lidar(torch.zeros(4, 10, 6)) == 1.0
    broken = normal(4, 10, 6)
    broken[0, 0, 0] = math.inf
    assert math.isnan(lidar(broken))


@pytest.mark.parametrize("shape", [(1, 10, 6), (4, 1, 6)])
def test_lidar_needs_views_and_images(shape):
    with pytest.raises(ValueError, match="two views of two images"):
        lidar(normal(*shape))


def test_embeddings_of_a_run_that_diverges_have_no_lidar():
    """The covariance is singular beyond rounding, where it cannot be factorised: `--lr 5000` ended in a traceback."""
    assert math.isnan(lidar(1e20 * normal(8, 16, 256)))
