"""Sum of softplus(logit) over all pairs of negatives: one pass, with the gradient of rows, scale and bias.

By one process on the whole batch, or around a ring of processes that pass on blocks of rows, so that none ever holds
the joined batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from nearfar.pairs.arithmetic import (
    LINEAR_FROM,
    Rows,
    Scalar,
    accumulation_dtype,
    add_product_,
    dot_products,
    refuse_double_backward,
    unit_rows,
    without_autocast,
)
from nearfar.pairs.blocks import Blocks, shaped, tile_rows
from nearfar.pairs.kernels import cosine
from nearfar.pairs.shares import gather_rows, join_rows


def logistic_sum(
    first: Rows, second: Rows, scale: Scalar, bias: Scalar, *, across: bool = False
) -> tuple[Float[Tensor, " joined"], Scalar]:
    """Cosine of the positive pairs, and sum_i sum_j softplus(scale * s_ij + bias) over the negatives j of every row i.

    Rows are raw embeddings and normalised here. With `across` only pairs of different views count, each of them once
    (two modalities). Differentiable once with respect to both views, scale and bias. Dtypes and errors are those of
    `log_sum_exp`. Inside `around_ring` both results are those of the joined batch.
    """
    if _ring is not None and not across:
        return _ring_logistic_sum(first, second, scale, bias, _ring)
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (first, second, scale, bias))
    positive, total = _LogisticSum.apply(first, second, scale, bias, across, wanted)
    return positive, total


class _LogisticSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, scale: Tensor, bias: Tensor, across: bool, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(first):
            blocks = Blocks(first, second, unit=True, across=across)
            total, bias_slope, gradients = _visit(blocks, scale.to(blocks.dtype), bias.to(blocks.dtype), wanted)
            scale_slope = total
            if wanted and ctx.needs_input_grad[2]:  # across, each pair was met from both of its rows
                scale_slope = _along_rows(blocks, gradients) / (2 if across else 1)
            positive = blocks.positives(cosine(1.0))
        ctx.save_for_backward(first, second, scale, bias, scale_slope, bias_slope)
        ctx.blocks, ctx.gradients = blocks, gradients if wanted else None
        return positive, total

    @staticmethod
    def backward(
        ctx: Any, positive_grad: Tensor, total_grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
        refuse_double_backward()
        _, _, scale, bias, scale_slope, bias_slope = ctx.saved_tensors
        blocks = ctx.blocks
        with without_autocast(total_grad):
            c = scale.to(blocks.dtype)
            gradients = ctx.gradients
            if gradients is None:
                gradients = _visit(blocks, c, bias.to(blocks.dtype), True)[2]
            ctx.gradients = None  # scaled in place below: a second backward through the same graph makes it again
            gradients.mul_(total_grad * c * (1 if blocks.across else 2))
            blocks.finish(gradients, 1.0, positive_grad)
            slopes = (total_grad * scale_slope).to(scale.dtype), (total_grad * bias_slope).to(bias.dtype)
            return *blocks.as_inputs(gradients), *slopes, None, None


def _visit(blocks: Blocks, scale: Tensor, bias: Tensor, wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, its derivative with respect to the bias, and sum_j sigmoid_ij row_j."""
    total, bias_slope = torch.zeros_like(scale), torch.zeros_like(scale)
    gradients = blocks.gradients() if wanted else total.new_empty(0)
    buffer = blocks.buffer()
    for tile in blocks.tiles(scale):
        times = 1 if tile.i == tile.j or blocks.across else 2  # a tile off the diagonal stands for its mirror image too
        logits = dot_products(tile.scaled, tile.y).add_(bias)
        blocks.mask_(tile, logits, -torch.inf)
        if wanted:
            probability = torch.sigmoid(logits, out=shaped(buffer, tile))
            bias_slope.add_(probability.sum(), alpha=times)
            blocks.accumulate(gradients, None, tile, probability)
        softplus(logits, threshold=LINEAR_FROM, out=logits)  # type: ignore[call-arg]  # the stub lacks it
        total.add_(logits.sum(), alpha=times)
    return total, bias_slope, gradients


def _along_rows(blocks: Blocks, gradients: Tensor) -> Tensor:
    """sum_i row_i . gradient_i."""
    places = range(1 if blocks.as_one else 2 * blocks.per_view)
    return torch.stack([(blocks.rows(block) * blocks.part(gradients, block)).sum() for block in places]).sum()


class Ring(NamedTuple):
    """How many images each rank has, in rank order, and this process's rank."""

    sizes: Sequence[int]
    rank: int


_ring: Ring | None = None


@contextmanager
def around_ring(sizes: Sequence[int], rank: int) -> Iterator[None]:
    """While entered, `logistic_sum` takes this rank's rows and returns what it is of the joined batch.

    sizes: the images of each rank, in rank order. rank: this one's.
    """
    global _ring
    before, _ring = _ring, Ring(tuple(sizes), rank)
    try:
        yield
    finally:
        _ring = before


def joined_batch(rows: Rows) -> int:
    """How many images there are on all ranks together, where this process has these."""
    return len(rows) if _ring is None else sum(_ring.sizes)


def _ring_logistic_sum(
    first: Float[Tensor, "own dim"], second: Float[Tensor, "own dim"], scale: Scalar, bias: Scalar, ring: Ring
) -> tuple[Float[Tensor, " joined"], Scalar]:
    """`logistic_sum` of the joined batch from this rank's rows.

    Every rank must call it. Each sums over its own rows i and the negatives j of all ranks, 1/W of the pairs; the sums
    are added up in rank order and the positives' cosines joined, so that both results are those of the joined batch on
    every rank. Blocks of raw rows travel from rank to rank: each holds its own, its neighbour's and the one that is on
    its way. If all ranks differentiate alike, the gradients of the rank's own rows, of scale and of bias are those of
    the joined batch, without a message in the backward pass.
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
            _visit_block(unit, others, owner == ring.rank, scale, bias, total, bias_slope, gradient)
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


def _visit_block(
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
