"""Sums over the images that targets relate, against the full matrix in float64."""

import pytest
import torch
from torch.nn.functional import normalize

from nearfar.pairs import attention, relation_sum


def by_matrix(first, second, targets, temperature):
    """sum_ij w_ij (x_i.y_j + y_i.x_j), with w the softmax of the targets over the others."""
    t = normalize(targets.double(), dim=1)
    logits = (t @ t.T / temperature).fill_diagonal_(-torch.inf)
    x, y = (normalize(view.double(), dim=1) for view in (first, second))
    return (logits.softmax(1) * (x @ y.T + y @ x.T)).sum()


@pytest.mark.parametrize("rows", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of_targets", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tiles", [None, 7])
def test_the_value_and_gradient_are_those_of_the_full_matrix(monkeypatch, rows, of_targets, tiles):
    """In the precision of the views, however the targets are stored."""
    if tiles is not None:
        monkeypatch.setitem(attention.TILE, "cpu", 40)
        monkeypatch.setitem(attention.ROWS, "cpu", tiles)
    made = torch.Generator().manual_seed(0)
    targets = torch.randn(17, 6, generator=made).to(of_targets)
    views = [torch.randn(17, 5, generator=made).to(rows).requires_grad_() for _ in range(2)]
    exact = [view.detach().double().requires_grad_() for view in views]
    value, wanted = relation_sum(*views, targets, 0.1), by_matrix(*exact, targets, 0.1)
    tolerance = 1e-12 if rows == torch.float64 else 2e-6
    torch.testing.assert_close(value.double(), wanted, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(value, views)
    tolerance = torch.finfo(rows).eps if rows == torch.bfloat16 else tolerance
    for gradient, expected in zip(gradients, torch.autograd.grad(wanted, exact), strict=True):
        assert gradient.dtype == rows
        assert (gradient.double() - expected).norm() <= tolerance * expected.norm()
