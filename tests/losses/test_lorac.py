"""LORAC, MoCo-M and LORAC-bs against their plain form."""

import math

import pytest
import torch

import references as plain
from nearfar.losses import LORAC, MoCo


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def nuclear(matrix: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(matrix).sum())


QUERIES, KEY, QUEUE = rows(3, 5, 7), rows(5, 7, seed=1), plain.unit(rows(11, 7, seed=2))
T = 0.2


CASES = {
    "laplace, beta 0.5": ((0.5,), {}),
    "laplace, beta 4": ((4.0,), {}),
    "gaussian": ((2.0, "gaussian"), {}),
    "gaussian, variance 0.5": ((2.0, "gaussian", False, 0.5), {}),
    "constant": ((2.0, "constant", False, 2.0, 3.0), {}),
    "batchwise": ((2.0, "laplace", True), {}),
    "large crops": ((2.0,), {"large": rows(5, 5, 7, seed=3)}),
    "large crops, batchwise": ((2.0, "laplace", True), {"large": rows(5, 5, 7, seed=3)}),
    "MoCo-M": ((math.inf,), {}),
    "MoCo-M, gaussian": ((math.inf, "gaussian"), {}),
}


@pytest.mark.parametrize(("options", "large"), CASES.values(), ids=CASES)
def test_value_and_gradient_are_those_of_the_plain_form(options, large):
    given = [rows.clone().requires_grad_() for rows in (QUERIES, *large.values())]
    large = dict(zip(large, given[1:], strict=True))
    ours = LORAC(T, *options)(given[0], KEY, QUEUE, **large)
    theirs = plain.lorac(given[0], KEY, QUEUE, T, *options, **large)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(ours, given), torch.autograd.grad(theirs, given), rtol=1e-7, atol=1e-10
    )


def test_moco_m_is_the_mean_of_moco_over_the_queries():
    mean_of_moco = sum(MoCo(T)(q, KEY, QUEUE).item() for q in QUERIES) / 3
    assert LORAC(T, math.inf)(QUERIES, KEY, QUEUE).item() == pytest.approx(mean_of_moco, rel=1e-10)


def test_moco_m_with_one_query_is_moco_in_value_and_gradient():
    query = QUERIES[0].clone().requires_grad_()
    ours, theirs = LORAC(T, math.inf)(query[None], KEY, QUEUE), MoCo(T)(query, KEY, QUEUE)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(ours, query), torch.autograd.grad(theirs, query))


def test_beta_is_read_at_each_step():
    loss = LORAC(T, math.inf)
    loss.beta = 2.0
    assert loss(QUERIES, KEY, QUEUE).item() == LORAC(T, 2.0)(QUERIES, KEY, QUEUE).item()


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
    moved = plain.unit(QUERIES - 0.1 * gradient)
    before = sum(nuclear(torch.cat((plain.unit(QUERIES)[:, i], plain.unit(KEY)[i : i + 1]))) for i in range(5))
    after = sum(nuclear(torch.cat((moved[:, i], plain.unit(KEY)[i : i + 1]))) for i in range(5))
    assert after < before


def test_wrong_arguments(unchecked):
    with pytest.raises(ValueError, match="beta must be above 0"):
        LORAC(beta=0.0)
    with pytest.raises(ValueError, match="beta must be above 0"):
        LORAC(beta=math.nan)
    with pytest.raises(ValueError, match="prior must be one of laplace, gaussian, constant"):
        LORAC(prior="student")
    with pytest.raises(ValueError, match="batchwise=True needs prior='laplace'"):
        LORAC(prior="gaussian", batchwise=True)
    with pytest.raises(ValueError, match="2 rows of an image or more"):
        LORAC(batchwise=True)(QUERIES[:1], KEY, QUEUE)
    with pytest.raises(ValueError, match="large"):
        LORAC()(QUERIES, KEY, QUEUE, large=rows(5, 4, 7))
