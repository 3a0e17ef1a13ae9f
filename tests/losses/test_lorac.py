"""LORAC, MoCo-M and LORAC-bs against loops written from the paper."""

import math

import pytest
import torch
from torch.nn import functional as F

from nearfar.losses import LORAC, MoCo


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def nuclear(matrix: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(matrix).sum())


def naive(queries, key, queue, t, log_h):
    """Equation 12 with log h(Q) of image i given by `log_h(i)`."""
    queries, key, total = unit(queries), unit(key), 0.0
    for i in range(len(key)):
        for q in queries[:, i]:
            positive = math.exp(float(q @ key[i]) / t) * math.exp(log_h(i))
            total -= math.log(positive / (positive + sum(math.exp(float(q @ n) / t) for n in queue)))
    return total / (len(key) * len(queries))


QUERIES, KEY, QUEUE = rows(3, 5, 7), rows(5, 7, seed=1), unit(rows(11, 7, seed=2))
T = 0.2


def q_matrix(i: int, large: int = 3) -> torch.Tensor:
    return torch.cat((unit(QUERIES)[:large, i], unit(KEY)[i : i + 1]))


@pytest.mark.parametrize("beta", [0.5, 2.0, 4.0])
def test_laplace(beta):
    expected = naive(QUERIES, KEY, QUEUE, T, lambda i: -nuclear(q_matrix(i)) / (4 * beta * T))
    assert LORAC(T, beta)(QUERIES, KEY, QUEUE).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("variance", [2.0, 0.5])
def test_gaussian(variance):
    expected = naive(QUERIES, KEY, QUEUE, T, lambda i: -((nuclear(q_matrix(i)) - 2) ** 2) / (variance * 4 * T))
    ours = LORAC(T, prior="gaussian", variance=variance)(QUERIES, KEY, QUEUE).item()
    assert ours == pytest.approx(expected, rel=1e-9)


def test_constant_margin():
    expected = naive(QUERIES, KEY, QUEUE, T, lambda i: -3.0 / (4 * 2.0 * T))
    assert LORAC(T, prior="constant")(QUERIES, KEY, QUEUE).item() == pytest.approx(expected, rel=1e-10)


def test_batchwise():
    centred = unit(QUERIES) - unit(QUERIES).mean(0)
    norm = nuclear(centred.reshape(15, 7))
    expected = naive(QUERIES, KEY, QUEUE, T, lambda i: -norm / (5 * 3 * 2.0 * T))
    assert LORAC(T, batchwise=True)(QUERIES, KEY, QUEUE).item() == pytest.approx(expected, rel=1e-9)


def test_only_the_large_crops_enter_q():
    expected = naive(QUERIES, KEY, QUEUE, T, lambda i: -nuclear(q_matrix(i, large=2)) / (3 * 2.0 * T))
    assert LORAC(T)(QUERIES, KEY, QUEUE, large=2).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("prior", ["laplace", "gaussian", "constant"])
def test_beta_infinity_is_moco_m(prior):
    expected = naive(QUERIES, KEY, QUEUE, T, lambda i: 0.0)
    assert LORAC(T, math.inf, prior)(QUERIES, KEY, QUEUE).item() == pytest.approx(expected, rel=1e-10)
    mean_of_moco = sum(MoCo(T)(q, KEY, QUEUE).item() for q in QUERIES) / 3
    assert expected == pytest.approx(mean_of_moco, rel=1e-10)


def test_moco_m_with_one_query_is_moco_in_value_and_gradient():
    query = QUERIES[0].clone().requires_grad_()
    ours, theirs = LORAC(T, math.inf)(query[None], KEY, QUEUE), MoCo(T)(query, KEY, QUEUE)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(ours, query), torch.autograd.grad(theirs, query))


def test_beta_is_read_at_each_step():
    loss = LORAC(T, math.inf)
    loss.beta = 2.0
    assert loss(QUERIES, KEY, QUEUE).item() == LORAC(T, 2.0)(QUERIES, KEY, QUEUE).item()


@pytest.mark.parametrize(
    "options", [{}, {"prior": "gaussian"}, {"prior": "constant"}, {"batchwise": True}], ids=lambda o: str(o)
)
def test_gradient_is_that_of_the_plain_form(options):
    queries = QUERIES.clone().requires_grad_()
    (ours,) = torch.autograd.grad(LORAC(T, 2.0, **options)(queries, KEY, QUEUE), queries)
    q, k = F.normalize(queries, dim=-1), unit(KEY)
    norm = torch.linalg.svdvals(torch.cat((q, k[None])).transpose(0, 1)).sum(-1)
    log_h = {
        "{}": -norm / (4 * 2.0 * T),
        "{'prior': 'gaussian'}": -((norm - 2) ** 2) / (2.0 * 4 * T),
        "{'prior': 'constant'}": -3.0 / (4 * 2.0 * T) * torch.ones(5),
        "{'batchwise': True}": -torch.linalg.svdvals((q - q.mean(0)).reshape(15, 7)).sum() / (15 * 2.0 * T),
    }[str(options)]
    positive = (q * k).sum(-1) / T + log_h
    logits = torch.cat((positive[..., None], q @ QUEUE.T / T), dim=-1).reshape(15, 12)
    (theirs,) = torch.autograd.grad(F.cross_entropy(logits, torch.zeros(15, dtype=torch.long)), queries)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"prior": "gaussian"}, {"batchwise": True}], ids=lambda o: str(o))
def test_collapse_is_finite(options):
    """All views of an image equal: the prior's gradient exists and is finite."""
    queries = KEY.float().repeat(3, 1, 1).requires_grad_()
    loss = LORAC(T, 2.0, **options)(queries, KEY.float(), QUEUE.float())
    loss.backward()
    assert loss.isfinite()
    assert queries.grad.isfinite().all()


def test_the_prior_pulls_the_views_together():
    """A step against the gradient of the prior alone lowers the nuclear norm of every image's views."""
    queries = QUERIES.clone().requires_grad_()
    with_prior, without = LORAC(T, 0.5)(queries, KEY, QUEUE), LORAC(T, math.inf)(queries, KEY, QUEUE)
    (gradient,) = torch.autograd.grad(with_prior - without, queries)
    moved = unit(QUERIES - 0.1 * gradient)
    before = sum(nuclear(torch.cat((unit(QUERIES)[:, i], unit(KEY)[i : i + 1]))) for i in range(5))
    after = sum(nuclear(torch.cat((moved[:, i], unit(KEY)[i : i + 1]))) for i in range(5))
    assert after < before


def test_wrong_arguments():
    with pytest.raises(ValueError, match="beta must be above 0"):
        LORAC(beta=0.0)
    with pytest.raises(ValueError, match="beta must be above 0"):
        LORAC(beta=math.nan)
    with pytest.raises(ValueError, match="prior must be one of laplace, gaussian, constant"):
        LORAC(prior="student")
    with pytest.raises(ValueError, match="batchwise=True needs prior='laplace'"):
        LORAC(prior="gaussian", batchwise=True)
    with pytest.raises(ValueError, match="2 queries or more"):
        LORAC(batchwise=True)(QUERIES[:1], KEY, QUEUE)
    with pytest.raises(ValueError, match="large must be between 1"):
        LORAC()(QUERIES, KEY, QUEUE, large=4)
