"""Queries against a queue, and against the keys of the other images, by the full matrix in float64."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from nearfar.pairs import attend, attend_in_batch, attention, relate_in_batch


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


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 1, 8), (17, 33, 7), (9, 130, 16), (3, 57, 40)])
@pytest.mark.parametrize("temperature", [0.005, 1.0])
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


def test_only_the_query_gets_a_gradient_once_and_autocast_stays_outside():
    query, keys = inputs(4, 10, 5)
    keys.requires_grad_()
    log_sum_exp, mean_key = attend(query, keys, 0.2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = attend(query, keys, 0.2)
    assert torch.equal(log_sum_exp, inside[0]) and torch.equal(mean_key, inside[1])
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(log_sum_exp.sum(), query, create_graph=True)
    log_sum_exp.sum().backward()
    assert not mean_key.requires_grad and keys.grad is None


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


def whole_batch(query, keys, temperature, key_temperature):
    q, k = normalize(query.double(), dim=1), normalize(keys.detach().double(), dim=1)
    itself = torch.eye(len(q), dtype=torch.bool)
    logits = q @ k.T / temperature
    weights = (k @ k.T / key_temperature).masked_fill(itself, -math.inf).softmax(1)
    return logits.diagonal(), logits.masked_fill(itself, -math.inf).logsumexp(1), (weights * logits).sum(1)


def pair(batch, dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(batch, dim, generator=generator)
    keys = 3 * (query + torch.randn(batch, dim, generator=generator))
    return query.to(dtype).requires_grad_(), keys.to(dtype)


def weighted(results):
    return sum((result * torch.linspace(k, 2, len(result)).to(result)).sum() for k, result in enumerate(results))


@pytest.fixture(params=["one panel", "many panels", "nothing kept"])
def panels(request, monkeypatch):
    if request.param != "one panel":
        monkeypatch.setitem(attention.TILE, "cpu", 40)
        monkeypatch.setattr(attention, "ROWS", 7)
    if request.param == "nothing kept":
        monkeypatch.setattr(attention, "KEPT", 0)


@pytest.mark.parametrize("batch", [2, 3, 30])
@pytest.mark.parametrize("temperature", [0.005, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others_of_the_batch_equal_the_full_matrix(panels, batch, temperature, dtype):
    query, keys = pair(batch, 6, dtype)
    found = relate_in_batch(query, keys, temperature, 0.05)
    expected = whole_batch(query, keys, temperature, 0.05)
    (gradient,) = torch.autograd.grad(weighted(found), query, retain_graph=True)
    (again,) = torch.autograd.grad(weighted(found), query)
    (wanted,) = torch.autograd.grad(weighted(expected), query)
    tolerance = max(1e-6, 2e-7 / temperature) if dtype == torch.float32 else 1e-11
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    assert (gradient - wanted).norm() <= tolerance * wanted.norm()
    assert torch.equal(gradient, again)
    for two, three in zip(attend_in_batch(query, keys, temperature), found, strict=False):
        assert torch.equal(two, three)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rows_of_the_batch_are_normalised_and_summed_in_float32(panels, dtype):
    query, keys = pair(30, 16, dtype)
    found = relate_in_batch(query, keys, 0.1, 0.05)
    weighted(found).backward()
    for ours, theirs in zip(found, whole_batch(query, keys, 0.1, 0.05), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    assert query.grad.dtype == dtype


@pytest.mark.parametrize(
    ("shapes", "temperatures"),
    [(((4, 3), (5, 3)), (0.1, 0.1)), (((1, 3), (1, 3)), (0.1, 0.1)), (((4, 3), (4, 3)), (0.0, 0.1))],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_of_the_batch(shapes, temperatures):
    with pytest.raises(ValueError, match="must be"):
        relate_in_batch(*(torch.zeros(shape) for shape in shapes), *temperatures)
