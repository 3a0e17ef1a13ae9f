"""Clusters on data whose groups are known."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from nearfar.maps import ClusterEmbedding, clusters, clusters_of


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(clusters, "ClusterEmbedding", partial(ClusterEmbedding, max_iter=150))


def test_planted_groups_are_found_and_counted(groups=7):
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(groups, 16, generator=generator), dim=1)
    truth = torch.arange(groups).repeat_interleave(torch.arange(groups) * 10 + 20)
    assigned = clusters_of(centres[truth] + 0.05 * torch.randn(len(truth), 16, generator=generator))
    assert adjusted_rand_score(truth, assigned.number) == 1.0
    sizes = assigned.number.bincount().tolist()
    assert (
        sizes == sorted(sizes, reverse=True)
        and max(assigned.scores, key=assigned.scores.get) == groups
    )
    assert assigned.distance.min() >= 0 and assigned.distance.max() < 0.2


def test_rows_beyond_those_that_make_the_plane_are_placed_among_them(monkeypatch):
    monkeypatch.setattr(clusters, "LAID_OUT", 60)
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(4, 16, generator=generator), dim=1)
    truth = torch.arange(4).repeat(50)
    assigned = clusters_of(centres[truth] + 0.05 * torch.randn(200, 16, generator=generator), 4)
    assert adjusted_rand_score(truth, assigned.number) == 1.0 and assigned.distance.max() < 0.2


def test_digits_fall_into_about_ten_groups_of_digits():
    digits = load_digits()
    assigned = clusters_of(torch.from_numpy(digits.data[:600]).float())
    assert 8 <= len(assigned.number.unique()) <= 14
    assert adjusted_rand_score(digits.target[:600], assigned.number) > 0.5


@pytest.mark.parametrize(("rows", "count"), [(40, 40), (60, 31)])
def test_as_many_as_asked_for(rows, count):
    assigned = clusters_of(
        torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows)), count
    )
    assert assigned.number.unique().tolist() == list(range(count))


def test_rows_that_are_equal_lie_together():
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, 64, generator=generator)
    for count in (None, 1, 4):
        assigned = clusters_of(
            row.repeat(30, 1) * (1 + 1e-6 * torch.rand(30, 64, generator=generator)), count
        )
        assert assigned.number.tolist() == [0] * 30 and assigned.distance.max() < 1e-5
    own = torch.arange(50) % 25
    rows = torch.randn(25, 64, generator=generator)[own] * (
        1 + 1e-6 * torch.rand(50, 64, generator=generator)
    )
    for count in (None, 10, 40):
        number = clusters_of(rows, count).number
        assert torch.equal(number[:25], number[25:])
        assert count is None or len(number.unique()) == min(count, 25)


def test_too_few_rows_are_named():
    with pytest.raises(ValueError, match=r"4 images .* 5 clusters"):
        clusters_of(torch.randn(4, 3), 5)
    with pytest.raises(ValueError, match=r"2 images .* clusters"):
        clusters_of(torch.randn(2, 3))
