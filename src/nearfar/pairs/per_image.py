"""Log-sum-exp over negatives with a temperature per image: the logits s_ij / t_i are not symmetric."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.blocks import Blocks, shaped
from nearfar.pairs.kernels import cosine
from nearfar.pairs.precision import LOG2_E, refuse_double_backward, without_autocast
from nearfar.pairs.products import dot_products

_COSINE = cosine(1.0)


def per_image_log_sum_exp(
    first: Float[Tensor, "batch dim"], second: Float[Tensor, "batch dim"], temperatures: Float[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "2 batch"], Float[Tensor, "2 batch"]]:
    """Cosine of the positives, log sum_j exp(s_ij / t_i) over the negatives j of each row i, and their mean cosine.

    The mean cosine is weighted by exp(s_ij / t_i) and carries no gradient; the other two are differentiable once with
    respect to both views (temperatures are constants, shared by an image's two views). Every temperature must be above
    1/60, so that no exponential leaves the range of float32. Negatives, dtypes and errors are those of `log_sum_exp`.
    """
    positive, result, mean = _PerImageLogSumExp.apply(first, second, temperatures.detach())
    return positive, result, mean


class _PerImageLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(first):
            blocks = Blocks(first, second, unit=True, shared=True)
            rates = (LOG2_E / temperatures.to(blocks.dtype)).expand(2, -1)
            sums, moments, buffer = blocks.statistic(), blocks.statistic(), blocks.buffer()
            for tile in blocks.tiles():
                cosines = dot_products(tile.x, tile.y)
                for block, along in blocks.ends(tile):
                    weights = torch.mul(cosines, blocks.part(rates, block).unsqueeze(along), out=shaped(buffer, tile))
                    weights.exp2_()
                    blocks.mask_(tile, weights)
                    blocks.part(sums, block).add_(weights.sum(along))
                    blocks.part(moments, block).add_(weights.mul_(cosines).sum(along))
            sums, moments = blocks.completed(sums), blocks.completed(moments)
            positive, mean, result = blocks.positives(_COSINE), moments / sums, sums.log()
        ctx.save_for_backward(first, second, temperatures, sums)
        ctx.blocks = blocks
        ctx.mark_non_differentiable(mean)
        return positive, result, mean

    @staticmethod
    def backward(ctx: Any, positive_grad: Tensor, grad: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, None]:
        refuse_double_backward()
        _, _, temperatures, sums = ctx.saved_tensors
        blocks = ctx.blocks
        with without_autocast(sums):
            rates = (LOG2_E / temperatures.to(blocks.dtype)).expand(2, -1)
            weight = grad / (sums * temperatures.to(blocks.dtype))
            gradients, buffer = blocks.gradients(), blocks.buffer()
            for tile in blocks.tiles():
                cosines = dot_products(tile.x, tile.y)
                of_rows = torch.mul(cosines, blocks.part(rates, tile.i).unsqueeze(1), out=shaped(buffer, tile)).exp2_()
                of_rows.mul_(blocks.part(weight, tile.i).unsqueeze(1))
                of_columns = cosines.mul_(blocks.part(rates, tile.j)).exp2_().mul_(blocks.part(weight, tile.j))
                both = of_rows.add_(of_columns)
                blocks.mask_(tile, both)
                blocks.accumulate(gradients, None, tile, both)
            blocks.finish(gradients, 1.0, positive_grad)
            return *blocks.as_inputs(gradients), None
