"""Rows of one set against rows of another (two modalities, or a query and a key view): the same tiles, across only."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.exponential import log_sum_exp
from nearfar.pairs.kernels import cosine
from nearfar.pairs.logistic import logistic_sum


def cross_log_sum_exp(
    x: Float[Tensor, "batch dim"], y: Float[Tensor, "batch dim"], temperature: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """x_i.y_i / t, and log sum_{j != i} exp of x_i.y_j / t and of y_i.x_j / t: both directions from one visit.

    Two-direction InfoNCE is mean(softplus(rows - positive) + softplus(columns - positive)) / 2. Rows are raw
    embeddings and normalised here; one differentiation, O(batch * dim) memory, ValueError for a batch of one.
    """
    positive, (rows, columns) = log_sum_exp(x, y, cosine(temperature), across=True)
    return positive, rows, columns


def cross_logistic_sum(
    x: Float[Tensor, "batch dim"], y: Float[Tensor, "batch dim"], scale: Float[Tensor, ""], bias: Float[Tensor, ""]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, ""]]:
    """Cosine of the positives, and sum over i != j of softplus(scale * x_i.y_j + bias): each pair once (SigLIP).

    The SigLIP loss is (total + sum softplus(-(scale * positive + bias))) / batch.
    """
    return logistic_sum(x, y, scale, bias, across=True)
