"""VICReg against its plain form."""

import pytest
import torch

import references as plain
from nearfar.losses import VICReg


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("weights", [(25.0, 25.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_is_the_plain_form(weights):
    z1, z2 = 0.9 * rows(8, 5), 1.1 * rows(8, 5, seed=1)
    assert VICReg(*weights)(z1, z2).item() == pytest.approx(plain.vicreg(z1, z2, *weights).item(), rel=1e-10)


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
