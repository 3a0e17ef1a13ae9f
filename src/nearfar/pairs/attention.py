"""Queries against a queue of keys without gradient: log-sum-exp and mean key, never a [rows, keys] matrix."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.precision import (
    LOG2_E,
    LOWEST,
    accumulation_dtype,
    refuse_double_backward,
    unit_rows,
    without_autocast,
)
from nearfar.pairs.products import add_product_, dot_products, weighted_rows
from nearfar.pairs.shares import by_rows

TILE = {"cpu": 2**18}  # elements: 1 MiB of float32 stays in a core's second-level cache; elsewhere:
TILE_ELSEWHERE = 2**21
ROWS = 1024  # most queries at a time


def attend(
    query: Float[Tensor, "rows dim"], keys: Float[Tensor, "keys dim"], temperature: float
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows dim"]]:
    """Log-sum-exp over the keys of query.key / temperature, and the softmax-weighted mean key, for each query.

    The log-sum-exp is differentiable with respect to `query` (its gradient is the mean key / temperature, so the
    backward pass costs nothing more); the mean key and `keys` carry no gradient. Both results are float32, or
    float64 if an input is float64. Rows need not be unit vectors. Memory: one tile and the two results.

    Raises ValueError without keys, for a temperature that is not positive, or for unequal dimensions.
    """
    if keys.ndim != 2 or query.ndim != 2 or keys.shape[1] != query.shape[1]:
        raise ValueError(
            f"query [rows, dim] and keys [keys, dim] do not fit: {tuple(query.shape)}, {tuple(keys.shape)}"
        )
    if len(keys) < 1:
        raise ValueError("the queue is empty: at least one key is needed")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return _Attend.apply(query, keys.detach(), float(temperature))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        dtype = accumulation_dtype(query, keys)
        with without_autocast(query):
            log_sum_exp, mean_key = by_rows(partial(_in_parts, keys=keys, temperature=temperature, dtype=dtype), query)
        ctx.save_for_backward(mean_key)
        ctx.temperature, ctx.query_dtype = temperature, query.dtype
        ctx.mark_non_differentiable(mean_key)
        return log_sum_exp, mean_key

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:
        refuse_double_backward()
        (mean_key,) = ctx.saved_tensors
        with without_autocast(mean_key):
            return (mean_key * (grad / ctx.temperature).unsqueeze(1)).to(ctx.query_dtype), None, None


def _in_parts(query: Tensor, keys: Tensor, temperature: float, dtype: torch.dtype) -> list[Tensor]:
    """Both results for any number of queries."""
    parts = [attend_tiles(rows.to(dtype), keys, temperature) for rows in query.split(ROWS)]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def attend_tiles(
    query: Tensor, keys: Tensor, temperature: float, own: int | None = None, raw: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp [rows] and mean key [rows, dim]; tiles of keys with a running maximum per query, in powers of two.

    With `own` query i does not see key own + i. `raw` keys are normalised tile by tile. No gradient.

    Not torch's attention kernels: on one core these tiles take half their time (256 queries, 65536 keys, dim 128: 45
    and 90 ms), and on a GPU a few hundred queries are too few blocks for an attention kernel to fill the device.
    """
    rows, dim = query.shape
    scaled = query * (LOG2_E / temperature)
    width, start = max(1, TILE.get(query.device.type, TILE_ELSEWHERE) // max(rows, dim)), 0
    for tile in keys.split(width):
        tile = unit_rows(tile, query.dtype) if raw else tile.to(query.dtype)
        weights = dot_products(scaled, tile)
        if own is not None:
            weights.diagonal(own - start).fill_(LOWEST)
        highest_here = weights.amax(1, keepdim=True)
        if start == 0:
            highest = highest_here
            weights.sub_(highest).exp2_()
            mass, mean_key = weights.sum(1, keepdim=True), weighted_rows(weights, tile)
        else:
            higher = torch.maximum(highest, highest_here)
            weights.sub_(higher).exp2_()
            shrink = highest.sub_(higher).exp2_()
            mass.mul_(shrink).add_(weights.sum(1, keepdim=True))
            add_product_(mean_key.mul_(shrink), weights, tile)
            highest = higher
        start += len(tile)
    return (highest + mass.log2()).squeeze(1).div_(LOG2_E), mean_key.div_(mass)
