"""Barlow Twins against loops over its cross-correlation matrix."""

import pytest
import torch

from nearfar.losses import BarlowTwins


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(z1, z2, redundancy):
    batch, dim = z1.shape
    total = 0.0
    for i in range(dim):
        for j in range(dim):
            a, b = z1[:, i] - z1[:, i].mean(), z2[:, j] - z2[:, j].mean()
            a = a / (a.square().mean() + 1e-5).sqrt()
            b = b / (b.square().mean() + 1e-5).sqrt()
            c = float((a * b).sum()) / batch
            total += (c - 1) ** 2 if i == j else redundancy * c**2
    return total


@pytest.mark.parametrize("redundancy", [0.0, 0.0051, 1.0])
def test_is_the_loop(redundancy):
    z1 = rows(9, 4) * torch.tensor([1, 5, 0.1, 2]) + 3
    z2 = z1 + 0.5 * rows(9, 4, seed=1)
    assert BarlowTwins(redundancy)(z1, z2).item() == pytest.approx(naive(z1, z2, redundancy), rel=1e-10)


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
