"""`weighted_sum` against the full matrix in float64."""

import pytest
import torch

from nearfar.pairs import cauchy, cosine, gaussian, weighted_sum

KERNELS = {
    "cosine": cosine(0.1),
    "gaussian": gaussian(0.5),
    "gaussian, any length": gaussian(1.5, unit=False),
    "cauchy": cauchy(),
}


def reference(full, kernel, views, weights):
    matrix = full(*views)
    log_similarity = matrix.log_similarity(kernel)
    u = log_similarity.gather(1, matrix.positive[:, None])[: len(views[0]), 0]
    sums = log_similarity.exp().masked_fill(matrix.masked, 0).sum(1).reshape(weights.shape)
    return u if kernel.exponential else torch.exp(-u), (weights * sums).sum(), sums


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("shape", [(2, 3), (7, 5), (11, 16), (37, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_sums_and_gradient_equal_the_full_matrix(
    full, views, double, relative, small_tiles, shape, kernel, dtype
):
    inputs = views(*shape, dtype=dtype)
    exact = double(inputs)
    weights = torch.linspace(0.1, 2.0, 2 * shape[0], dtype=torch.float64).reshape(2, -1)
    positive, total, sums = weighted_sum(*inputs, weights.to(dtype), kernel)
    expected_positive, expected, expected_sums = reference(full, kernel, exact, weights)
    largest = expected_sums.log().abs().max().item()  # exponents are rounded to this many float32 steps
    tolerance = max(1e-6, 1.2e-7 * largest) if dtype == torch.float32 else 1e-12
    assert relative([positive], [expected_positive]) < tolerance
    assert relative([total], [expected]) < tolerance and relative([sums], [expected_sums]) < tolerance
    gradients = torch.autograd.grad(3 * total - positive.sum(), inputs)
    expected_gradients = torch.autograd.grad(3 * expected - expected_positive.sum(), exact)
    assert relative(gradients, expected_gradients) < tolerance
    assert not sums.requires_grad


def test_a_second_backward_makes_the_gradient_again(views):
    inputs = views(20, 8)
    _, total, _ = weighted_sum(*inputs, torch.rand(2, 20), gaussian(0.5))
    once = torch.autograd.grad(total, inputs, retain_graph=True)
    again = torch.autograd.grad(total, inputs)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_loss_scaling_does_not_overflow_float16(views, relative):
    """The stored gradient stays float32 until the incoming one has multiplied it."""
    inputs = views(200, 16, dtype=torch.float16)
    weights = torch.full((2, 200), 1e-9)
    scale = 2.0**30
    gradients = torch.autograd.grad(scale * weighted_sum(*inputs, weights, gaussian(0.5))[1], inputs)
    wide = [tensor.detach().float().requires_grad_() for tensor in inputs]
    expected = torch.autograd.grad(scale * weighted_sum(*wide, weights, gaussian(0.5))[1], wide)
    assert relative(gradients, expected) < 1e-3


def test_double_backward_is_refused(views):
    inputs = views(6, 4)
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(weighted_sum(*inputs, torch.ones(2, 6), cosine(0.1))[1], inputs, create_graph=True)


def test_a_batch_of_one_is_refused(views):
    with pytest.raises(ValueError, match="at least two images"):
        weighted_sum(*views(1, 4), torch.ones(2, 1), cosine(0.1))
