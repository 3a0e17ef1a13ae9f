"""VICReg against loops written from its formulas."""

import math

import pytest
import torch

from nearfar.losses import VICReg


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(z1, z2, invariance, variance, covariance):
    batch, dim = z1.shape
    apart = sum(float((z1[i, d] - z2[i, d]) ** 2) for i in range(batch) for d in range(dim)) / (batch * dim)
    hinge = correlated = 0.0
    for z in (z1, z2):
        mean = [float(z[:, d].sum()) / batch for d in range(dim)]
        for a in range(dim):
            for b in range(dim):
                c = sum((float(z[i, a]) - mean[a]) * (float(z[i, b]) - mean[b]) for i in range(batch)) / (batch - 1)
                if a == b:
                    hinge += max(0.0, 1 - math.sqrt(c + 1e-4)) / dim / 2
                else:
                    correlated += c**2 / dim
    return invariance * apart + variance * hinge + covariance * correlated


@pytest.mark.parametrize("weights", [(25.0, 25.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_is_the_loop(weights):
    z1, z2 = 0.9 * rows(8, 5), 1.1 * rows(8, 5, seed=1)
    assert VICReg(*weights)(z1, z2).item() == pytest.approx(naive(z1, z2, *weights), rel=1e-10)


def test_gradient_reaches_both_views():
    z1, z2 = (0.9 * rows(8, 5)).requires_grad_(), (1.1 * rows(8, 5, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(VICReg(), (z1, z2))
    VICReg()(z1, z2).backward()
    assert z1.grad.norm() > 0
    assert z2.grad.norm() > 0


def test_collapse_costs_the_full_hinge_and_stays_finite():
    z = torch.ones(8, 5).requires_grad_()
    loss = VICReg()(z, z)
    loss.backward()
    assert loss.item() == pytest.approx(25 * (1 - 0.01), rel=1e-5)
    assert z.grad.isfinite().all()


def test_wrong_coefficient():
    with pytest.raises(ValueError, match="covariance must be"):
        VICReg(covariance=-1.0)
