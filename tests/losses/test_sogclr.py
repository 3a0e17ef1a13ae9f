"""SogCLR against its plain form over several steps, and its identity with DCL."""

import torch

import references as plain
from nearfar.losses import DCL, SogCLR


def test_value_gradient_and_state_equal_the_plain_form():
    torch.manual_seed(0)
    loss, state = SogCLR(12, temperature=0.2, gamma=0.7).double(), {}
    for _ in range(5):
        index = torch.randperm(12)[:6]
        views = [torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        value, expected = loss(*views, index), plain.sogclr(state, *views, index, 12, temperature=0.2, gamma=0.7)
        torch.testing.assert_close(value, expected)
        gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
        for gradient, expected_gradient in gradients:
            torch.testing.assert_close(gradient, expected_gradient)
    assert torch.equal(loss.seen, ~state["u"].isnan()) and loss.seen.sum() > 6
    torch.testing.assert_close(loss.u[loss.seen], state["u"][loss.seen])


def test_at_gamma_one_the_gradient_is_that_of_dcl():
    torch.manual_seed(0)
    loss = SogCLR(8, temperature=0.1, gamma=1.0)
    for _ in range(2):  # at the first visit, and after
        views = [torch.randn(8, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        gradients = torch.autograd.grad(loss(*views, torch.arange(8)), views)
        for gradient, expected in zip(gradients, torch.autograd.grad(DCL(0.1)(*views), views), strict=True):
            torch.testing.assert_close(gradient, expected)


def test_evaluation_leaves_the_state_alone():
    torch.manual_seed(0)
    loss = SogCLR(8).eval()
    loss(torch.randn(4, 5), torch.randn(4, 5), torch.arange(4))
    assert not loss.seen.any() and not loss.u.any()
