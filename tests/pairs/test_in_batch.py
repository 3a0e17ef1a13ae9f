"""Queries against the other images' keys, against the whole matrix in float64."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from nearfar.pairs import attend_in_batch, attention, in_batch, relate_in_batch


def whole_matrix(query, keys, temperature, key_temperature):
    q, k = normalize(query.double(), dim=1), normalize(keys.detach().double(), dim=1)
    itself = torch.eye(len(q), dtype=torch.bool)
    logits = q @ k.T / temperature
    weights = (k @ k.T / key_temperature).masked_fill(itself, -math.inf).softmax(1)
    return logits.diagonal(), logits.masked_fill(itself, -math.inf).logsumexp(1), (weights * logits).sum(1)


def inputs(batch, dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(batch, dim, generator=generator)
    keys = 3 * (query + torch.randn(batch, dim, generator=generator))
    return query.to(dtype).requires_grad_(), keys.to(dtype)


def weighted(results):
    return sum((result * torch.linspace(k, 2, len(result)).to(result)).sum() for k, result in enumerate(results))


@pytest.fixture(params=["one panel", "many panels", "nothing kept"])
def path(request, monkeypatch):
    if request.param != "one panel":
        monkeypatch.setitem(attention.TILE, "cpu", 40)
        monkeypatch.setattr(in_batch, "ROWS", 7)
    if request.param == "nothing kept":
        monkeypatch.setattr(in_batch, "KEPT", 0)


@pytest.mark.parametrize("batch", [2, 3, 8, 50])
@pytest.mark.parametrize("temperature", [0.005, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradient_equal_the_whole_matrix(path, batch, temperature, dtype):
    query, keys = inputs(batch, 6, dtype)
    found = relate_in_batch(query, keys, temperature, 0.05)
    expected = whole_matrix(query, keys, temperature, 0.05)
    (gradient,) = torch.autograd.grad(weighted(found), query, retain_graph=True)
    (again,) = torch.autograd.grad(weighted(found), query)
    (wanted,) = torch.autograd.grad(weighted(expected), query)
    tolerance = max(1e-6, 2e-7 / temperature) if dtype == torch.float32 else 1e-11
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    assert (gradient - wanted).norm() <= tolerance * wanted.norm()
    assert torch.equal(gradient, again)


def test_the_first_two_results_do_not_need_the_third(path):
    query, keys = inputs(20, 6)
    for two, three in zip(attend_in_batch(query, keys, 0.1), relate_in_batch(query, keys, 0.1, 0.05), strict=False):
        assert torch.equal(two, three)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rows_are_normalised_and_summed_in_float32(path, dtype):
    query, keys = inputs(30, 16, dtype)
    found = relate_in_batch(query, keys, 0.1, 0.05)
    weighted(found).backward()
    for ours, theirs in zip(found, whole_matrix(query, keys, 0.1, 0.05), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    assert query.grad.dtype == dtype


@pytest.mark.parametrize(
    ("shapes", "temperatures"),
    [(((4, 3), (5, 3)), (0.1, 0.1)), (((1, 3), (1, 3)), (0.1, 0.1)), (((4, 3), (4, 3)), (0.0, 0.1))],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments(shapes, temperatures):
    with pytest.raises(ValueError, match="must be"):
        relate_in_batch(*(torch.zeros(shape) for shape in shapes), *temperatures)
