"""Health against its formulas in float64 NumPy, where the answer is known, and the verdict on real
runs.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from nearfar.training.health import (
    Health,
    effective_rank,
    lidar,
    measure_health,
    rankme,
    spread,
    verdict,
)


def unit_rows(count, dim, seed=0):
    return F.normalize(
        torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).double(), dim=1
    )


# ---- the measures


def test_effective_rank_is_the_entropy_of_the_singular_values():
    x = torch.randn(50, 12, generator=torch.Generator().manual_seed(1)).double() * torch.logspace(
        0, -3, 12
    )
    values = np.linalg.svd(x.numpy() - x.numpy().mean(0), compute_uv=False)
    share = values / values.sum()
    expected = np.exp(-(share * np.log(share)).sum())
    assert effective_rank(x) == pytest.approx(expected, rel=1e-6)
    assert effective_rank(x.T - x.T.mean(0)) == pytest.approx(
        effective_rank(x.T), rel=1e-6
    )  # more columns than rows
    assert effective_rank(torch.full((10, 4), 0.3)) == effective_rank(torch.zeros(10, 4)) == 1.0
    signs = torch.cat([torch.eye(5), -torch.eye(5)])  # centred, five equal singular values
    assert (
        effective_rank(signs) == pytest.approx(5) == effective_rank(signs + 7.0)
    )  # an offset does not count


def test_spread_is_what_the_mean_direction_leaves():
    x = unit_rows(500, 16)
    assert spread(x) == pytest.approx(1, abs=0.03)
    assert spread(100 * x) == pytest.approx(spread(x))  # lengths do not count
    assert spread(torch.ones(9, 16) * torch.arange(1, 10)[:, None]) == pytest.approx(0, abs=1e-6)
    shifted = F.normalize(x + 2 * torch.eye(16)[0], dim=1)
    assert spread(shifted) == pytest.approx(math.sqrt(1 - shifted.mean(0).square().sum()), rel=1e-9)


def test_alignment_uniformity_and_view_retrieval_follow_their_definitions():
    z1, z2 = unit_rows(30, 5), unit_rows(30, 5, seed=1)
    z2 = F.normalize(z1 + 0.8 * z2, dim=1)
    health = measure_health(3 * z1, 0.5 * z2, z1)
    a, b = z1.numpy(), z2.numpy()
    assert health.alignment == pytest.approx(
        np.mean([((p - q) ** 2).sum() for p, q in zip(a, b, strict=True)])
    )
    pairs = [np.exp(-2 * ((a[i] - a[j]) ** 2).sum()) for i in range(30) for j in range(i)]
    assert health.uniformity == pytest.approx(np.log(np.mean(pairs)))
    hits = [np.argmin(((b - p) ** 2).sum(1)) == i for i, p in enumerate(a)]
    hits += [np.argmin(((a - q) ** 2).sum(1)) == i for i, q in enumerate(b)]
    assert 0.2 < np.mean(hits) < 1
    assert health.view_retrieval == pytest.approx(np.mean(hits))


def test_unrelated_views_are_found_by_chance_and_tied_ones_never():
    health = measure_health(unit_rows(1000, 32), unit_rows(1000, 32, seed=1), unit_rows(1000, 32))
    assert health.view_retrieval < 0.006 and health.chance == 0.001
    assert health.alignment == pytest.approx(2, abs=0.05)
    assert (
        measure_health(torch.ones(20, 4), torch.ones(20, 4), torch.ones(20, 4)).view_retrieval == 0
    )
    z = unit_rows(1500, 4)
    assert measure_health(z, z, z) == measure_health(
        z[:1024], z[:1024], z[:1024]
    )  # the first images alone
    with pytest.raises(ValueError, match="two images"):
        measure_health(z[:1], z[:1], z[:1])


# ---- RankMe and LiDAR


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
    """The paper's matrices, image by image, with the inverse square root from an
    eigendecomposition.
    """
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
    """Images differ in 4 of 32 directions; noise of the views fills the others, and fools RankMe
    only.
    """
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
    assert math.isnan(
        lidar(1e20 * normal(8, 16, 256))
    )  # a run that diverges: the covariance cannot be factorised
    with pytest.raises(ValueError, match="two views of two images"):
        lidar(normal(1, 10, 6))


# ---- the verdict on made-up measures

GOOD = Health(400, 128, 64, 70.0, 30.0, 0.5, 0.98, 0.3, -3.1, 0.4)
START = Health(400, 128, 64, 78.0, 36.0, 0.2, 0.04, 0.002, -0.01, 0.03)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "healthy"),
        ({"embedding_spread": 0.02}, "collapsed"),
        ({"embedding_spread": 0.3}, "partly collapsed"),
        ({"embedding_rank": 2.5}, "partly collapsed"),
        ({"effective_rank": 2.5}, "partly collapsed"),
        (
            {"embedding_rank": 2.5, "embedding_dim": 3},
            "healthy",
        ),  # 2.5 of 3 dimensions is all there is
        ({"view_retrieval": 0.0025}, "not learning"),  # chance
        (
            {"view_retrieval": 0.05},
            "not learning",
        ),  # what the untrained network reached, within its error
        ({"view_retrieval": 0.15}, "healthy"),
        ({"images": 10, "view_retrieval": 1.0}, "unclear"),
        ({"images": 10, "embedding_spread": 0.001}, "collapsed"),
        ({"alignment": math.nan}, "diverged"),
    ],
)
def test_states(change, state):
    judged = verdict(replace(GOOD, **change), START)
    assert (judged.state, judged.healthy) == (state, state == "healthy")
    assert judged.words.lower().startswith(state)
    assert state in ("healthy", "unclear") or "Try" in judged.words


def test_what_was_before_training_counts():
    assert verdict(START, START).state == "not learning"
    assert verdict(START).state == "collapsed"  # alone it cannot be told from a collapse
    words = verdict(GOOD, START).words
    assert (
        "40.0%" in words
        and "chance 0.2%" in words
        and "3.0% before training" in words
        and "30 of 64" in words
    )
    assert verdict(replace(GOOD, rankme=1.0, lidar=1.0), START) == verdict(
        GOOD, START
    )  # no part of the verdict
    assert verdict(replace(GOOD, view_retrieval=0.9), replace(GOOD, view_retrieval=0.9)).healthy
    assert verdict(replace(GOOD, view_retrieval=0.2)).healthy  # no measures from before training
    assert not verdict(replace(GOOD, view_retrieval=0.05)).healthy


# ---- the verdict on real runs


def views(images, generator):
    """Random shift by up to one pixel, brightness and noise."""
    shifts = torch.randint(0, 3, (len(images), 2), generator=generator)
    padded = F.pad(images, (1, 1, 1, 1))
    rows = shifts[:, :1] + torch.arange(8)
    columns = shifts[:, 1:] + torch.arange(8)
    moved = padded[torch.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]
    gain = 0.7 + 0.6 * torch.rand(len(images), 1, 1, generator=generator)
    return (moved * gain + 0.1 * torch.randn(moved.shape, generator=generator)).flatten(1)


def attraction(u1, u2):
    return -(u1 * u2).sum(1).mean()


def contrast(u1, u2):
    return F.cross_entropy(u1 @ u2.T / 0.2, torch.arange(len(u1)))


def train(loss, steps, lr=1e-3):
    """Health before and after `steps` of a small network on digits."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.tensor(load_digits().images / 16, dtype=torch.float32)
    backbone = nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
    )
    head = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))
    model = nn.Sequential(backbone, head)

    def health():
        model.eval()
        held_out = torch.Generator().manual_seed(9)
        h1, h2 = backbone(views(images[1400:], held_out)), backbone(views(images[1400:], held_out))
        return measure_health(head(h1), head(h2), h1)

    before = health()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for _ in range(steps):
        batch = images[torch.randint(0, 1400, (256,), generator=generator)]
        u1, u2 = (F.normalize(model(views(batch, generator)), dim=1) for _ in range(2))
        optimizer.zero_grad()
        loss(u1, u2).backward()
        optimizer.step()
    return before, health()


