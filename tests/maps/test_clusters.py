"""Clusters on data whose groups are known."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from nearfar.maps import clusters_of


@pytest.mark.parametrize("groups", [3, 7])
def test_planted_groups_are_found_and_counted(groups):
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(groups, 16, generator=generator), dim=1)
    truth = torch.arange(groups).repeat_interleave(torch.arange(groups) * 10 + 20)
    found = clusters_of(centres[truth] + 0.05 * torch.randn(len(truth), 16, generator=generator))
    assert adjusted_rand_score(truth, found.number) == 1.0
    sizes = found.number.bincount().tolist()
    assert sizes == sorted(sizes, reverse=True) and max(found.scores, key=found.scores.get) == groups
    assert found.distance.min() >= 0 and found.distance.max() < 0.2


def test_rows_beyond_those_that_make_the_plane_are_placed_among_them(monkeypatch):
    monkeypatch.setattr("nearfar.maps.clusters.LAID_OUT", 60)
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(4, 16, generator=generator), dim=1)
    truth = torch.arange(4).repeat(50)
    found = clusters_of(centres[truth] + 0.05 * torch.randn(200, 16, generator=generator), 4)
    assert adjusted_rand_score(truth, found.number) == 1.0 and found.distance.max() < 0.2


def test_digits_fall_into_about_ten_groups_of_digits():
    digits = load_digits()
    found = clusters_of(torch.from_numpy(digits.data).float())
    assert 8 <= len(found.number.unique()) <= 14
    assert adjusted_rand_score(digits.target, found.number) > 0.5


def test_too_few_rows_are_named():
    with pytest.raises(ValueError, match="4 images cannot be put into 5 clusters"):
        clusters_of(torch.randn(4, 3), 5)
    with pytest.raises(ValueError, match="2 images cannot be put into two or more clusters"):
        clusters_of(torch.randn(2, 3))
