"""iSogCLR against its plain form over several steps."""

import pytest
import torch

import references as plain
from nearfar.losses import ISogCLR, SogCLR


def test_value_gradient_and_state_equal_the_plain_form():
    torch.manual_seed(0)
    numbers = {"lr": 0.03, "rho": 0.3, "beta": 0.8, "gamma": 0.7, "gradient_limit": 1.5}
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


def test_gradient_is_that_of_the_objective_whose_rows_have_the_weight_of_their_temperature():
    """At gamma = 1 a row's term is t_i log(mean of exp((s_ij - s_pos) / t_i)), written out here for each row."""
    torch.manual_seed(0)
    loss = ISogCLR(6, gamma=1.0).double()
    loss.temperatures.copy_(torch.linspace(0.05, 0.7, 6))
    views = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    rows, temperatures = torch.nn.functional.normalize(views.flatten(0, 1), dim=1), loss.temperatures.repeat(2)
    terms = []
    for i in range(12):
        positive = rows[i] @ rows[(i + 6) % 12]
        others = torch.stack([rows[i] @ rows[j] for j in range(12) if j % 6 != i % 6])
        terms.append(temperatures[i] * ((others - positive) / temperatures[i]).exp().mean().log())
    (expected,) = torch.autograd.grad(sum(terms) / 12, views)
    (gradient,) = torch.autograd.grad(loss.eval()(*views, torch.arange(6)), views)
    torch.testing.assert_close(gradient, expected)


def test_without_steps_it_is_sogclr_times_the_temperature():
    torch.manual_seed(0)
    fixed, learned = SogCLR(8, temperature=0.1), ISogCLR(8, temperature=0.1, lr=0.0)
    for _ in range(3):
        views = torch.randn(2, 8, 5, dtype=torch.float64)
        torch.testing.assert_close(learned(*views, torch.arange(8)), 0.1 * fixed(*views, torch.arange(8)))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.9},
        {"temperature_range": (0.0, 0.7)},
        {"temperature_range": (0.001, 0.7)},
        {"beta": 1.5},
        {"gradient_limit": 0.0},
    ],
)
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"temperature|beta|gradient_limit"):
        ISogCLR(8, **options)
