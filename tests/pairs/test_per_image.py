"""`tempered_log_sum_exp` against the full matrix in float64, and against one temperature for all."""

import pytest
import torch

from nearfar.pairs import cosine, log_sum_exp, per_image_log_sum_exp


def weigh(positive, sums):
    weights = torch.linspace(0.5, 1.5, sums.numel(), dtype=sums.dtype).reshape(sums.shape)
    return (sums * weights).sum() - (positive * weights[0]).sum()


def reference(full, views, temperatures):
    matrix = full(*views)
    cosines = matrix.cosines()
    logits = (cosines / temperatures.repeat(2)[:, None]).masked_fill(matrix.masked, -torch.inf)
    batch = len(views[0])
    mean = (logits.softmax(1) * cosines).sum(1).reshape(2, batch)
    positive = cosines.gather(1, matrix.positive[:, None])[:batch, 0]
    return positive, logits.logsumexp(1).reshape(2, batch), mean


@pytest.mark.parametrize("shape", [(2, 3), (7, 5), (11, 16), (37, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradient_equal_the_full_matrix(full, views, double, relative, small_tiles, shape, dtype):
    inputs = views(*shape, dtype=dtype)
    exact = double(inputs)
    temperatures = torch.linspace(0.1, 0.7, shape[0], dtype=torch.float64)
    results = per_image_log_sum_exp(*inputs, temperatures.to(dtype))
    expected = reference(full, exact, temperatures)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    for result, value in zip(results, expected, strict=True):
        assert relative([result], [value]) < tolerance
    gradients = torch.autograd.grad(weigh(*results[:2]), inputs)
    assert relative(gradients, torch.autograd.grad(weigh(*expected[:2]), exact)) < tolerance
    assert not results[2].requires_grad


def test_equal_temperatures_are_the_symmetric_form(views, relative):
    inputs = views(30, 16)
    positive, sums, _ = per_image_log_sum_exp(*inputs, torch.full((30,), 0.2))
    scaled, symmetric = log_sum_exp(*inputs, cosine(0.2))
    assert relative([sums, positive / 0.2], [symmetric, scaled]) < 1e-6
    gradients = torch.autograd.grad(weigh(positive / 0.2, sums), inputs)
    assert relative(gradients, torch.autograd.grad(weigh(scaled, symmetric), inputs)) < 1e-6


def test_double_backward_is_refused(views):
    inputs = views(6, 4)
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(per_image_log_sum_exp(*inputs, torch.ones(6))[1].sum(), inputs, create_graph=True)
