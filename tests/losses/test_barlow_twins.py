"""Barlow Twins against its plain form."""

import pytest
import torch

import references as plain
from nearfar.losses import BarlowTwins


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("redundancy", [0.0, 0.0051, 1.0])
def test_is_the_plain_form(redundancy):
    z1 = rows(9, 4) * torch.tensor([1, 5, 0.1, 2]) + 3
    z2 = z1 + 0.5 * rows(9, 4, seed=1)
    expected = plain.barlow_twins(z1, z2, redundancy).item()
    assert BarlowTwins(redundancy)(z1, z2).item() == pytest.approx(expected, rel=1e-10)


def test_gradient_reaches_both_views():
    z1, z2 = rows(9, 4).requires_grad_(), rows(9, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(BarlowTwins(0.3), (z1, z2))
    BarlowTwins()(z1, z2).backward()
    assert z1.grad.norm() > 0
    assert z2.grad.norm() > 0


def test_equal_independent_views_cost_nothing():
    z = torch.linalg.qr(rows(40, 4) - rows(40, 4).mean(0))[0] * 100
    assert BarlowTwins(1.0)(z, z).item() == pytest.approx(0, abs=1e-8)


def test_wrong_redundancy():
    with pytest.raises(ValueError, match="redundancy must be"):
        BarlowTwins(-1.0)
