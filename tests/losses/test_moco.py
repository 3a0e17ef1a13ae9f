"""MoCo and MoCo v3 against loops written from their formulas."""

import math

import pytest
import torch
from torch.nn import functional as F

from nearfar.losses import MoCo, MoCoV3


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def naive_moco(query, key, queue, t):
    query, key, total = unit(query), unit(key), 0.0
    for i in range(len(query)):
        positive = math.exp(float(query[i] @ key[i]) / t)
        negatives = sum(math.exp(float(query[i] @ n) / t) for n in queue)
        total -= math.log(positive / (positive + negatives))
    return total / len(query)


def naive_moco_v3(query, key, t):
    query, key, total = unit(query), unit(key), 0.0
    for i in range(len(query)):
        every = [math.exp(float(query[i] @ k) / t) for k in key]
        total -= math.log(every[i] / sum(every))
    return 2 * t * total / len(query)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
def test_moco_is_the_loop(temperature):
    query, key, queue = rows(5, 7), rows(5, 7, seed=1), unit(rows(11, 7, seed=2))
    assert MoCo(temperature)(query, key, queue).item() == pytest.approx(
        naive_moco(query, key, queue, temperature), rel=1e-10
    )


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_moco_v3_is_the_loop(temperature):
    query, key = rows(6, 7), rows(6, 7, seed=1)
    assert MoCoV3(temperature)(query, key).item() == pytest.approx(naive_moco_v3(query, key, temperature), rel=1e-10)


def test_gradient_is_that_of_cross_entropy():
    query, key, queue = rows(5, 7).requires_grad_(), rows(5, 7, seed=1), unit(rows(11, 7, seed=2))
    (ours,) = torch.autograd.grad(MoCo(0.1)(query, key, queue), query)
    q = F.normalize(query, dim=1)
    logits = torch.cat(((q * unit(key)).sum(1, keepdim=True), q @ queue.T), dim=1) / 0.1
    (theirs,) = torch.autograd.grad(F.cross_entropy(logits, torch.zeros(5, dtype=torch.long)), query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)

    (ours,) = torch.autograd.grad(MoCoV3(0.3)(query, key), query)
    logits = F.normalize(query, dim=1) @ unit(key).T / 0.3
    (theirs,) = torch.autograd.grad(0.6 * F.cross_entropy(logits, torch.arange(5)), query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_perfect_match_keeps_its_digits():
    """The loss of an easy positive is about the negatives' share, not 0: no cancellation at small temperatures."""
    query = torch.eye(4, dtype=torch.float32)[:2]
    queue = torch.eye(4, dtype=torch.float32)[2:]
    expected = math.log1p(2 * math.exp(-1 / 0.03))
    assert MoCo(0.03)(query, query, queue).item() == pytest.approx(expected, rel=1e-4)


def test_the_queue_is_neither_changed_nor_given_a_gradient():
    queue = unit(rows(11, 7, seed=2)).requires_grad_()
    before = queue.detach().clone()
    query = rows(5, 7).requires_grad_()
    MoCo()(query, rows(5, 7, seed=1), queue).backward()
    assert queue.grad is None
    assert torch.equal(queue, before)
