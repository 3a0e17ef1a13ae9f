"""DCL and DCLW against their plain form."""

import pytest
import torch

import references as plain
from nearfar.losses import DCL


@pytest.mark.parametrize("sigma", [None, 0.5, 0.2])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize(("batch", "dim"), [(2, 3), (7, 5)])
def test_value_and_gradient_equal_the_plain_form(batch, dim, temperature, sigma):
    torch.manual_seed(0)
    views = [torch.randn(batch, dim, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    value = DCL(temperature, weighted=sigma is not None, sigma=sigma or 0.5)(*views)
    expected = plain.dcl(*views, temperature, sigma)
    torch.testing.assert_close(value, expected)
    gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
    for gradient, expected_gradient in gradients:
        torch.testing.assert_close(gradient, expected_gradient)
