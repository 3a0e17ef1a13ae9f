"""The nuclear norm (sum of singular values) of many small matrices, with its gradient computed in the forward pass."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.precision import accumulation_dtype, refuse_double_backward, without_autocast

CUT = 1e-6  # singular values below this share of the largest are dropped


def nuclear_norm(rows: Float[Tensor, "*matrices rows dim"]) -> Float[Tensor, "*matrices"]:
    """Nuclear norm of each matrix; in [sqrt(M), M] for M unit rows (M <= dim).

    Shapes: rows [..., M, dim], any M and dim; returns [...].
    Computed from the eigenvalues of the smaller Gram matrix in float64 whatever the input's dtype. The gradient is
    U V^T without the singular values below 1e-6 of the largest: equal rows and zero matrices give finite gradients.
    A matrix with a value that is not finite gives nan. Errors: RuntimeError on double backward.
    Source: Wang et al. 2022 (LORAC), Eq. 11; U V^T is the gradient of the nuclear norm at a matrix of full rank.
    """
    return _NuclearNorm.apply(rows)


class _NuclearNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        wide = rows.shape[-2] <= rows.shape[-1]
        dtype = accumulation_dtype(rows)
        with without_autocast(rows):
            q = rows.double() if wide else rows.double().mT
            gram = q @ q.mT
            eigenvalues, u = torch.linalg.eigh(gram.nan_to_num(0, 0, 0))  # eigh stops the program at nan
            singular = eigenvalues.clamp(min=0).sqrt()
            kept = singular > CUT * singular[..., -1:]
            inverse = torch.where(kept, 1 / singular, 0)
            gradient = (u * inverse[..., None, :]) @ (u.mT @ q)  # U V^T, since V^T = S^-1 U^T Q
            norm = singular.where(kept, 0).sum(-1).where(gram.isfinite().all(-1).all(-1), torch.nan)
        ctx.save_for_backward((gradient if wide else gradient.mT).to(dtype))
        ctx.dtype = rows.dtype
        return norm.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_double_backward()
        (gradient,) = ctx.saved_tensors
        return (grad[..., None, None] * gradient).to(ctx.dtype)
