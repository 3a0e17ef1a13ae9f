"""Sum of softplus(logit) over all pairs of negatives: one pass, with the gradient of rows, scale and bias."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from nearfar.pairs.blocks import Blocks, shaped
from nearfar.pairs.kernels import cosine
from nearfar.pairs.precision import LINEAR_FROM, refuse_double_backward, without_autocast
from nearfar.pairs.products import dot_products
from nearfar.pairs.ring import active_ring, ring_logistic_sum

_COSINE = cosine(1.0)


def logistic_sum(
    first: Float[Tensor, "batch dim"],
    second: Float[Tensor, "batch dim"],
    scale: Float[Tensor, ""],
    bias: Float[Tensor, ""],
    *,
    across: bool = False,
) -> tuple[Float[Tensor, " joined"], Float[Tensor, ""]]:
    """Cosine of the positive pairs, and sum_i sum_j softplus(scale * s_ij + bias) over the negatives j of every row i.

    Rows are raw embeddings and normalised here. With `across` only pairs of different views count, each of them once
    (two modalities). Differentiable once with respect to both views, scale and bias. Dtypes and errors are those of
    `log_sum_exp`. Inside `around_ring` it is `ring_logistic_sum`, with the joined batch's cosines.
    """
    ring = active_ring()
    if ring is not None and not across:
        return ring_logistic_sum(first, second, scale, bias, ring)
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
            positive = blocks.positives(_COSINE)
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


def cross_logistic_sum(
    x: Float[Tensor, "batch dim"], y: Float[Tensor, "batch dim"], scale: Float[Tensor, ""], bias: Float[Tensor, ""]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, ""]]:
    """Cosine of the positives, and sum over i != j of softplus(scale * x_i.y_j + bias): each pair once (SigLIP).

    The SigLIP loss is (total + sum softplus(-(scale * positive + bias))) / batch.
    """
    return logistic_sum(x, y, scale, bias, across=True)
