"""iSogCLR against a loop over several steps."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from nearfar.losses import ISogCLR, SogCLR


class Loop:
    def __init__(self, t0, low, high, lr, rho, beta, gamma):
        self.t0, self.low, self.high, self.lr, self.rho, self.beta, self.gamma = t0, low, high, lr, rho, beta, gamma
        self.u, self.t, self.m = {}, {}, {}

    def __call__(self, z1, z2, index):
        rows, batch = [*z1, *z2], len(z1)
        total, new_u, slopes = 0.0, {}, {}
        for i, x in enumerate(rows):
            image, positive = index[i % batch].item(), (i + batch) % len(rows)
            t = self.t.get(image, self.t0)
            cosines = [cosine_similarity(x, y, dim=0) for j, y in enumerate(rows) if j % batch != i % batch]
            g = sum(torch.exp(s / t) for s in cosines) / len(cosines)
            u = g.item() if image not in self.u else (1 - self.gamma) * self.u[image] + self.gamma * g.item()
            weights = [math.exp(s.item() / t) / (u * (2 * batch - 2)) for s in cosines]
            slope = math.log(u) + self.rho - sum(w * s.item() for w, s in zip(weights, cosines, strict=True)) / t
            new_u.setdefault(image, []).append(u)
            slopes.setdefault(image, []).append(slope)
            total = total - cosine_similarity(x, rows[positive], dim=0) / t + g / u
        for image in new_u:
            self.u[image] = sum(new_u[image]) / 2
            self.m[image] = (1 - self.beta) * self.m.get(image, 0.0) + self.beta * sum(slopes[image]) / 2
            self.t[image] = min(max(self.t.get(image, self.t0) - self.lr * self.m[image], self.low), self.high)
        return total / len(rows)


def test_value_gradient_and_state_equal_the_loop():
    torch.manual_seed(0)
    loss = ISogCLR(12, 0.2, (0.15, 0.3), lr=0.03, rho=0.3, beta=0.8, gamma=0.7).double()
    loop = Loop(0.2, 0.15, 0.3, 0.03, 0.3, 0.8, 0.7)
    loss.temperatures.fill_(0.2)  # in full precision
    for _ in range(6):
        index = torch.randperm(12)[:6]
        views = [torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        value, expected = loss(*views, index), loop(*views, index)
        torch.testing.assert_close(value, expected)
        gradients = zip(torch.autograd.grad(value, views), torch.autograd.grad(expected, views), strict=True)
        for gradient, expected_gradient in gradients:
            torch.testing.assert_close(gradient, expected_gradient)
    for image in loop.u:
        assert loss.u[image].item() == pytest.approx(loop.u[image])
        assert loss.momentum[image].item() == pytest.approx(loop.m[image])
        assert loss.temperatures[image].item() == pytest.approx(loop.t[image])
    assert len(set(loop.t.values())) > 3  # temperatures did move apart


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
