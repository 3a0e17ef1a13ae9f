"""ReSSL and SCE against their plain forms, and Proposition 1."""

import pytest
import torch
from torch.nn import functional as F

import references as plain
from nearfar.losses import SCE, MoCo, ReSSL
from nearfar.pairs import attention, in_batch


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, QUEUE = rows(6, 7), rows(6, 7, seed=1), plain.unit(rows(13, 7, seed=2))


@pytest.mark.parametrize(("t", "t_m"), [(0.1, 0.04), (0.2, 0.1), (0.1, 0.1)])
def test_ressl_is_the_plain_form(t, t_m):
    expected = plain.ressl(QUERY, KEY, QUEUE, t, t_m).item()
    assert ReSSL(t, t_m)(QUERY, KEY, QUEUE).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("queue", [QUEUE, None], ids=["queue", "batch"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.8, 1.0])
def test_sce_is_the_cross_entropy_of_the_paper(queue, lam):
    ours = SCE(0.1, 0.07, lam)(QUERY, KEY, queue).item()
    assert ours == pytest.approx(plain.sce(QUERY, KEY, queue, 0.1, 0.07, lam).item(), rel=1e-10)


@pytest.mark.parametrize("queue", [QUEUE, None], ids=["queue", "batch"])
@pytest.mark.parametrize(("lam", "mu", "eta"), [(0.5, None, None), (0.3, None, None), (0.5, 0.5, 0.0), (0.2, 2.0, 0.7)])
def test_proposition_1_and_free_coefficients(queue, lam, mu, eta):
    ours = SCE(0.1, 0.05, lam, mu, eta)(QUERY, KEY, queue).item()
    expected = (
        lam * plain.info_nce(QUERY, KEY, queue, 0.1)
        + (1 - lam if mu is None else mu) * plain.ressl(QUERY, KEY, queue, 0.1, 0.05)
        + (1 - lam if eta is None else eta) * plain.ceil(QUERY, KEY, queue, 0.1)
    )
    assert ours == pytest.approx(expected.item(), rel=1e-10)


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
def test_gradient_is_that_of_the_plain_form(queue):
    query = QUERY.clone().requires_grad_()
    (ours,) = torch.autograd.grad(SCE(0.1, 0.07, 0.4)(query, KEY, queue), query)
    (theirs,) = torch.autograd.grad(plain.sce(query, KEY, queue, 0.1, 0.07, 0.4), query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_positive_has_no_weight_in_the_batch_target():
    """With only two images the target is the other image, whatever the positive's similarity."""
    query, key = rows(2, 5), rows(2, 5, seed=3)
    q, k = plain.unit(query), plain.unit(key)
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


def test_keys_of_the_batch_and_of_the_queue_together():
    """Against both softmaxes written out over the other images' keys and the queue."""
    query, key, queue = rows(6, 5).requires_grad_(), rows(6, 5, seed=1), plain.unit(rows(9, 5, seed=2))
    q, k = plain.unit(query), plain.unit(key)
    others = torch.eye(6, dtype=torch.bool)
    online = torch.cat([(q @ k.T / 0.2), q @ queue.T / 0.2], 1)
    target = torch.cat([(k @ k.T / 0.1).masked_fill(others, -torch.inf), k @ queue.T / 0.1], 1).softmax(1)
    soft = 0.6 * target + 0.4 * torch.cat([others.double(), torch.zeros(6, 9)], 1)
    expected = -(soft * online.log_softmax(1)).sum(1).mean()
    value = SCE(0.2, 0.1, lam=0.4, batch_keys=True)(query, key, queue)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    (ours,), (theirs,) = torch.autograd.grad(value, query), torch.autograd.grad(expected, query)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)
