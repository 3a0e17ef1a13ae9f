"""MoCo and MoCo v3 against their plain forms."""

import math

import pytest
import torch

import references as plain
from nearfar.losses import MoCo, MoCoV3


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
def test_moco_is_the_plain_form(temperature):
    query, key, queue = rows(5, 7), rows(5, 7, seed=1), plain.unit(rows(11, 7, seed=2))
    assert MoCo(temperature)(query, key, queue).item() == pytest.approx(
        plain.info_nce(query, key, queue, temperature).item(), rel=1e-10
    )


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_moco_v3_is_the_plain_form(temperature):
    query, key = rows(6, 7), rows(6, 7, seed=1)
    assert MoCoV3(temperature)(query, key).item() == pytest.approx(
        plain.moco_v3(query, key, temperature).item(), rel=1e-10
    )


def test_gradient_is_that_of_the_plain_form():
    query, key, queue = rows(5, 7).requires_grad_(), rows(5, 7, seed=1), plain.unit(rows(11, 7, seed=2))
    (ours,) = torch.autograd.grad(MoCo(0.1)(query, key, queue), query)
    (theirs,) = torch.autograd.grad(plain.info_nce(query, key, queue, 0.1), query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)

    (ours,) = torch.autograd.grad(MoCoV3(0.3)(query, key), query)
    (theirs,) = torch.autograd.grad(plain.moco_v3(query, key, 0.3), query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_perfect_match_keeps_its_digits():
    """The loss of an easy positive is about the negatives' share, not 0: no cancellation at small temperatures."""
    query = torch.eye(4, dtype=torch.float32)[:2]
    queue = torch.eye(4, dtype=torch.float32)[2:]
    expected = math.log1p(2 * math.exp(-1 / 0.03))
    assert MoCo(0.03)(query, query, queue).item() == pytest.approx(expected, rel=1e-4)


def test_the_queue_is_neither_changed_nor_given_a_gradient():
    queue = plain.unit(rows(11, 7, seed=2)).requires_grad_()
    before = queue.detach().clone()
    query = rows(5, 7).requires_grad_()
    MoCo()(query, rows(5, 7, seed=1), queue).backward()
    assert queue.grad is None
    assert torch.equal(queue, before)
