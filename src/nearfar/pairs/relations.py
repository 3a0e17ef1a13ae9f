"""Similarities of images, as others see them, as weights of pairs of their views: never a [batch,
batch] matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.arithmetic import (
    LOWEST,
    Rows,
    Scalar,
    accumulation_dtype,
    add_product_,
    check_rows,
    dot_products,
    refuse_double_backward,
    row_norms,
    two_tensors,
    unit_rows,
    without_autocast,
)
from nearfar.pairs.attention import panel_height, tile_width
from nearfar.pairs.shares import active_shares


def relation_sum(
    first: Rows,
    second: Rows,
    targets: Float[Tensor, "batch target_dim"],
    target_temperature: float,
) -> Scalar:
    """sum_i sum_{j != i} w_ij (x_i.y_j + y_i.x_j), where w_i is the softmax of t_i.t_j /
    target_temperature over j != i.

    x and y are the rows of two views of the same images, t those of `targets`, which may have
    another dimension. All are raw embeddings and normalised here. Differentiable once with respect
    to both views; the targets carry no gradient. The sum is x.C.y with C = w + w', so that one
    visit of the pairs gives the value and the gradient; another one before it gives the softmax its
    denominators. Memory: a few tiles, and both views as unit rows. The result is float32, or
    float64 if a view is. Where processes share rows each visits the pairs of its own.

    Raises ValueError for views of different shape, another number of targets, and a batch of one.

    >>> z = torch.eye(3)
    >>> relation_sum(z, z.roll(1, 0), z, target_temperature=0.1)  # each w is 1/2
    tensor(3.)
    """
    check_rows(2, first=first, second=second)
    if targets.ndim != 2 or len(targets) != len(first):
        raise ValueError(
            f"targets must be [{len(first)}, dim] like the batch, got shape {list(targets.shape)}"
        )
    first, second = two_tensors(first, second)
    return _RelationSum.apply(first, second, targets.detach(), target_temperature)


class _RelationSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, targets: Tensor, t: float) -> Tensor:
        dtype = accumulation_dtype(first, second)
        with without_autocast(first):
            shares = active_shares(len(first))
            own = slice(0, len(first)) if shares is None else shares.rows[shares.rank]
            units = torch.cat([unit_rows(view, dtype) for view in (first, second)], 1)
            # [own, 2 dim]: the rows that x and y are compared with, y's first
            related = _related(targets, units, own, t, shares).unflatten(1, (2, -1)).flip(1)
            total = (units[own].unflatten(1, (2, -1)) * related).sum() / 2
            if shares is not None:
                total = shares.added_up(total[None])[0]
        ctx.save_for_backward(first, second, related)
        ctx.own = own
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        first, second, related = ctx.saved_tensors
        gradients = []
        with without_autocast(related):
            for view, rows in zip((first, second), related.unbind(1), strict=True):
                own = view[ctx.own].to(rows.dtype)
                norm = row_norms(own)
                x = own / norm
                along = torch.linalg.vecdot(rows, x).unsqueeze(1)
                gradient = torch.zeros_like(view)
                gradient[ctx.own] = ((rows - along * x) * (grad / norm)).to(view.dtype)
                gradients.append(gradient)
        return *gradients, None, None


def _related(targets: Tensor, units: Tensor, own: slice, t: float, shares: Any) -> Tensor:
    """sum_j (w_ij + w_ji) units_j for the own rows i."""
    denominators = units.new_full((1, len(units)), -torch.inf)
    for rows, _, logits in _tiles(targets, own, t, units.dtype):
        before = denominators[0, rows]
        denominators[0, rows] = torch.logaddexp(before, logits.logsumexp(1))
    if shares is not None:
        denominators = shares.complete(denominators)
    [log_sums] = denominators
    related = torch.zeros_like(units[own])
    for rows, columns, logits in _tiles(targets, own, t, units.dtype):
        weights = (logits - log_sums[rows].unsqueeze(1)).exp_()
        weights.add_(logits.sub_(log_sums[columns]).exp_())
        place = slice(rows.start - own.start, rows.stop - own.start)
        add_product_(related[place], weights, units[columns])
    return related


def _tiles(
    targets: Tensor, own: slice, t: float, dtype: torch.dtype
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The own rows, columns and t_i.t_j / t of every tile, that of an image with itself masked."""
    batch, dim = targets.shape
    height = panel_height(targets.device, dim)
    width = tile_width(targets.device, height, dim)
    for top in range(own.start, own.stop, height):
        rows = slice(top, min(top + height, own.stop))
        scaled = unit_rows(targets[rows], dtype) / t
        for left in range(0, batch, width):
            columns = slice(left, min(left + width, batch))
            logits = dot_products(scaled, unit_rows(targets[columns], dtype))
            logits.diagonal(top - left).fill_(LOWEST)
            yield rows, columns, logits
