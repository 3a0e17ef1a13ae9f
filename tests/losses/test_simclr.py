"""SimCLR against a loop written from the paper's Eq. 1."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from nearfar.losses import SimCLR


def loop(z1, z2, t):
    rows, batch = [*z1, *z2], len(z1)
    total = 0.0
    for i, x in enumerate(rows):
        positive = (i + batch) % len(rows)
        similarity = [torch.exp(cosine_similarity(x, y, dim=0) / t) for y in rows]
        total = total - torch.log(similarity[positive] / sum(s for j, s in enumerate(similarity) if j != i))
    return total / len(rows)


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
@pytest.mark.parametrize(("batch", "dim"), [(2, 3), (7, 5)])
def test_value_and_gradient_equal_the_loop(batch, dim, temperature):
    torch.manual_seed(0)
    views = [torch.randn(batch, dim, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    value, expected = SimCLR(temperature)(*views), loop(*views, temperature)
    torch.testing.assert_close(value, expected)
    gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
    for gradient, expected_gradient in gradients:
        torch.testing.assert_close(gradient, expected_gradient)


def test_the_temperature_is_read_at_each_step():
    torch.manual_seed(0)
    views = torch.randn(2, 6, 4, dtype=torch.float64)
    loss = SimCLR(0.5)
    loss.temperature = 0.1
    torch.testing.assert_close(loss(*views), loop(*views, 0.1))
