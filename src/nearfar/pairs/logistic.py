"""Sum of softplus(logit) over all pairs of negatives: one pass, with the gradient of rows, scale
and bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from nearfar.pairs import fused
from nearfar.pairs.arithmetic import (
    LINEAR_FROM,
    PerImage,
    Rows,
    Scalar,
    dot_products,
    refuse_double_backward,
    two_tensors,
    without_autocast,
)
from nearfar.pairs.blocks import Blocks, shaped
from nearfar.pairs.kernels import Form, cosine


def logistic_sum(
    first: Rows,
    second: Rows,
    scale: Scalar,
    bias: Scalar,
    *,
    across: bool = False,
    group_size: int | None = None,
) -> tuple[PerImage, Scalar]:
    """Cosine of the positive pairs, and sum_i sum_j softplus(scale * s_ij + bias) over the
    negatives j of every row i.

    Rows are raw embeddings and normalised here. With `across` only pairs of different views count,
    each of them once (two modalities). Differentiable once with respect to both views, scale and
    bias. Groups, dtypes and errors are those of `log_sum_exp`.

    >>> z = torch.eye(3)
    >>> positive, total = logistic_sum(z, z, torch.tensor(1.0), torch.tensor(0.0))
    >>> total  # 24 log(2)
    tensor(16.6355)
    """
    wanted = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (first, second, scale, bias)
    )
    first, second = two_tensors(first, second)
    positive, total = _LogisticSum.apply(
        first, second, scale, bias, {"across": across, "group_size": group_size}, wanted
    )
    return positive, total


class _LogisticSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        scale: Tensor,
        bias: Tensor,
        pairs: dict[str, Any],
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(first):
            blocks = Blocks(first, second, unit=True, shared=True, **pairs)
            total, bias_slope, gradients = _visit(
                blocks, scale.to(blocks.dtype), bias.to(blocks.dtype), wanted
            )
            scale_slope = total
            if (
                wanted and ctx.needs_input_grad[2]
            ):  # across, each pair was met from both of its rows
                scale_slope = _along_rows(blocks, gradients) / (2 if blocks.across else 1)
            total, scale_slope, bias_slope = blocks.added_up(
                torch.stack([total, scale_slope, bias_slope])
            )
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
            # scaled in place below: a second backward through the same graph makes it again
            ctx.gradients = None
            gradients.mul_(total_grad * c * (1 if blocks.across else 2))
            blocks.finish(gradients, 1.0, positive_grad)
            slopes = (
                (total_grad * scale_slope).to(scale.dtype),
                (total_grad * bias_slope).to(bias.dtype),
            )
            return *blocks.as_inputs(gradients), *slopes, None, None


def _visit(
    blocks: Blocks, scale: Tensor, bias: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum over own rows i, its derivative with respect to the bias, and sum_j sigmoid_ij
    row_j.
    """
    if fused.takes_blocks(blocks):
        both = torch.stack([scale, bias])
        if visited := fused.visit(blocks, Form.LOGISTIC, affine=both, sums=True, gradient=wanted):
            sums = visited.sums.flatten(1).sum(1)  # across, each pair was met from both of its rows
            total, bias_slope = (sums / 2 if blocks.across else sums).unbind()
            return total, bias_slope, visited.gradient
    total, bias_slope = torch.zeros_like(scale), torch.zeros_like(scale)
    gradients = blocks.gradients() if wanted else total.new_empty(0)
    buffer = blocks.buffer()
    for tile in blocks.tiles(scale):
        # most tiles stand for their mirror image too
        times = 1 if blocks.across else len(blocks.ends(tile))
        logits = dot_products(tile.scaled, tile.y).add_(bias)
        blocks.mask_(tile, logits, -torch.inf)
        if wanted:
            probability = torch.sigmoid(logits, out=shaped(buffer, tile))
            bias_slope.add_(probability.sum(), alpha=times)
            blocks.accumulate(gradients, None, tile, probability)
        # the stub lacks `out`
        softplus(logits, threshold=LINEAR_FROM, out=logits)  # type: ignore[call-arg]
        total.add_(logits.sum(), alpha=times)
    return total, bias_slope, gradients


def _along_rows(blocks: Blocks, gradients: Tensor) -> Tensor:
    """sum_i row_i . gradient_i over own rows."""
    return torch.stack(
        [(blocks.rows(block) * blocks.part(gradients, block)).sum() for block in blocks.own]
    ).sum()
