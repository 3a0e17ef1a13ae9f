"""SogCLR against a loop over several steps, and its identity with DCL."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from nearfar.losses import DCL, SogCLR


class Loop:
    def __init__(self, t, gamma):
        self.t, self.gamma, self.u = t, gamma, {}

    def __call__(self, z1, z2, index):
        rows, batch = [*z1, *z2], len(z1)
        total, new = 0.0, {}
        for i, x in enumerate(rows):
            image, positive = index[i % batch].item(), (i + batch) % len(rows)
            others = [
                torch.exp(cosine_similarity(x, y, dim=0) / self.t) for j, y in enumerate(rows) if j % batch != i % batch
            ]
            g = sum(others) / len(others)
            u = g.item() if image not in self.u else (1 - self.gamma) * self.u[image] + self.gamma * g.item()
            new.setdefault(image, []).append(u)
            total = total - cosine_similarity(x, rows[positive], dim=0) / self.t + g / u
        self.u |= {image: sum(both) / 2 for image, both in new.items()}
        return total / len(rows)


def test_value_gradient_and_state_equal_the_loop():
    torch.manual_seed(0)
    loss, loop = SogCLR(12, temperature=0.2, gamma=0.7).double(), Loop(0.2, 0.7)
    for _ in range(5):
        index = torch.randperm(12)[:6]
        views = [torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        value, expected = loss(*views, index), loop(*views, index)
        torch.testing.assert_close(value, expected)
        gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
        for gradient, expected_gradient in gradients:
            torch.testing.assert_close(gradient, expected_gradient)
    for image, u in loop.u.items():
        assert loss.u[image].item() == pytest.approx(u)
    assert set(loss.seen.nonzero().flatten().tolist()) == set(loop.u)


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
