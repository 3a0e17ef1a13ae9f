"""JCL against its plain form."""

import pytest
import torch

import references as plain
from nearfar.losses import JCL, MoCo


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEYS, QUEUE = rows(5, 7), rows(4, 5, 7, seed=1), plain.unit(rows(11, 7, seed=2))


@pytest.mark.parametrize("lam", [0.0, 0.5, 2.0])
def test_is_the_plain_form(lam):
    assert JCL(0.2, lam)(QUERY, KEYS, QUEUE).item() == pytest.approx(
        plain.jcl(QUERY, KEYS, QUEUE, 0.2, lam).item(), rel=1e-10
    )


def test_gradient_by_finite_differences():
    query = QUERY.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(JCL()(query, KEYS, QUEUE), query)
    step = rows(5, 7, seed=9) * 1e-6
    change = (plain.jcl(QUERY + step, KEYS, QUEUE) - plain.jcl(QUERY - step, KEYS, QUEUE)).item()
    assert (gradient * step).sum().item() * 2 == pytest.approx(change, rel=1e-6)


def test_one_key_is_moco_in_value_and_gradient():
    query = QUERY.clone().requires_grad_()
    ours, theirs = JCL()(query, KEYS[:1], QUEUE), MoCo()(query, KEYS[0], QUEUE)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(ours, query), torch.autograd.grad(theirs, query))


def test_spread_keys_cost_more():
    assert JCL(lam=2.0)(QUERY, KEYS, QUEUE) > JCL(lam=1.0)(QUERY, KEYS, QUEUE) > JCL(lam=0.0)(QUERY, KEYS, QUEUE)


def test_lam_below_zero():
    with pytest.raises(ValueError, match="lam must be a finite number, 0 or above"):
        JCL(lam=-1.0)
