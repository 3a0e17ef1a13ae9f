"""Queries against a queue, and against the keys of the other images, by the full matrix in
float64.
"""

import math

import pytest
import torch
from torch.nn.functional import normalize

from nearfar.pairs import attend, attend_in_batch, attention


def inputs(rows, keys, dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(rows, dim, generator=generator)
    others = 3 * (query + torch.randn(rows, dim, generator=generator)) if keys is None else None
    queue = normalize(torch.randn(keys or 1, dim, generator=generator), dim=1)
    return query.to(dtype).requires_grad_(), (queue if others is None else others).to(
        dtype
    ).requires_grad_()


def queue_by_matrix(query, keys, temperature):
    logits = query @ keys.T / temperature
    return logits.logsumexp(1), logits.softmax(1) @ keys


def batch_by_matrix(query, keys, temperature, key_temperature=0.05):
    q, k = normalize(query, dim=1), normalize(keys.detach(), dim=1)
    itself = torch.eye(len(q), dtype=torch.bool)
    logits = q @ k.T / temperature
    weights = (k @ k.T / key_temperature).masked_fill(itself, -math.inf).softmax(1)
    return (
        logits.diagonal(),
        logits.masked_fill(itself, -math.inf).logsumexp(1),
        (weights * logits).sum(1),
    )


def weighted(results):
    return sum(
        (r * torch.linspace(k + 0.5, 2, len(r)).to(r)).sum()
        for k, r in enumerate(results)
        if r.requires_grad
    )


@pytest.fixture(params=["usual tiles", "small tiles", "nothing saved"])
def tiles(request, monkeypatch):
    if request.param != "usual tiles":  # several blocks of queries, many tiles, ragged last ones
        monkeypatch.setitem(attention.TILE, "cpu", 40)
        monkeypatch.setitem(attention.ROWS, "cpu", 7)
    if request.param == "nothing saved":
        monkeypatch.setattr(attention, "KEPT", 0)


CASES = {  # rows, keys (None: those of the batch), width
    "one key": (5, 1, 8),
    "ragged": (17, 33, 7),
    "many keys": (3, 130, 16),
    "batch of two": (2, None, 6),
    "batch": (30, None, 6),
}


@pytest.mark.parametrize("shape", CASES.values(), ids=CASES)
@pytest.mark.parametrize("temperature", [0.005, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_values_and_gradient_equal_the_full_matrix(tiles, shape, temperature, dtype):
    query, keys = inputs(*shape, dtype=dtype)
    exact, in_batch = query.detach().double().requires_grad_(), shape[1] is None
    results = (
        attend_in_batch(query, keys, temperature, 0.05)
        if in_batch
        else attend(query, keys, temperature)
    )
    expected = (batch_by_matrix if in_batch else queue_by_matrix)(
        exact, keys.detach().double(), temperature
    )
    # in float32 the logits themselves are rounded to about 1e-7 / temperature
    tolerance = 1e-11 if dtype == torch.float64 else max(2e-6, 4e-7 / temperature)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    (gradient,) = torch.autograd.grad(weighted(results), query, retain_graph=True)
    (again,) = torch.autograd.grad(weighted(results), query)
    (wanted,) = torch.autograd.grad(weighted(expected if in_batch else expected[:1]), exact)
    rounding = torch.finfo(dtype).eps if dtype in (torch.bfloat16, torch.float16) else 0
    assert gradient.dtype == dtype and torch.equal(gradient, again)
    assert (gradient.double() - wanted).norm() <= (tolerance + rounding) * wanted.norm()
    if in_batch:
        for two, three in zip(attend_in_batch(query, keys, temperature), results, strict=False):
            assert torch.equal(two, three)


@pytest.mark.parametrize("keys", [10, None])
def test_only_the_query_gets_a_gradient_once_and_autocast_stays_outside(keys):
    query, keys, both = *inputs(4, keys, 5), keys is None
    call = (
        (lambda: attend_in_batch(query, keys, 0.2, 0.1))
        if both
        else (lambda: attend(query, keys, 0.2))
    )
    results = call()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(results, call(), strict=True))
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(weighted(results), query, create_graph=True)
    weighted(results).backward()
    assert keys.grad is None and query.grad.norm() > 0
