"""The loss of BYOL and SimSiam."""

import pytest
import torch

import references as plain
from nearfar.losses import NegativeCosine


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_is_the_squared_distance_of_unit_rows():
    p, z = rows(6, 5), rows(6, 5, seed=1)
    expected = (plain.unit(p) - plain.unit(z)).square().sum() / 6
    assert plain.negative_cosine(p, z).item() == pytest.approx(expected.item(), rel=1e-12)
    assert NegativeCosine()(p, z).item() == pytest.approx(expected.item(), rel=1e-12)


def test_ends_of_the_range():
    p = rows(6, 5)
    assert NegativeCosine()(p, 3 * p).item() == pytest.approx(0, abs=1e-12)
    assert NegativeCosine()(p, -p).item() == pytest.approx(4, rel=1e-12)
