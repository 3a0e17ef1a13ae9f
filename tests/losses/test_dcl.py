"""DCL and DCLW against loops written from the paper's Eq. 6 and 7."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from nearfar.losses import DCL


def loop(z1, z2, t, sigma=None):
    rows, batch = [*z1, *z2], len(z1)
    with torch.no_grad():
        positives = [cosine_similarity(x, y, dim=0) for x, y in zip(z1, z2, strict=True)]
        mass = sum(torch.exp(s / sigma) for s in positives) if sigma else 1
    total = 0.0
    for i, x in enumerate(rows):
        positive = (i + batch) % len(rows)
        weight = 2 - batch * torch.exp(positives[i % batch] / sigma) / mass if sigma else 1
        negatives = [
            torch.exp(cosine_similarity(x, y, dim=0) / t) for j, y in enumerate(rows) if j not in (i, positive)
        ]
        total = total - weight * cosine_similarity(x, rows[positive], dim=0) / t + torch.log(sum(negatives))
    return total / len(rows)


@pytest.mark.parametrize("sigma", [None, 0.5, 0.2])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize(("batch", "dim"), [(2, 3), (7, 5)])
def test_value_and_gradient_equal_the_loop(batch, dim, temperature, sigma):
    torch.manual_seed(0)
    views = [torch.randn(batch, dim, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    value = DCL(temperature, weighted=sigma is not None, sigma=sigma or 0.5)(*views)
    expected = loop(*views, temperature, sigma)
    torch.testing.assert_close(value, expected)
    gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
    for gradient, expected_gradient in gradients:
        torch.testing.assert_close(gradient, expected_gradient)
