"""The nuclear norm and its gradient against float64 singular value decompositions."""

import math

import pytest
import torch

from nearfar.losses.lorac import CUT, LORAC, nuclear_norm


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def nearly_equal(difference, m=4, dim=32, images=10):
    return unit(
        unit(rows(images, 1, dim)) + difference * rows(images, m, dim, seed=1) / math.sqrt(dim)
    )


SHAPES = [(5, 4, 16), (3, 1, 8), (2, 6, 6), (7, 5), (9, 3), (2, 12, 3), (4000, 6)]
INPUTS = {str(shape): rows(*shape) for shape in SHAPES} | {
    f"nearly {d}": nearly_equal(d) for d in (1e-3, 1e-5, 1e-7)
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_those_of_the_svd(name, dtype):
    q = INPUTS[name].to(dtype, copy=True).requires_grad_()
    u, s, vh = torch.linalg.svd(q.detach().double(), full_matrices=False)
    kept = (s > CUT * s[..., :1]).double()
    value, gradient = (
        (s * kept).sum(-1),
        (u * kept[..., None, :]) @ vh,
    )  # both without what lies below the cut
    norm = nuclear_norm(q)
    norm.sum().backward()
    exact = dtype == torch.float64 and "nearly" not in name
    torch.testing.assert_close(
        norm.double(), value, rtol=1e-10 if exact else 1e-6, atol=0 if exact else 1e-6
    )
    assert (q.grad.double() - gradient).norm() < (1e-9 if exact else 2e-5) * gradient.norm()


@pytest.mark.parametrize("scale", [1e-4, 1, 1e4])
def test_the_rank_found_for_nearly_equal_views(scale):
    """Differences of 1e-5 count (full rank: |U V^T|^2 = M), those of 1e-8 are noise of float32 rows
    (rank 1), whatever the length of the rows.
    """
    for difference, rank in [(1e-3, 4), (1e-5, 4), (1e-8, 1)]:
        q = (scale * nearly_equal(difference)).requires_grad_()
        nuclear_norm(q).sum().backward()
        assert q.grad.square().sum((1, 2)).tolist() == pytest.approx([rank] * 10, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_exact_collapse_is_finite(dtype):
    q = unit(rows(3, 1, 8)).repeat(1, 5, 1).to(dtype).requires_grad_()
    norm = nuclear_norm(q)
    norm.sum().backward()
    assert norm.tolist() == pytest.approx(
        [math.sqrt(5)] * 3, rel=2e-3 if dtype == torch.float16 else 1e-6
    )
    assert q.grad.dtype == dtype
    torch.testing.assert_close(
        q.grad.double(), q.detach().double() / math.sqrt(5), rtol=2e-3, atol=1e-6
    )
    zero = torch.zeros(2, 3, 4, dtype=dtype, requires_grad=True)
    nuclear_norm(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros_like(zero))


def test_unit_rows_lie_between_root_m_and_m_and_not_finite_gives_nan_for_that_matrix_alone():
    same, orthogonal = torch.eye(1, 8).repeat(3, 1), torch.eye(3, 8)
    assert nuclear_norm(same).item() == pytest.approx(math.sqrt(3), rel=1e-6)
    assert nuclear_norm(orthogonal).item() == pytest.approx(3, rel=1e-6)
    q = rows(3, 2, 4)
    q[1, 0, 2] = torch.nan
    assert nuclear_norm(q).isnan().tolist() == [False, True, False]


def test_a_step_waits_for_eigenvalues_where_the_prior_has_some():
    for options in ({}, {"prior": "gaussian"}, {"batchwise": True}):
        assert "eigenvalues" in LORAC(**options).waits
    for options in (
        {"prior": "constant"},
        {"beta": math.inf},
        {"prior": "gaussian", "beta": math.inf},
    ):
        assert LORAC(**options).waits == ""
