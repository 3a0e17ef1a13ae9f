"""Queries against the keys of the other images of the batch, in panels of rows: no batch x batch matrix is kept."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.attention import ROWS, attend_tiles
from nearfar.pairs.precision import accumulation_dtype, refuse_double_backward, row_norms, unit_rows, without_autocast
from nearfar.pairs.shares import active_shares

WIDE = 2**18  # elements: panels of wider rows than WIDE / ROWS get fewer of them
KEPT = (
    2**20
)  # elements (4 MiB) of the batch up to which normalised keys and means by key are kept for the backward pass


def attend_in_batch(
    query: Float[Tensor, "batch dim"], keys: Float[Tensor, "batch dim"], temperature: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """q_i.k_i / t, and log sum_{j != i} exp(q_i.k_j / t), for each image i.

    Rows are raw embeddings and normalised here. Differentiable once with respect to the query, the keys carry no
    gradient. The time of one attention; memory: a few panels of rows and tiles beside the gradient. Dtypes are those of
    `log_sum_exp`. Where processes share rows each does its own.

    Raises ValueError for tensors of different shape, a batch of one, or a temperature that is not positive.
    """
    positive, negative = _attend(query, keys, temperature, None)
    return positive, negative


def relate_in_batch(
    query: Float[Tensor, "batch dim"], keys: Float[Tensor, "batch dim"], temperature: float, key_temperature: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Both results of `attend_in_batch`, and sum_{j != i} w_ij q_i.k_j / t.

    w_i is the softmax of k_i.k_j / t_k over j != i. Takes the time of two attentions (three for a large batch); memory
    and errors as there.
    """
    positive, negative, relation = _attend(query, keys, temperature, key_temperature)
    return positive, negative, relation


def _attend(query: Tensor, keys: Tensor, temperature: float, key_temperature: float | None) -> tuple[Tensor, ...]:
    if query.ndim != 2 or query.shape != keys.shape or len(query) < 2:
        raise ValueError(
            f"query and keys must be [batch, dim] of two images or more, got {tuple(query.shape)}, {tuple(keys.shape)}"
        )
    if not temperature > 0 or not (key_temperature is None or key_temperature > 0):
        raise ValueError(f"temperatures must be positive, got {temperature} and {key_temperature}")
    return _Others.apply(query, keys.detach(), temperature, key_temperature)


class _Others(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, t: float, key_t: float | None) -> tuple[Tensor, ...]:
        with without_autocast(query):
            ctx.batch = _Batch(query, keys, t, key_t)
            results, ctx.means, ctx.means_by_key = ctx.batch.visit()
            if ctx.batch.shares is not None:
                results = ctx.batch.shares.complete(results)
        ctx.save_for_backward(query, keys)
        return results.unbind()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        refuse_double_backward()
        query, _ = ctx.saved_tensors
        with without_autocast(query):
            if ctx.means is None:
                _, ctx.means, ctx.means_by_key = ctx.batch.visit()
            gradient, ctx.means = ctx.means, None  # changed in place: a second backward makes it again
            ctx.batch.finish_(gradient, ctx.means_by_key, *grads)
            return gradient.to(query.dtype), None, None, None


class _Batch:
    """The batch in panels of rows: all, or this process's where processes share them."""

    def __init__(self, query: Tensor, keys: Tensor, t: float, key_t: float | None) -> None:
        self.query, self.keys, self.t, self.key_t = query, keys, t, key_t
        self.dtype, self.shares = accumulation_dtype(query, keys), active_shares(len(query))
        self.raw = keys.numel() > KEPT
        if not self.raw:
            self.keys = unit_rows(keys, self.dtype)
        own = slice(0, len(query)) if self.shares is None else self.shares.rows[self.shares.rank]
        height = min(ROWS, max(1, WIDE // query.shape[1]))
        self.panels = [slice(start, min(start + height, own.stop)) for start in range(own.start, own.stop, height)]

    def visit(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The results, and the mean keys of the other images: weighted by the query, and by the own key if kept."""
        results = self.query.new_empty(2 if self.key_t is None else 3, len(self.query), dtype=self.dtype)
        means = torch.zeros_like(self.query, dtype=self.dtype)
        means_by_key = torch.zeros_like(means) if self.key_t is not None and not self.raw else None
        for rows in self.panels:
            x, _, own = self.unit(rows)
            results[0, rows] = torch.linalg.vecdot(x, own).div_(self.t)
            results[1, rows], means[rows] = attend_tiles(x, self.keys, self.t, rows.start, self.raw)
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
        return attend_tiles(own, self.keys, self.key_t, rows.start, self.raw)[1]

    def finish_(self, means: Tensor, means_by_key: Tensor | None, *grads: Tensor) -> None:
        """Turn the mean keys, in place, into the gradient of the queries as they were given."""
        for rows in self.panels:
            x, norm, own = self.unit(rows)
            of_positive, of_negative, *of_relation = (grad[rows].unsqueeze(1) for grad in grads)
            gradient = means[rows].mul_(of_negative).addcmul_(own, of_positive)
            if of_relation:
                gradient.addcmul_(
                    self.mean_by_key(own, rows) if means_by_key is None else means_by_key[rows], *of_relation
                )
            gradient.addcmul_(x, torch.linalg.vecdot(gradient, x).unsqueeze(1), value=-1).div_(norm * self.t)