def test_a_good_run_is_healthy():
    before, after = train(contrast, 150)
    judged = verdict(after, before)
    assert judged.state == "healthy", judged.words
    assert after.view_retrieval > 3 * before.view_retrieval
    assert verdict(after).healthy


def test_a_run_made_to_collapse_is_called_collapsed():
    before, after = train(attraction, 150)
    assert verdict(after, before).state == "collapsed"
    assert verdict(after).state == "collapsed"
    assert (
        after.alignment < 0.01 and after.uniformity > -0.05
    )  # perfect alignment of a single point


def test_a_run_that_cannot_move_is_not_learning():
    before, after = train(contrast, 150, lr=1e-8)
    assert verdict(after, before).state == "not learning"


@pytest.mark.parametrize(
    "changes",
    [dict(embedding_rank=1.5), dict(embedding_spread=0.09), dict(view_retrieval=0.01)],
    ids=["partly collapsed", "collapsed", "not learning"],
)
def test_after_few_epochs_the_advice_is_to_train_on_first(changes, request):
    bad = replace(GOOD, **changes)
    assert verdict(bad).state == request.node.callspec.id
    early, late, unknown = (verdict(bad, None, epochs).words for epochs in (3.0, 100.0, None))
    assert early.index("train on first") < early.index("`lr`") and "after 3 epochs" in early
    assert "train on first" not in late and late == unknown


def test_a_collapse_says_how_near_the_images_were_before_training():
    """An untrained net may have all images near one point: then training has collapsed nothing."""
    words = verdict(replace(GOOD, embedding_spread=0.088), replace(GOOD, embedding_spread=0.099))
    assert "(spread 0.088 of 1, 0.099 before training)" in words.words
