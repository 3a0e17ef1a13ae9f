"""The nuclear norm and its gradient against float64 singular value decompositions."""

import math

import pytest
import torch

from nearfar.losses.lorac import CUT, nuclear_norm


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def by_svd(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the singular values and U V^T, both without those below the cut."""
    u, s, vh = torch.linalg.svd(q.double(), full_matrices=False)
    kept = (s > CUT * s[..., :1]).double()
    return (s * kept).sum(-1), (u * kept[..., None, :]) @ vh


def nearly_equal(difference: float, m: int = 4, dim: int = 32, images: int = 10) -> torch.Tensor:
    base = unit(rows(images, 1, dim))
    return unit(base + difference * rows(images, m, dim, seed=1) / math.sqrt(dim))


@pytest.mark.parametrize("shape", [(5, 4, 16), (3, 1, 8), (2, 6, 6), (7, 5), (9, 3), (2, 12, 3)])
def test_value_and_gradient_are_those_of_the_svd(shape):
    q = rows(*shape).requires_grad_()
    value, gradient = by_svd(q.detach())
    norm = nuclear_norm(q)
    norm.sum().backward()
    torch.testing.assert_close(norm, value, rtol=1e-10, atol=0)
    torch.testing.assert_close(q.grad, gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("difference", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_nearly_equal_views(difference, dtype):
    q = nearly_equal(difference).to(dtype).requires_grad_()
    value, gradient = by_svd(q.detach())
    norm = nuclear_norm(q)
    norm.sum().backward()
    assert (norm.double() - value).abs().max() < 1e-6
    assert (q.grad.double() - gradient).norm() < 2e-5 * gradient.norm()


def test_the_rank_found_for_nearly_equal_views():
    """Differences of 1e-5 count (full rank: |U V^T|^2 = M), those of 1e-8 are noise of float32 rows (rank 1)."""
    for difference, rank in [(1e-3, 4), (1e-5, 4), (1e-8, 1)]:
        q = nearly_equal(difference).requires_grad_()
        nuclear_norm(q).sum().backward()
        assert q.grad.square().sum((1, 2)).tolist() == pytest.approx([rank] * 10, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_exact_collapse_is_finite(dtype):
    q = unit(rows(3, 1, 8)).repeat(1, 5, 1).to(dtype).requires_grad_()
    norm = nuclear_norm(q)
    norm.sum().backward()
    assert norm.tolist() == pytest.approx([math.sqrt(5)] * 3, rel=2e-3 if dtype == torch.float16 else 1e-6)
    assert q.grad.dtype == dtype
    torch.testing.assert_close(q.grad.double(), q.detach().double() / math.sqrt(5), rtol=2e-3, atol=1e-6)

    zero = torch.zeros(2, 3, 4, dtype=dtype, requires_grad=True)
    nuclear_norm(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros_like(zero))


def test_unit_rows_lie_between_root_m_and_m():
    for m in (2, 3, 5):
        norm = nuclear_norm(unit(rows(200, m, 8, seed=m)))
        assert norm.min() > math.sqrt(m)
        assert norm.max() < m
    same, orthogonal = torch.eye(1, 8).repeat(3, 1), torch.eye(3, 8)
    assert nuclear_norm(same).item() == pytest.approx(math.sqrt(3), rel=1e-6)
    assert nuclear_norm(orthogonal).item() == pytest.approx(3, rel=1e-6)


def test_a_tall_matrix_uses_the_small_gram_matrix():
    q = rows(4000, 6).requires_grad_()
    norm = nuclear_norm(q)
    norm.backward()
    assert norm.item() == pytest.approx(torch.linalg.matrix_norm(q.detach(), "nuc").item(), rel=1e-10)
    torch.testing.assert_close(q.grad.T @ q.grad, torch.eye(6, dtype=torch.float64))


def test_not_finite_gives_nan_for_that_matrix_alone():
    q = rows(3, 2, 4)
    q[1, 0, 2] = torch.nan
    norm = nuclear_norm(q)
    assert norm.isnan().tolist() == [False, True, False]


def test_double_backward_is_refused():
    q = rows(2, 3, 4).requires_grad_()
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(nuclear_norm(q).sum(), q, create_graph=True)
