"""Sum of weight_i q_ij over all pairs of negatives, weights known: one pass, with the gradient."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.blocks import Blocks, shaped
from nearfar.pairs.kernels import Kernel
from nearfar.pairs.precision import refuse_double_backward, without_autocast


def weighted_sum(
    first: Float[Tensor, "batch dim"],
    second: Float[Tensor, "batch dim"],
    weights: Float[Tensor, "2 batch"],
    kernel: Kernel,
    *,
    across: bool = False,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, ""], Float[Tensor, "2 batch"]]:
    """u of the positive pairs; sum_i weight_i sum_j q_ij over the negatives j of row i; and sum_j q_ij of each row.

    The weights are constants, so every tile is visited once, for the sums and for the gradient. The first two results
    are differentiable once with respect to both views; the row sums carry no gradient. Negatives, dtypes and errors are
    those of `log_sum_exp`. q itself must fit the dtype: 1 / temperature below 60 in float32.
    """
    wanted = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
    positive, total, sums = _WeightedSum.apply(first, second, weights.detach(), kernel, across, wanted)
    return positive, total, sums


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, weights: Tensor, kernel: Kernel, across: bool, wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(first):
            blocks = Blocks(first, second, unit=kernel.unit, across=across, shared=True)
            weights = weights.to(blocks.dtype)
            sums, gradients, mass = _visit(blocks, kernel, weights, wanted)
            sums = blocks.completed(sums)
            positive, total = blocks.positives(kernel), (weights * sums).sum()
        ctx.save_for_backward(first, second, weights)
        ctx.kernel, ctx.blocks, ctx.made = kernel, blocks, (gradients, mass) if wanted else None
        ctx.mark_non_differentiable(sums)
        return positive, total, sums

    @staticmethod
    def backward(
        ctx: Any, positive_grad: Tensor, total_grad: Tensor, _: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        refuse_double_backward()
        *_, weights = ctx.saved_tensors
        blocks = ctx.blocks
        with without_autocast(weights):
            gradients, mass = ctx.made or _visit(blocks, ctx.kernel, weights, True)[1:]
            ctx.made = None  # scaled in place below: a second backward through the same graph makes it again
            gradients.mul_(total_grad)
            blocks.finish(gradients, ctx.kernel.scale, positive_grad, mass if mass is None else mass.mul_(total_grad))
            return *blocks.as_inputs(gradients), None, None, None, None


def _visit(blocks: Blocks, kernel: Kernel, weights: Tensor, wanted: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Row sums of q, and sum_j (weight_i + weight_j) dq/du row_j if a gradient is wanted."""
    sums, mass = blocks.statistic(), None if kernel.unit else blocks.statistic()
    gradients = blocks.gradients() if wanted else sums.new_empty(0)
    buffer = blocks.buffer()
    for tile in blocks.tiles(kernel.tile_scale):
        similarity = kernel.similarity_(blocks.affine(kernel, tile))
        blocks.mask_(tile, similarity)
        blocks.add_sums(sums, tile, similarity)
        if wanted:
            both = shaped(buffer, tile)
            torch.add(blocks.part(weights, tile.i).unsqueeze(1), blocks.part(weights, tile.j), out=both)
            blocks.accumulate(gradients, mass, tile, kernel.times_slope_(both, similarity))
    return sums, gradients, mass
