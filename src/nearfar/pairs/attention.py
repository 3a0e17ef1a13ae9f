"""Queries against keys without gradient, of a queue or of the batch's other images: never a [rows,
keys] matrix.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs import fused
from nearfar.pairs.arithmetic import (
    LOG2_E,
    LOWEST,
    PerImage,
    Queue,
    Rows,
    Scalar,
    accumulation_dtype,
    add_product_,
    apart_from_scale,
    check_queue,
    check_rows,
    dot_products,
    is_exact,
    refuse_double_backward,
    row_norms,
    unit_rows,
    weighted_rows,
    without_autocast,
)
from nearfar.pairs.shares import active_shares, by_rows

# elements of a tile: 1 MiB of float32 stays in a core's second-level cache; elsewhere 64 MiB
TILE = {"cpu": 2**18}
TILE_ELSEWHERE = 2**24
ROWS = {"cpu": 1024}  # most queries at a time
ROWS_ELSEWHERE = 4096
# elements: in-batch panels of wider rows than WIDE / ROWS get fewer of them
WIDE = {"cpu": 2**18}
WIDE_ELSEWHERE = 2**20
# Elements (4 MiB) of the batch up to which normalised keys and means by key are kept for the
# backward pass.
KEPT = 2**20


def attend(
    query: Float[Tensor, "rows dim"], keys: Queue, temperature: float | Scalar
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows dim"]]:
    """Log-sum-exp over the keys of query.key / temperature, and the softmax-weighted mean key, for
    each query.

    The log-sum-exp is differentiable with respect to `query` (its gradient is the mean key /
    temperature, so the backward pass costs nothing more) and to a temperature that is a tensor; the
    mean key and `keys` carry no gradient. Both results are float32, or float64 if an input is
    float64. Rows need not be unit vectors. Memory: one tile and the two results.

    Raises ValueError without keys or for unequal dimensions.

    >>> query, keys = torch.eye(4).split(2)
    >>> log_sum, mean_key = attend(query, keys, temperature=1.0)
    >>> log_sum, mean_key[0]  # log(2)
    (tensor([0.6931, 0.6931]), tensor([0.0000, 0.0000, 0.5000, 0.5000]))
    """
    check_queue(query.shape[1], keys)
    number, scale = apart_from_scale(temperature, query, keys)
    return _Attend.apply(query, keys.detach(), number, scale)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, temperature: float | Tensor, scale: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        dtype = accumulation_dtype(query, keys)
        with without_autocast(query):
            log_sum_exp, mean_key = by_rows(
                partial(_in_parts, keys=keys, temperature=temperature, dtype=dtype), query
            )
        ctx.save_for_backward(mean_key, None if scale is None else query)
        ctx.temperature, ctx.query_dtype = temperature, query.dtype
        ctx.mark_non_differentiable(mean_key)
        return log_sum_exp, mean_key

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        mean_key, query = ctx.saved_tensors
        of_scale = None
        if query is not None:
            of_scale = (torch.linalg.vecdot(query.to(mean_key.dtype), mean_key) * grad).sum()
        with without_autocast(mean_key):
            return (
                (mean_key * (grad / ctx.temperature).unsqueeze(1)).to(ctx.query_dtype),
                None,
                None,
                of_scale,
            )


def _in_parts(
    query: Tensor, keys: Tensor, temperature: float | Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """Both results for any number of queries."""
    height = ROWS.get(query.device.type, ROWS_ELSEWHERE)
    exact = is_exact(query)
    parts = [
        attend_tiles(rows.to(dtype), keys, temperature, exact=exact) for rows in query.split(height)
    ]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def tile_width(device: torch.device, rows: int, dim: int) -> int:
    """The keys that a tile of so many queries has."""
    return max(1, TILE.get(device.type, TILE_ELSEWHERE) // max(rows, dim))


def panel_height(device: torch.device, dim: int) -> int:
    """The queries that a panel of the batch has at most."""
    most, wide = ROWS.get(device.type, ROWS_ELSEWHERE), WIDE.get(device.type, WIDE_ELSEWHERE)
    return min(most, max(1, wide // dim))


def attend_tiles(
    query: Tensor,
    keys: Tensor,
    temperature: float | Tensor,
    own: int | None = None,
    raw: bool = False,
    exact: bool = True,
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp [rows] and mean key [rows, dim]; tiles of keys with a running maximum per query,
    in powers of two.

    With `own` query i does not see key own + i. `raw` keys are normalised tile by tile. Without
    `exact`, products on a GPU may be of bfloat16. No gradient.

    Not torch's attention kernels: on one core these tiles take half their time (256 queries, 65536
    keys, dim 128: 45 and 90 ms), and on a GPU a few hundred queries are too few blocks for an
    attention kernel to fill the device.
    """
    if visited := fused.attend(query, keys, temperature, own, raw, exact):
        return visited
    rows, dim = query.shape
    scaled = query * (LOG2_E / temperature)
    start = 0
    for tile in keys.split(tile_width(query.device, rows, dim)):
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


