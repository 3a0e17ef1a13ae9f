"""SimCLR against its plain form."""

import pytest
import torch

import references as plain
from nearfar.losses import SimCLR


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
@pytest.mark.parametrize(("batch", "dim"), [(2, 3), (7, 5)])
def test_value_and_gradient_equal_the_plain_form(batch, dim, temperature):
    torch.manual_seed(0)
    views = [torch.randn(batch, dim, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    value, expected = SimCLR(temperature)(*views), plain.simclr(*views, temperature)
    torch.testing.assert_close(value, expected)
    gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
    for gradient, expected_gradient in gradients:
        torch.testing.assert_close(gradient, expected_gradient)


def test_the_temperature_is_read_at_each_step():
    torch.manual_seed(0)
    views = torch.randn(2, 6, 4, dtype=torch.float64)
    loss = SimCLR(0.5)
    loss.temperature = 0.1
    torch.testing.assert_close(loss(*views), plain.simclr(*views, 0.1))
