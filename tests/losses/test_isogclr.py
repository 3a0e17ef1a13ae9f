"""iSogCLR against its plain form over several steps."""

import pytest
import torch

import references as plain
from nearfar.losses import ISogCLR, SogCLR


def test_value_gradient_and_state_equal_the_plain_form():
    torch.manual_seed(0)
    numbers = {"lr": 0.03, "rho": 0.3, "beta": 0.8, "gamma": 0.7}
    loss, state = ISogCLR(12, 0.2, (0.15, 0.3), **numbers).double(), {}
    loss.temperatures.fill_(0.2)  # in full precision
    for _ in range(6):
        index = torch.randperm(12)[:6]
        views = [torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        value = loss(*views, index)
        expected = plain.isogclr(state, *views, index, 12, 0.2, (0.15, 0.3), **numbers)
        torch.testing.assert_close(value, expected)
        gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
        for gradient, expected_gradient in gradients:
            torch.testing.assert_close(gradient, expected_gradient)
    assert torch.equal(loss.seen, ~state["u"].isnan())
    torch.testing.assert_close(loss.u[loss.seen], state["u"][loss.seen])
    torch.testing.assert_close(loss.momentum, state["momentum"])
    torch.testing.assert_close(loss.temperatures, state["temperatures"])
    assert len(loss.temperatures.unique()) > 3  # temperatures did move apart


def test_without_steps_it_is_sogclr():
    torch.manual_seed(0)
    fixed, learned = SogCLR(8, temperature=0.1), ISogCLR(8, temperature=0.1, lr=0.0)
    for _ in range(3):
        views = torch.randn(2, 8, 5, dtype=torch.float64)
        torch.testing.assert_close(learned(*views, torch.arange(8)), fixed(*views, torch.arange(8)))


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.9}, {"temperature_range": (0.0, 0.7)}, {"temperature_range": (0.001, 0.7)}, {"beta": 1.5}],
)
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"temperature|beta"):
        ISogCLR(8, **options)
