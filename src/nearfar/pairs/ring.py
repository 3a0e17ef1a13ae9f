"""The logistic sum with blocks of rows passed around a ring of processes: nobody ever holds the joined batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from nearfar.pairs.blocks import tile_rows
from nearfar.pairs.precision import (
    LINEAR_FROM,
    accumulation_dtype,
    refuse_double_backward,
    unit_rows,
    without_autocast,
)
from nearfar.pairs.products import add_product_, dot_products
from nearfar.pairs.shares import gather_rows, join_rows


class Ring(NamedTuple):
    """How many images each rank has, in rank order, and this process's rank."""

    sizes: Sequence[int]
    rank: int


_active: Ring | None = None


@contextmanager
def around_ring(sizes: Sequence[int], rank: int) -> Iterator[None]:
    """While entered, `logistic_sum` takes this rank's rows and returns what it is of the joined batch.

    sizes: the images of each rank, in rank order. rank: this one's.
    """
    global _active
    before, _active = _active, Ring(tuple(sizes), rank)
    try:
        yield
    finally:
        _active = before


def active_ring() -> Ring | None:
    """The ring in force, None where a process has the whole batch."""
    return _active


def joined_batch(rows: Float[Tensor, "batch dim"]) -> int:
    """How many images there are on all ranks together, where this process has these."""
    return len(rows) if _active is None else sum(_active.sizes)


def ring_logistic_sum(
    first: Float[Tensor, "own dim"],
    second: Float[Tensor, "own dim"],
    scale: Float[Tensor, ""],
    bias: Float[Tensor, ""],
    ring: Ring,
) -> tuple[Float[Tensor, " joined"], Float[Tensor, ""]]:
    """`logistic_sum` of the joined batch from this rank's rows; every rank must call it.

    Each rank sums over its own rows i and the negatives j of all ranks, 1/W of the pairs; the sums are added up in
    rank order and the positives' cosines joined, so that both results are those of the joined batch on every rank.
    Blocks of raw rows travel from rank to rank: each holds its own, its neighbour's and the one that is on its way.
    If all ranks differentiate alike, the gradients of the rank's own rows, of scale and of bias are those of the joined
    batch, without a message in the backward pass. Dtypes are those of `logistic_sum`.

    Source: SigCLR, Appendix A.2 (the chunked sigmoid loss of SigLIP, for one set of rows).
    """
    with without_autocast(first):
        raw = torch.stack([first.detach(), second.detach()])
        dtype = accumulation_dtype(first, second)
        unit = torch.stack([unit_rows(view, dtype) for view in (first, second)])
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (first, second, scale, bias))
        total = _RingSum.apply(unit, raw, scale.to(dtype), bias.to(dtype), ring, wanted)
        return join_rows(torch.linalg.vecdot(unit[0], unit[1]), ring.sizes, ring.rank), total


class _RingSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unit: Tensor, raw: Tensor, scale: Tensor, bias: Tensor, ring: Ring, wanted: bool) -> Tensor:
        total, bias_slope = torch.zeros_like(scale), torch.zeros_like(scale)
        gradient = torch.zeros_like(unit) if wanted else None
        for owner, block in _passing(raw, ring):
            others = unit if owner == ring.rank else unit_rows(block, unit.dtype)
            _visit(unit, others, owner == ring.rank, scale, bias, total, bias_slope, gradient)
        scale_slope = total if gradient is None else (unit * gradient).sum()
        shares = torch.stack([total, scale_slope, bias_slope])
        total, scale_slope, bias_slope = gather_rows(shares[None], [1] * len(ring.sizes)).sum(0)
        if gradient is not None:
            ctx.save_for_backward(gradient, scale, scale_slope, bias_slope)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None, None]:
        refuse_double_backward()
        gradient, scale, scale_slope, bias_slope = ctx.saved_tensors
        # Pairs (i, j) and (j, i) are two terms of the sum, and this rank has seen its own rows as i only.
        return gradient * (2 * scale * grad), None, scale_slope * grad, bias_slope * grad, None, None


def _passing(own: Tensor, ring: Ring) -> Iterator[tuple[int, Tensor]]:
    """The blocks of all ranks with their owners, this rank's first; the next one arrives while one is used."""
    world = len(ring.sizes)
    block = own.contiguous()
    for step in range(world):
        owner = (ring.rank - step) % world
        waiting, arriving = [], block
        if step < world - 1:
            arriving = block.new_empty(2, ring.sizes[(owner - 1) % world], block.shape[-1])
            messages = [
                dist.P2POp(dist.isend, block, (ring.rank + 1) % world),
                dist.P2POp(dist.irecv, arriving, (ring.rank - 1) % world),
            ]
            waiting = dist.batch_isend_irecv(messages)
        yield owner, block
        for message in waiting:
            message.wait()
        block = arriving


def _visit(
    own: Tensor,
    others: Tensor,
    same: bool,
    scale: Tensor,
    bias: Tensor,
    total: Tensor,
    bias_slope: Tensor,
    gradient: Tensor | None,
) -> None:
    """Add the pairs of own rows with others to the sums, and sum_j sigmoid_ij row_j to the gradient."""
    size = tile_rows(own.device)
    for view, start in _places(own, size):
        x = own[view, start : start + size] * scale
        for other_view, other_start in _places(others, size):
            y = others[other_view, other_start : other_start + size]
            logits = dot_products(x, y).add_(bias)
            if same and start == other_start:
                logits.fill_diagonal_(-torch.inf)
            if gradient is not None:
                probability = logits.sigmoid()
                bias_slope.add_(probability.sum())
                add_product_(gradient[view, start : start + size], probability, y)
            total.add_(softplus(logits, threshold=LINEAR_FROM).sum())


def _places(rows: Tensor, size: int) -> list[tuple[int, int]]:
    return [(view, start) for view in (0, 1) for start in range(0, rows.shape[1], size)]