def attend_in_batch(
    query: Rows, keys: Rows, temperature: float | Scalar, key_temperature: float | None = None
) -> tuple[PerImage, ...]:
    """q_i.k_i / t, and log sum_{j != i} exp(q_i.k_j / t), for each image i; with `key_temperature`
    t_k a third result.

    The third is sum_{j != i} w_ij q_i.k_j / t, where w_i is the softmax of k_i.k_j / t_k over j !=
    i. Rows are raw embeddings and normalised here. Differentiable once with respect to the query,
    the keys carry no gradient. Takes the time of one attention, of two (three for a large batch)
    with the third result; memory: a few panels of rows and tiles beside the gradient. Dtypes are
    those of `log_sum_exp`. Where processes share rows each does its own.

    Raises ValueError for tensors of different shape and a batch of one.

    >>> z = torch.eye(3)
    >>> positive, negative = attend_in_batch(z, z, temperature=1.0)
    >>> positive, negative  # 1, log(2)
    (tensor([1., 1., 1.]), tensor([0.6931, 0.6931, 0.6931]))
    """
    check_rows(2, query=query, keys=keys)
    number, scale = apart_from_scale(temperature, query, keys)
    results: tuple[Tensor, ...] = _Others.apply(
        query, keys.detach(), number, key_temperature, scale
    )
    return results


class _Others(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        t: float | Tensor,
        key_t: float | None,
        scale: Tensor | None,
    ) -> tuple[Tensor, ...]:
        with without_autocast(query):
            ctx.batch = _Batch(query, keys, t, key_t)
            results, ctx.means, ctx.means_by_key = ctx.batch.visit()
            if ctx.batch.shares is not None:
                results = ctx.batch.shares.complete(results)
        slopes = None
        if scale is not None:  # of each result with respect to the scale
            of_negatives = torch.linalg.vecdot(unit_rows(query, results.dtype), ctx.means)
            if ctx.batch.shares is not None:
                of_negatives = ctx.batch.shares.complete(of_negatives[None].clone())[0]
            slopes = results * t
            slopes[1] = of_negatives
        ctx.save_for_backward(query, keys, slopes)
        return results.unbind()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        query, _, slopes = ctx.saved_tensors
        of_scale = None if slopes is None else (slopes * torch.stack(grads)).sum()
        with without_autocast(query):
            if ctx.means is None:
                _, ctx.means, ctx.means_by_key = ctx.batch.visit()
            # changed in place: a second backward makes it again
            gradient, ctx.means = ctx.means, None
            ctx.batch.finish_(gradient, ctx.means_by_key, *grads)
            return gradient.to(query.dtype), None, None, None, of_scale


class _Batch:
    """The batch in panels of rows: all, or this process's where processes share them."""

    def __init__(self, query: Tensor, keys: Tensor, t: float | Tensor, key_t: float | None) -> None:
        self.query, self.keys, self.t, self.key_t = query, keys, t, key_t
        self.dtype, self.shares = accumulation_dtype(query, keys), active_shares(len(query))
        self.exact = is_exact(query)
        self.raw = keys.numel() > KEPT
        if not self.raw:
            self.keys = unit_rows(keys, self.dtype)
        own = slice(0, len(query)) if self.shares is None else self.shares.rows[self.shares.rank]
        height = panel_height(query.device, query.shape[1])
        self.panels = [
            slice(start, min(start + height, own.stop))
            for start in range(own.start, own.stop, height)
        ]

    def visit(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The results, and the mean keys of the other images: weighted by the query, and by the own
        key if kept.
        """
        results = self.query.new_empty(
            2 if self.key_t is None else 3, len(self.query), dtype=self.dtype
        )
        means = torch.zeros_like(self.query, dtype=self.dtype)
        means_by_key = torch.zeros_like(means) if self.key_t is not None and not self.raw else None
        for rows in self.panels:
            x, _, own = self.unit(rows)
            results[0, rows] = torch.linalg.vecdot(x, own).div_(self.t)
            results[1, rows], means[rows] = attend_tiles(
                x, self.keys, self.t, rows.start, self.raw, self.exact
            )
            if self.key_t is not None:
                mean = self.mean_by_key(own, rows)
                results[2, rows] = torch.linalg.vecdot(x, mean).div_(self.t)
                if means_by_key is not None:
                    means_by_key[rows] = mean
        return results, means, means_by_key

    def unit(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, their norms, and own keys of a panel, both normalised."""
        query, own = self.query[rows].to(self.dtype), self.keys[rows]
        norm = row_norms(query)
        return query / norm, norm, unit_rows(own, self.dtype) if self.raw else own

    def mean_by_key(self, own: Tensor, rows: slice) -> Tensor:
        """Mean keys weighted by the own keys of a panel."""
        assert self.key_t is not None
        return attend_tiles(own, self.keys, self.key_t, rows.start, self.raw, self.exact)[1]

    def finish_(self, means: Tensor, means_by_key: Tensor | None, *grads: Tensor) -> None:
        """Turn the mean keys, in place, into the gradient of the queries as they were given."""
        for rows in self.panels:
            x, norm, own = self.unit(rows)
            of_positive, of_negative, *of_relation = (grad[rows].unsqueeze(1) for grad in grads)
            gradient = means[rows].mul_(of_negative).addcmul_(own, of_positive)
            if of_relation:
                gradient.addcmul_(
                    self.mean_by_key(own, rows) if means_by_key is None else means_by_key[rows],
                    *of_relation,
                )
            gradient.addcmul_(x, torch.linalg.vecdot(gradient, x).unsqueeze(1), value=-1).div_(
                norm * self.t
            )
