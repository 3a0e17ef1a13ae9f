"""Drawing negatives, and `drawn_sum` against a loop in float64."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from nearfar.pairs import cauchy, cosine, gaussian, sample_others, sampled, sampled_sum

KERNELS = {
    "cosine": cosine(0.1),
    "gaussian": gaussian(0.5),
    "gaussian, any length": gaussian(1.5, unit=False),
    "cauchy": cauchy(),
}


def reference(kernel, views, others, weights):
    def u(x, y):
        if kernel.unit:
            return kernel.scale * cosine_similarity(x, y, dim=0) + kernel.constant
        return kernel.constant - kernel.scale / 2 * (x - y).square().sum()

    def similarity(x, y):
        return u(x, y).exp() if kernel.exponential else 1 / u(x, y)

    sums = torch.stack(
        [
            torch.stack([sum(similarity(view[i], y[j]) for j in others[i] for y in views) for i in range(len(view))])
            for view in views
        ]
    )
    positive = torch.stack([u(x, y) for x, y in zip(*views, strict=True)])
    return positive, (weights * sums).sum(), sums


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("shape", [(2, 3, 1), (7, 5, 1), (9, 16, 3), (6, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_sums_and_gradient_equal_a_loop(monkeypatch, views, double, relative, shape, kernel, dtype):
    monkeypatch.setattr(sampled, "BLOCK", 12)  # blocks of a few rows
    batch, dim, count = shape
    inputs = views(batch, dim, dtype=dtype)
    exact = double(inputs)
    others = sample_others(batch, count)
    weights = torch.linspace(0.1, 2.0, 2 * batch, dtype=torch.float64).reshape(2, -1)
    results = sampled_sum(*inputs, others, weights.to(dtype), kernel)
    expected = reference(kernel, exact, others, weights)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    for result, value in zip(results, expected, strict=True):
        assert relative([result], [value]) < tolerance
    gradients = torch.autograd.grad(3 * results[1] - results[0].sum(), inputs)
    expected_gradients = torch.autograd.grad(3 * expected[1] - expected[0].sum(), exact)
    assert relative(gradients, expected_gradients) < tolerance


def test_a_second_backward_makes_the_gradient_again(views):
    inputs = views(20, 8)
    total = sampled_sum(*inputs, sample_others(20, 2), torch.rand(2, 20), gaussian(0.5))[1]
    once = torch.autograd.grad(total, inputs, retain_graph=True)
    again = torch.autograd.grad(total, inputs)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize(("batch", "count"), [(2, 1), (5, 1), (5, 2), (5, 4), (200, 64), (200, 65), (200, 199)])
def test_draws_are_different_others(batch, count):
    others = sample_others(batch, count)
    assert others.shape == (batch, count)
    assert others.min() >= 0 and others.max() < batch
    assert (others != torch.arange(batch)[:, None]).all()
    ordered = others.sort(1).values
    assert (ordered[:, 1:] != ordered[:, :-1]).all()


@pytest.mark.parametrize("one_by_one", [64, 0])
def test_every_subset_is_equally_likely(monkeypatch, one_by_one):
    monkeypatch.setattr(sampled, "_ONE_BY_ONE", one_by_one)
    torch.manual_seed(0)
    counts = torch.zeros(5, 5, 5)
    rounds = 4000
    for _ in range(rounds):
        low, high = sample_others(5, 2).sort(1).values.T
        counts[torch.arange(5), low, high] += 1
    possible = counts[counts > 0]
    assert len(possible) == 5 * 6  # 4 over 2 subsets for each of 5 images
    chi_square = ((possible - rounds / 6).square() / (rounds / 6)).sum().item()
    assert chi_square < 60  # 25 degrees of freedom: above 60 once in 10 000 seeds


@pytest.mark.parametrize("count", [0, 5, 9])
def test_impossible_draws_are_refused(count):
    with pytest.raises(ValueError, match="negatives per image"):
        sample_others(5, count)


def test_double_backward_is_refused(views):
    inputs = views(6, 4)
    total = sampled_sum(*inputs, sample_others(6, 1), torch.ones(2, 6), gaussian(0.5))[1]
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(total, inputs, create_graph=True)
