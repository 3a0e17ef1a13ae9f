"""`attend` against the full [rows, keys] matrix in float64."""

import pytest
import torch
from torch.nn.functional import normalize

from nearfar.pairs import attention
from nearfar.pairs.attention import attend


def full_matrix(query, keys, temperature):
    logits = query.double() @ keys.double().T / temperature
    return logits.logsumexp(1), logits.softmax(1) @ keys.double()


def inputs(rows, keys, dim, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query, keys = (normalize(torch.randn(n, dim, generator=generator), dim=1).to(dtype) for n in (rows, keys))
    return query.requires_grad_(), keys


def relative(value, reference):
    return ((value.double() - reference).norm() / reference.norm()).item()


@pytest.fixture(params=["usual tiles", "small tiles"])
def path(request, monkeypatch):
    if request.param == "small tiles":  # several blocks of queries, many tiles, ragged last ones
        monkeypatch.setitem(attention.TILE, "cpu", 200)
        monkeypatch.setattr(attention, "ROWS", 7)


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 1, 8), (17, 33, 7), (64, 1000, 128), (3, 257, 40)])
@pytest.mark.parametrize("temperature", [0.005, 0.07, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_equal_the_full_matrix(path, shape, temperature, dtype):
    query, keys = inputs(*shape, dtype=dtype)
    log_sum_exp, mean_key = attend(query, keys, temperature)
    expected, expected_mean = full_matrix(query, keys, temperature)
    weights = torch.linspace(0.5, 2.0, len(query), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((log_sum_exp * weights.to(dtype)).sum(), query)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), query)
    # in float32 the logits themselves are rounded to about 1e-7 / temperature
    tolerance = max(1e-6, 1.2e-7 / temperature) if dtype == torch.float32 else 1e-12
    assert log_sum_exp.dtype == mean_key.dtype == dtype
    torch.testing.assert_close(
        log_sum_exp.double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=1e-6
    )
    assert relative(mean_key, expected_mean) < tolerance
    assert relative(gradient, expected_gradient.double()) < tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_accumulated_in_float32(dtype):
    query, keys = inputs(9, 500, 64, dtype=dtype)
    log_sum_exp, mean_key = attend(query, keys, 0.1)
    expected, expected_mean = full_matrix(query, keys, 0.1)
    log_sum_exp.sum().backward()
    assert log_sum_exp.dtype == mean_key.dtype == torch.float32
    assert relative(log_sum_exp, expected) < 1e-6
    assert relative(mean_key, expected_mean) < 1e-5
    assert query.grad.dtype == dtype


def test_autocast_does_not_reach_inside():
    query, keys = inputs(9, 500, 64)
    outside = attend(query, keys, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = attend(query, keys, 0.1)
    assert torch.equal(outside[0], inside[0]) and torch.equal(outside[1], inside[1])


def test_keys_and_mean_key_carry_no_gradient():
    query, keys = inputs(4, 10, 5)
    keys.requires_grad_()
    log_sum_exp, mean_key = attend(query, keys, 0.2)
    assert not mean_key.requires_grad
    log_sum_exp.sum().backward()
    assert keys.grad is None


def test_double_backward_is_refused():
    query, keys = inputs(4, 10, 5)
    log_sum_exp, _ = attend(query, keys, 0.2)
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(log_sum_exp.sum(), query, create_graph=True)


@pytest.mark.parametrize(
    ("keys", "temperature", "message"),
    [(0, 0.1, "queue is empty"), (4, 0.0, "temperature"), (4, -1.0, "temperature"), (4, float("nan"), "temperature")],
)
def test_bad_input_is_refused(keys, temperature, message):
    query, keys = inputs(3, keys, 5)
    with pytest.raises(ValueError, match=message):
        attend(query, keys, temperature)


@pytest.mark.usefixtures("unchecked")
def test_unequal_dimensions_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        attend(torch.ones(3, 4), torch.ones(3, 5), 0.1)
