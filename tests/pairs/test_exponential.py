"""`log_sum_exp` against the full matrix in float64."""

import pytest
import torch

from nearfar.pairs import cauchy, cosine, exponential, gaussian, log_sum_exp

SHAPES = [(2, 3), (3, 8), (7, 5), (11, 16), (37, 128), (130, 32)]
KERNELS = {
    "t 1": cosine(1.0),
    "t 0.1": cosine(0.1),
    "t 0.01, running maximum": cosine(0.01),
    "gaussian": gaussian(0.5),
    "gaussian, any length": gaussian(1.5, unit=False),
    "cauchy": cauchy(),
}


def weigh(positive, sums):
    """A scalar in which every output has its own weight."""
    weights = torch.linspace(0.5, 1.5, sums.numel(), dtype=sums.dtype).reshape(sums.shape)
    return (sums * weights).sum() - (positive * weights[0]).sum()


def reference(full, kernel, views, across=False):
    matrix = full(*views, across=across)
    log_similarity = matrix.log_similarity(kernel)
    batch = len(views[0])
    u = log_similarity.gather(1, matrix.positive[:, None])[:batch, 0]
    if not kernel.exponential:
        u = torch.exp(-u)
    return u, log_similarity.masked_fill(matrix.masked, -torch.inf).logsumexp(1).reshape(2, batch)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float64_equals_the_full_matrix(full, views, relative, small_tiles, shape, kernel, across):
    inputs = views(*shape, dtype=torch.float64)
    positive, sums = log_sum_exp(*inputs, kernel, across=across)
    expected_positive, expected = reference(full, kernel, inputs, across)
    torch.testing.assert_close(sums, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(positive, expected_positive, rtol=1e-11, atol=1e-11)
    gradients = torch.autograd.grad(weigh(positive, sums), inputs)
    assert relative(gradients, torch.autograd.grad(weigh(expected_positive, expected), inputs)) < 1e-11


@pytest.mark.parametrize("kept", [0, exponential.KEPT])
@pytest.mark.parametrize("kernel", [k for name, k in KERNELS.items() if "maximum" not in name])
@pytest.mark.parametrize("shape", [(7, 5), (37, 128), (300, 16)], ids=str)
def test_float32_gradient_to_one_in_a_million(full, views, double, relative, monkeypatch, shape, kernel, kept):
    monkeypatch.setattr(exponential, "KEPT", kept)
    inputs = views(*shape)
    exact = double(inputs)
    positive, sums = log_sum_exp(*inputs, kernel)
    expected_positive, expected = reference(full, kernel, exact)
    assert sums.dtype == positive.dtype == torch.float32
    assert relative([sums, positive], [expected, expected_positive]) < 1e-6
    gradients = torch.autograd.grad(weigh(positive, sums), inputs)
    tolerance = max(1e-6, 6e-8 * expected.abs().max().item())  # of far rows the exponents themselves are rounded
    assert relative(gradients, torch.autograd.grad(weigh(expected_positive, expected), exact)) < tolerance


@pytest.mark.parametrize("temperature", [0.02, 0.0167, 0.0166, 0.005, 0.001])
def test_small_temperatures_stay_finite_and_exact(full, views, double, relative, temperature):
    inputs = views(40, 4, near=0.01)
    exact = double(inputs)
    positive, sums = log_sum_exp(*inputs, cosine(temperature))
    expected_positive, expected = reference(full, cosine(temperature), exact)
    gradients = torch.autograd.grad(weigh(positive, sums), inputs)
    # the logits themselves are rounded to about 1e-7 / temperature, on either side of the switch at 1 / 60
    assert relative([sums, positive], [expected, expected_positive]) < 1e-6
    assert relative(gradients, torch.autograd.grad(weigh(expected_positive, expected), exact)) < 3e-7 / temperature


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_accumulated_in_float32(full, views, double, relative, dtype):
    inputs = views(60, 32, dtype=dtype)
    exact = double(inputs)
    positive, sums = log_sum_exp(*inputs, cosine(0.1))
    expected_positive, expected = reference(full, cosine(0.1), exact)
    assert sums.dtype == positive.dtype == torch.float32
    assert relative([sums, positive], [expected, expected_positive]) < 1e-6
    gradients = torch.autograd.grad(weigh(positive, sums), inputs)
    assert {gradient.dtype for gradient in gradients} == {dtype}
    rounding = torch.finfo(dtype).eps
    assert relative(gradients, torch.autograd.grad(weigh(expected_positive, expected), exact)) < rounding


def test_autocast_reaches_neither_pass(views):
    inputs = views(60, 32)
    outside = torch.autograd.grad(weigh(*log_sum_exp(*inputs, cosine(0.1))), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(weigh(*log_sum_exp(*inputs, cosine(0.1))), inputs)
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))


@pytest.mark.parametrize("kernel", [cosine(0.1), cosine(0.01)], ids=["kept tiles", "running maximum"])
def test_a_second_backward_through_a_retained_graph_gives_the_same(views, kernel):
    inputs = views(20, 8)
    loss = weigh(*log_sum_exp(*inputs, kernel))
    once = torch.autograd.grad(loss, inputs, retain_graph=True)
    again = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_a_view_without_gradient(views):
    first, second = views(20, 8)
    both = torch.autograd.grad(weigh(*log_sum_exp(first, second, cosine(0.1))), [first, second])
    weigh(*log_sum_exp(first, second.detach(), cosine(0.1))).backward()
    assert torch.equal(first.grad, both[0]) and second.grad is None


def test_rows_of_zeros_are_finite(views):
    first, second = views(6, 4)
    with torch.no_grad():
        first[2] = 0
    weigh(*log_sum_exp(first, second, cosine(0.1))).backward()
    assert torch.isfinite(first.grad).all() and torch.isfinite(second.grad).all()


def test_double_backward_is_refused(views):
    inputs = views(6, 4)
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(weigh(*log_sum_exp(*inputs, cosine(0.1))), inputs, create_graph=True)


@pytest.mark.usefixtures("unchecked")
def test_bad_shapes_are_refused(views):
    with pytest.raises(ValueError, match="at least two images"):
        log_sum_exp(*views(1, 4), cosine(0.1))
    with pytest.raises(ValueError, match="equal shape"):
        log_sum_exp(torch.ones(3, 4), torch.ones(4, 4), cosine(0.1))
