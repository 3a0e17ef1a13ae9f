"""ReSSL and SCE against loops written from the paper, and Proposition 1."""

import math

import pytest
import torch
from torch.nn import functional as F

from nearfar.losses import SCE, MoCo, ReSSL
from nearfar.pairs import attention, in_batch


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(x) for x in logits]
    return [w / sum(weights) for w in weights]


def candidates(key, queue, i):
    """The negatives of image i: the queue, or the keys of the other images."""
    return list(queue) if queue is not None else [key[j] for j in range(len(key)) if j != i]


def naive_ressl(query, key, queue, t, t_m):
    query, key, total = unit(query), unit(key), 0.0
    for i in range(len(query)):
        negatives = candidates(key, queue, i)
        target = softmax([float(key[i] @ n) / t_m for n in negatives])
        online = softmax([float(query[i] @ n) / t for n in negatives])
        total -= sum(s * math.log(p) for s, p in zip(target, online, strict=True))
    return total / len(query)


def naive_info_nce(query, key, queue, t):
    query, key, total = unit(query), unit(key), 0.0
    for i in range(len(query)):
        logits = [float(query[i] @ k) / t for k in [key[i], *candidates(key, queue, i)]]
        total -= math.log(softmax(logits)[0])
    return total / len(query)


def naive_ceil(query, key, queue, t):
    query, key, total = unit(query), unit(key), 0.0
    for i in range(len(query)):
        negatives = sum(math.exp(float(query[i] @ n) / t) for n in candidates(key, queue, i))
        total -= math.log(negatives / (negatives + math.exp(float(query[i] @ key[i]) / t)))
    return total / len(query)


def naive_sce(query, key, queue, t, t_m, lam):
    """Equation 8: the cross entropy of w and p themselves, positive first."""
    query, key, total = unit(query), unit(key), 0.0
    for i in range(len(query)):
        negatives = candidates(key, queue, i)
        w = [lam] + [(1 - lam) * s for s in softmax([float(key[i] @ n) / t_m for n in negatives])]
        p = softmax([float(query[i] @ k) / t for k in [key[i], *negatives]])
        total -= sum(a * math.log(b) for a, b in zip(w, p, strict=True))
    return total / len(query)


QUERY, KEY, QUEUE = rows(6, 7), rows(6, 7, seed=1), unit(rows(13, 7, seed=2))


@pytest.mark.parametrize(("t", "t_m"), [(0.1, 0.04), (0.2, 0.1), (0.1, 0.1)])
def test_ressl_is_the_loop(t, t_m):
    assert ReSSL(t, t_m)(QUERY, KEY, QUEUE).item() == pytest.approx(naive_ressl(QUERY, KEY, QUEUE, t, t_m), rel=1e-10)


@pytest.mark.parametrize("queue", [QUEUE, None], ids=["queue", "batch"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.8, 1.0])
def test_sce_is_the_cross_entropy_of_the_paper(queue, lam):
    ours = SCE(0.1, 0.07, lam)(QUERY, KEY, queue).item()
    assert ours == pytest.approx(naive_sce(QUERY, KEY, queue, 0.1, 0.07, lam), rel=1e-10)


@pytest.mark.parametrize("queue", [QUEUE, None], ids=["queue", "batch"])
@pytest.mark.parametrize(("lam", "mu", "eta"), [(0.5, None, None), (0.3, None, None), (0.5, 0.5, 0.0), (0.2, 2.0, 0.7)])
def test_proposition_1_and_free_coefficients(queue, lam, mu, eta):
    ours = SCE(0.1, 0.05, lam, mu, eta)(QUERY, KEY, queue).item()
    expected = (
        lam * naive_info_nce(QUERY, KEY, queue, 0.1)
        + (1 - lam if mu is None else mu) * naive_ressl(QUERY, KEY, queue, 0.1, 0.05)
        + (1 - lam if eta is None else eta) * naive_ceil(QUERY, KEY, queue, 0.1)
    )
    assert ours == pytest.approx(expected, rel=1e-10)


def test_sce_at_lam_1_is_moco_in_value_and_gradient():
    query = QUERY.clone().requires_grad_()
    ours, theirs = SCE(0.2, 0.1, lam=1.0)(query, KEY, QUEUE), MoCo(0.2)(query, KEY, QUEUE)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(ours, query), torch.autograd.grad(theirs, query))


def test_lam_set_after_the_start_moves_mu_and_eta():
    loss = SCE(0.1, 0.07, lam=0.5)
    loss.lam = 0.9
    assert loss(QUERY, KEY, QUEUE).item() == SCE(0.1, 0.07, lam=0.9)(QUERY, KEY, QUEUE).item()


@pytest.mark.parametrize("queue", [QUEUE, None], ids=["queue", "batch"])
def test_gradient_is_that_of_the_full_matrix(queue):
    query = QUERY.clone().requires_grad_()
    (ours,) = torch.autograd.grad(SCE(0.1, 0.07, 0.4)(query, KEY, queue), query)
    q, k = F.normalize(query, dim=1), unit(KEY)
    if queue is None:
        own = torch.eye(6, dtype=torch.float64)
        target = 0.6 * (k @ k.T / 0.07).masked_fill(own.bool(), -torch.inf).softmax(1) + 0.4 * own
        logits = q @ k.T / 0.1
    else:
        positive = torch.full((6, 1), 0.4, dtype=torch.float64)
        target = torch.cat((positive, 0.6 * (k @ queue.T / 0.07).softmax(1)), dim=1)
        logits = torch.cat(((q * k).sum(1, keepdim=True), q @ queue.T), dim=1) / 0.1
    (theirs,) = torch.autograd.grad(F.cross_entropy(logits, target), query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_positive_has_no_weight_in_the_batch_target():
    """With only two images the target is the other image, whatever the positive's similarity."""
    query, key = rows(2, 5), rows(2, 5, seed=3)
    q, k = unit(query), unit(key)
    expected = -F.log_softmax(q @ k.T / 0.1, dim=1).flip(1).diagonal().mean()
    assert SCE(0.1, 0.01, lam=0.0)(query, key).item() == pytest.approx(expected.item(), rel=1e-10)


@pytest.mark.parametrize("kept", [10, 2**20])
def test_many_tiles_equal_one(kept, monkeypatch):
    query = rows(37, 7).requires_grad_()
    key = rows(37, 7, seed=1)
    one = SCE()(query, key)
    (one_gradient,) = torch.autograd.grad(one, query)
    monkeypatch.setattr(in_batch, "ROWS", 5)  # 2 left over
    monkeypatch.setitem(attention.TILE, "cpu", 40)  # 5 keys at a time
    monkeypatch.setattr(in_batch, "KEPT", kept)
    many = SCE()(query, key)
    (many_gradient,) = torch.autograd.grad(many, query)
    torch.testing.assert_close(many, one)
    torch.testing.assert_close(many_gradient, one_gradient)
