"""`logistic_sum` against the full matrix in float64."""

import pytest
import torch
from torch.nn.functional import softplus

from nearfar.pairs import logistic_sum


def numbers(scale, bias, dtype):
    return [torch.tensor(number, dtype=dtype, requires_grad=True) for number in (scale, bias)]


def reference(full, views, scale, bias, across=False):
    matrix = full(*views, across=across)
    cosines = matrix.cosines()
    total = softplus(scale * cosines + bias, threshold=50).masked_fill(matrix.masked, 0).sum()
    return cosines.gather(1, matrix.positive[:, None])[: len(views[0]), 0], total / 2 if across else total


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(("scale", "bias"), [(5.0, -10.0), (10.0, 0.0), (100.0, -10.0), (1.0, 3.0)])
@pytest.mark.parametrize("shape", [(2, 3), (7, 5), (37, 128), (130, 32)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_all_gradients_equal_the_full_matrix(
    full, views, double, relative, small_tiles, shape, scale, bias, across, dtype
):
    inputs = [*views(*shape, dtype=dtype), *numbers(scale, bias, dtype)]
    exact = double(inputs)
    positive, total = logistic_sum(*inputs, across=across)
    expected_positive, expected = reference(full, exact[:2], *exact[2:], across)
    tolerance = max(1e-6, 1e-7 * scale) if dtype == torch.float32 else 1e-11
    assert relative([positive], [expected_positive]) < tolerance and relative([total], [expected]) < tolerance
    gradients = torch.autograd.grad(total - positive.sum(), inputs)
    expected_gradients = torch.autograd.grad(expected - expected_positive.sum(), exact)
    assert relative(gradients[:2], expected_gradients[:2]) < tolerance
    for gradient, expected_gradient in zip(gradients[2:], expected_gradients[2:], strict=True):
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=20 * tolerance, atol=20 * tolerance)


def test_a_second_backward_makes_the_gradient_again(views):
    inputs = [*views(20, 8), *numbers(5.0, -10.0, torch.float32)]
    total = logistic_sum(*inputs)[1]
    once = torch.autograd.grad(total, inputs, retain_graph=True)
    again = torch.autograd.grad(total, inputs)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_double_backward_is_refused(views):
    inputs = [*views(6, 4), *numbers(5.0, -10.0, torch.float32)]
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(logistic_sum(*inputs)[1], inputs, create_graph=True)
