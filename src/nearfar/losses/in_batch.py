"""Softmax among the images of one batch, a tile of rows at a time: no batch x batch matrix is kept."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.precision import accumulation_dtype, refuse_double_backward

TILE = 2**20  # similarities in memory at once


def attend_others(
    query: Float[Tensor, "batch dim"], keys: Float[Tensor, "batch dim"], temperature: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch dim"]]:
    """Attention of each query over the keys of the other images: row i never sees key i.

    Returns the log-sum-exp [batch], differentiable with respect to the query, and the mean key [batch, dim], detached.
    Needs two rows or more.
    """
    dtype = accumulation_dtype(query, keys)
    log_sum_exp, mean_key = _Others.apply(query.to(dtype), keys.detach().to(dtype), temperature)
    return log_sum_exp, mean_key


class _Others(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        log_sum_exp, mean_key = query.new_empty(len(query)), torch.empty_like(query)
        height = max(1, TILE // len(keys))
        for start in range(0, len(query), height):
            rows = slice(start, start + height)
            logits = (query[rows] / temperature) @ keys.T
            logits.diagonal(start).fill_(-torch.inf)
            log_sum_exp[rows] = logits.logsumexp(1)
            mean_key[rows] = logits.sub_(log_sum_exp[rows, None]).exp_() @ keys
        ctx.save_for_backward(mean_key)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(mean_key)
        return log_sum_exp, mean_key

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None]:
        refuse_double_backward()
        (mean_key,) = ctx.saved_tensors
        return (grad / ctx.temperature)[:, None] * mean_key, None, None


def column_cross_entropy(
    anchors: Float[Tensor, "batch dim"], columns: Float[Tensor, "batch dim"], temperature: float
) -> Float[Tensor, ""]:
    """Mean over i of log sum_j exp(a_i.c_j / t) - a_i.c_i / t; gradient to the columns c, none to the anchors a.

    The gradient is made in the forward pass.
    """
    dtype = accumulation_dtype(anchors, columns)
    return _ColumnCrossEntropy.apply(columns.to(dtype), anchors.detach().to(dtype), temperature)


class _ColumnCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, anchors: Tensor, temperature: float) -> Tensor:
        total, gradient = columns.new_zeros(()), torch.zeros_like(columns)
        height = max(1, TILE // len(columns))
        for start in range(0, len(anchors), height):
            tile = anchors[start : start + height]
            logits = (tile / temperature) @ columns.T
            log_sum_exp = logits.logsumexp(1)
            total += (log_sum_exp - logits.diagonal(start)).sum()
            softmax_less_own = logits.sub_(log_sum_exp[:, None]).exp_()
            softmax_less_own.diagonal(start).sub_(1)
            gradient.addmm_(softmax_less_own.T, tile)
        ctx.save_for_backward(gradient.div_(len(anchors) * temperature))
        return total / len(anchors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        refuse_double_backward()
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None, None


def nearest(rows: Float[Tensor, "batch dim"], queue: Float[Tensor, "keys dim"]) -> Float[Tensor, "batch dim"]:
    """The row of the queue with the largest dot product with each row, in the rows' dtype; no gradient."""
    rows = rows.detach()
    best = rows.new_full((len(rows),), -torch.inf)
    index = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    start = 0
    for tile in queue.detach().split(max(1, TILE // len(rows))):
        value, position = (rows @ tile.to(rows.dtype).T).max(1)
        index = torch.where(value > best, position + start, index)
        best = torch.maximum(best, value)
        start += len(tile)
    return queue.detach()[index].to(rows.dtype)
