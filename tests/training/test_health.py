import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from nearfar.training.health import Health, effective_rank, lidar, measure_health, rankme, spread, verdict


def unit_rows(count, dim, seed=0):
    return F.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).double(), dim=1)


# ---- the measures


def test_effective_rank_counts_equal_directions():
    basis = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    for rank in (2, 5, 20):
        signs = torch.cat([torch.eye(rank), -torch.eye(rank)]).double()  # centred, `rank` equal singular values
        assert effective_rank(signs @ basis[:rank]) == pytest.approx(rank, rel=1e-6)
        assert effective_rank(signs @ basis[:rank] + 7.0) == pytest.approx(rank, rel=1e-6)  # an offset does not count


def test_effective_rank_is_the_entropy_of_the_singular_values():
    x = torch.randn(50, 12, generator=torch.Generator().manual_seed(1)).double() * torch.logspace(0, -3, 12)
    values = np.linalg.svd(x.numpy() - x.numpy().mean(0), compute_uv=False)
    share = values / values.sum()
    expected = np.exp(-(share * np.log(share)).sum())
    assert effective_rank(x) == pytest.approx(expected, rel=1e-6)
    assert effective_rank(x.T - x.T.mean(0)) == pytest.approx(effective_rank(x.T), rel=1e-6)  # more columns than rows


def test_effective_rank_of_one_point_is_one():
    assert effective_rank(torch.full((10, 4), 0.3)) == 1.0
    assert effective_rank(torch.zeros(10, 4)) == 1.0


def test_spread_is_what_the_mean_direction_leaves():
    x = unit_rows(500, 16)
    assert spread(x) == pytest.approx(1, abs=0.03)
    assert spread(100 * x) == pytest.approx(spread(x))  # lengths do not count
    assert spread(torch.ones(9, 16) * torch.arange(1, 10)[:, None]) == pytest.approx(0, abs=1e-6)
    shifted = F.normalize(x + 2 * torch.eye(16)[0], dim=1)
    assert spread(shifted) == pytest.approx(math.sqrt(1 - shifted.mean(0).square().sum()), rel=1e-9)


def test_alignment_uniformity_and_own_view_follow_their_definitions():
    z1, z2 = unit_rows(30, 5), unit_rows(30, 5, seed=1)
    z2 = F.normalize(z1 + 0.8 * z2, dim=1)
    health = measure_health(3 * z1, 0.5 * z2, z1)
    a, b = z1.numpy(), z2.numpy()
    assert health.alignment == pytest.approx(np.mean([((p - q) ** 2).sum() for p, q in zip(a, b, strict=True)]))
    pairs = [np.exp(-2 * ((a[i] - a[j]) ** 2).sum()) for i in range(30) for j in range(i)]
    assert health.uniformity == pytest.approx(np.log(np.mean(pairs)))
    found = [np.argmin(((b - p) ** 2).sum(1)) == i for i, p in enumerate(a)]
    found += [np.argmin(((a - q) ** 2).sum(1)) == i for i, q in enumerate(b)]
    assert 0.2 < np.mean(found) < 1
    assert health.own_view == pytest.approx(np.mean(found))


def test_unrelated_views_are_found_by_chance_and_tied_ones_never():
    health = measure_health(unit_rows(1000, 32), unit_rows(1000, 32, seed=1), unit_rows(1000, 32))
    assert health.own_view < 0.006 and health.chance == 0.001
    assert health.alignment == pytest.approx(2, abs=0.05)
    assert measure_health(torch.ones(20, 4), torch.ones(20, 4), torch.ones(20, 4)).own_view == 0


def test_only_the_first_images_are_measured():
    z = unit_rows(1500, 4)
    assert measure_health(z, z, z) == measure_health(z[:1024], z[:1024], z[:1024])
    assert measure_health(z, z, z).images == 1024


def test_measures_survive_the_metrics_file():
    z = unit_rows(20, 4).float()
    health = measure_health(z, z, z)
    assert Health(**json.loads(json.dumps(health.asdict()))) == health


def test_rankme_is_of_the_first_view_and_lidar_of_all_and_the_verdict_leaves_them_out():
    z = torch.stack([unit_rows(30, 6, seed) for seed in range(4)])
    health = measure_health(z[0], z[1], z[0], z[:, :10])
    assert health.rankme == rankme(z[0]) and health.lidar == lidar(z[:, :10])
    assert measure_health(z[0], z[1], z[0]).lidar is None
    assert verdict(replace(GOOD, rankme=1.0, lidar=1.0), START) == verdict(GOOD, START)


def test_bad_shapes_are_named(unchecked):
    z = unit_rows(8, 4)
    with pytest.raises(ValueError, match="two views"):
        measure_health(z, z[:7], z)
    with pytest.raises(ValueError, match="two views"):
        measure_health(z, z, z[:7])
    with pytest.raises(ValueError, match="two images"):
        measure_health(z[:1], z[:1], z[:1])


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
        ({"embedding_rank": 2.5, "embedding_dim": 3}, "healthy"),  # 2.5 of 3 dimensions is all there is
        ({"own_view": 0.0025}, "not learning"),  # chance
        ({"own_view": 0.05}, "not learning"),  # what the untrained network reached, within its error
        ({"own_view": 0.15}, "healthy"),
        ({"images": 10, "own_view": 1.0}, "unclear"),
        ({"images": 10, "embedding_spread": 0.001}, "collapsed"),
        ({"alignment": math.nan}, "diverged"),
    ],
)
def test_states(change, state):
    judged = verdict(replace(GOOD, **change), START)
    assert (judged.state, judged.healthy) == (state, state == "healthy")
    assert judged.words.lower().startswith(state)


def test_an_untouched_network_is_not_learning_rather_than_collapsed():
    assert verdict(START, START).state == "not learning"
    assert verdict(START).state == "collapsed"  # alone it cannot be told from a collapse


def test_a_good_start_need_not_improve():
    assert verdict(replace(GOOD, own_view=0.9), replace(GOOD, own_view=0.9)).healthy
    assert verdict(replace(GOOD, own_view=0.2)).healthy  # no measures from before training
    assert not verdict(replace(GOOD, own_view=0.05)).healthy


def test_words_give_the_numbers_and_what_to_try():
    words = verdict(GOOD, START).words
    assert "40.0%" in words and "chance 0.2%" in words and "3.0% before training" in words and "30 of 64" in words
    for bad in ({"embedding_spread": 0.01}, {"embedding_rank": 2.0}, {"own_view": 0.0}, {"alignment": math.inf}):
        assert "Try" in verdict(replace(GOOD, **bad), START).words


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
    backbone = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
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
    assert after.own_view > 3 * before.own_view
    assert verdict(after).healthy


def test_a_run_made_to_collapse_is_called_collapsed():
    before, after = train(attraction, 150)
    assert verdict(after, before).state == "collapsed"
    assert verdict(after).state == "collapsed"
    assert after.alignment < 0.01 and after.uniformity > -0.05  # perfect alignment of a single point


def test_a_run_that_cannot_move_is_not_learning():
    before, after = train(contrast, 150, lr=1e-8)
    assert verdict(after, before).state == "not learning"


def test_a_run_that_explodes_is_called_diverged():
    before, after = train(lambda u1, u2: contrast(u1, u2) * math.inf, 2)
    assert verdict(after, before).state == "diverged"
