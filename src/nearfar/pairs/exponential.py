"""Log-sum-exp of each row over its negatives: two passes over the triangle, nothing of size n x n.

With one temperature for all (`log_sum_exp`) the logits are symmetric; with a temperature for each
image (`per_image_log_sum_exp`) the logits s_ij / t_i are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearfar.pairs import fused
from nearfar.pairs.arithmetic import (
    LOG2_E,
    LOWEST,
    PerImage,
    PerRow,
    Rows,
    Scalar,
    apart_from_scale,
    dot_products,
    refuse_double_backward,
    two_tensors,
    without_autocast,
)
from nearfar.pairs.blocks import Blocks, shaped
from nearfar.pairs.kernels import Form, Kernel, cosine

# Without a shift, exp(u) and its sums stay normal numbers while |u| <= this.
LARGEST_EXPONENT = {torch.float32: 60.0, torch.float64: 600.0}
# elements (14 MiB) within which the forward pass keeps its tiles for the backward pass
KEPT = 7 * 2**19


def log_sum_exp(
    first: Rows,
    second: Rows,
    temperature: float | Scalar,
    *,
    across: bool = False,
    group_size: int | None = None,
) -> tuple[PerImage, PerRow]:
    """s_ij / temperature of the positive pairs, and log sum_j exp(s_ij / temperature) over the
    negatives j of each row.

    The negatives of a row are all rows of both views except itself and its positive, or with
    `across` only the other view's, or with `group_size` only those of its own group of so many
    consecutive images (no other pairs are computed). Rows are raw embeddings and normalised here.
    Differentiable once with respect to both views, in O(batch * dim) memory, and with respect to a
    temperature that is a tensor. Results are float32, or float64 if an input is.

    Raises ValueError for a batch of one, views of different shape, and a batch that is not made of
    whole groups.

    >>> z = torch.eye(3)
    >>> positive, negative = log_sum_exp(z, z, temperature=1.0)
    >>> positive, negative[0]  # 1, log(4)
    (tensor([1., 1., 1.]), tensor([1.3863, 1.3863, 1.3863]))
    """
    pairs = {"across": across, "group_size": group_size}
    number, scale = apart_from_scale(temperature, first, second)
    first, second = two_tensors(first, second)
    positive, sums = _LogSumExp.apply(first, second, cosine(number), pairs, scale)
    return positive, sums


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        kernel: Kernel,
        pairs: dict[str, Any],
        scale: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(first):
            blocks = Blocks(first, second, unit=True, shared=True, **pairs)
            # the size of a tensor is not asked for: on a GPU that would wait
            bounded = scale is None and kernel.scale <= LARGEST_EXPONENT[blocks.dtype]
            keep = bounded and any(ctx.needs_input_grad) and blocks.elements() <= KEPT
            kept: list[Tensor] = []
            exponents = None if scale is None else blocks.statistic()
            result = (
                _sums(blocks, kernel, kept if keep else None).log_()
                if bounded
                else _stable(blocks, kernel, exponents)
            )
            result = blocks.completed(result)
            positive = blocks.positives(kernel)
            # of both results with respect to the scale: cosines, and their weighted means
            slopes = None
            if scale is not None and exponents is not None:
                mean = blocks.completed(exponents).div_(kernel.tile_scale)
                slopes = torch.stack([positive / scale, *mean])
        ctx.save_for_backward(first, second, result, slopes)
        ctx.kernel, ctx.blocks, ctx.bounded, ctx.kept = kernel, blocks, bounded, kept
        return positive, result

    @staticmethod
    def backward(ctx: Any, positive_grad: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        *_, result, slopes = ctx.saved_tensors
        kernel, blocks = ctx.kernel, ctx.blocks
        with without_autocast(result):
            if ctx.bounded:
                gradients = _spread(blocks, kernel, grad / result.exp(), ctx.kept)
            else:
                gradients = _spread_stable(blocks, kernel, grad, result)
            blocks.finish(gradients, kernel.scale, positive_grad)
            of_scale = None
            if slopes is not None:
                of_scale = (slopes * torch.stack([positive_grad.to(grad.dtype), *grad])).sum()
            return *blocks.as_inputs(gradients), None, None, of_scale


def _sums(blocks: Blocks, kernel: Kernel, kept: list[Tensor] | None) -> Tensor:
    """sum_j q_ij; the tiles of q go into `kept`."""
    affine = kernel.tile_scale, 0.0
    if visited := fused.visit(blocks, Form.EXPONENTIAL, affine=affine, sums=True):
        return visited.sums[0]
    sums = blocks.statistic()
    for tile in blocks.tiles(kernel.tile_scale):
        similarity = kernel.similarity_(blocks.affine(kernel, tile))
        blocks.mask_(tile, similarity)
        blocks.add_sums(sums, tile, similarity)
        if kept is not None:
            kept.append(similarity)
    return sums


def _spread(blocks: Blocks, kernel: Kernel, weight: Tensor, kept: list[Tensor]) -> Tensor:
    """Gradient of sum_i weight_i sum_j q_ij: pair (i, j) weighs (weight_i + weight_j) dq/du."""
    affine = kernel.tile_scale, 0.0
    if not kept and (
        visited := fused.visit(
            blocks, Form.EXPONENTIAL, numbers=(weight,), affine=affine, gradient=True
        )
    ):
        return visited.gradient
    gradients, buffer = blocks.gradients(), blocks.buffer()
    for number, tile in enumerate(blocks.tiles(kernel.tile_scale)):
        if kept:
            similarity = kept[number]
        else:
            similarity = kernel.similarity_(blocks.affine(kernel, tile))
            blocks.mask_(tile, similarity)
        weights = shaped(buffer, tile)
        torch.add(
            blocks.part(weight, tile.i).unsqueeze(1), blocks.part(weight, tile.j), out=weights
        )
        blocks.accumulate(gradients, None, tile, kernel.times_slope_(weights, similarity))
    return gradients


def _stable(blocks: Blocks, kernel: Kernel, exponents: Tensor | None = None) -> Tensor:
    """log sum_j q_ij with a running maximum per row, for exponents beyond the range of the dtype.

    `exponents`, zeros, becomes the mean of factor * u_ij over j with weights q_ij.
    """
    if fused.takes_blocks(blocks):
        rates = blocks.statistic() + kernel.tile_scale
        if visited := fused.visit(blocks, Form.SOFTMAX, numbers=(rates,), sums=True):
            log_sums, mean = visited.sums
            if exponents is not None:
                exponents.copy_(mean * kernel.tile_scale)
            return log_sums.div_(kernel.factor)
    highest, sums = blocks.statistic(LOWEST), blocks.statistic()
    buffer = blocks.buffer()
    for tile in blocks.tiles(kernel.tile_scale):
        exponent = blocks.affine(kernel, tile)
        blocks.mask_(tile, exponent, LOWEST)
        for block, along in blocks.ends(tile):
            old, mass = blocks.part(highest, block), blocks.part(sums, block)
            new = torch.maximum(old, exponent.amax(along))
            weights = torch.sub(exponent, new.unsqueeze(along), out=shaped(buffer, tile)).exp2_()
            shrink = old.sub_(new).exp2_()
            mass.mul_(shrink).add_(weights.sum(along))
            if exponents is not None:
                seen = weights.mul_(exponent).sum(along)
                blocks.part(exponents, block).mul_(shrink).add_(seen)
            old.copy_(new)
    if exponents is not None:
        exponents.div_(sums)
    return highest.div_(kernel.factor).add_(sums.log_())


def _spread_stable(blocks: Blocks, kernel: Kernel, weight: Tensor, log_sums: Tensor) -> Tensor:
    """Gradient of sum_i weight_i log sum_j q_ij: pair (i, j) weighs weight_i p_ij + weight_j
    p_ji.
    """
    exponents = log_sums * kernel.factor
    if fused.takes_blocks(blocks):
        numbers = blocks.statistic() + kernel.tile_scale, weight, exponents
        if visited := fused.visit(blocks, Form.SOFTMAX, numbers=numbers, gradient=True):
            return visited.gradient
    gradients, buffer = blocks.gradients(), blocks.buffer()
    for tile in blocks.tiles(kernel.tile_scale):
        exponent = blocks.affine(kernel, tile)
        blocks.mask_(tile, exponent, LOWEST)
        weights = torch.sub(
            exponent, blocks.part(exponents, tile.i).unsqueeze(1), out=shaped(buffer, tile)
        )
        weights.exp2_().mul_(blocks.part(weight, tile.i).unsqueeze(1))
        exponent.sub_(blocks.part(exponents, tile.j)).exp2_().mul_(blocks.part(weight, tile.j))
        blocks.accumulate(gradients, None, tile, weights.add_(exponent))
    return gradients


def per_image_log_sum_exp(
    first: Rows, second: Rows, temperatures: PerImage
) -> tuple[PerImage, PerRow, PerRow]:
    """Cosine of the positives, log sum_j exp(s_ij / t_i) over the negatives j of each row i, and
    their mean cosine.

    The mean cosine is weighted by exp(s_ij / t_i) and carries no gradient; the other two are
    differentiable once with respect to both views (temperatures are constants, shared by an image's
    two views). Every temperature must be above 1/60, so that no exponential leaves the range of
    float32. Negatives, dtypes and errors are those of `log_sum_exp`.

    >>> z = torch.eye(3)
    >>> positive, negative, mean_cosine = per_image_log_sum_exp(z, z, torch.full((3,), 0.5))
    >>> negative[0]  # log(4)
    tensor([1.3863, 1.3863, 1.3863])
    """
    first, second = two_tensors(first, second)
    positive, result, mean = _PerImageLogSumExp.apply(first, second, temperatures.detach())
    return positive, result, mean


class _PerImageLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, temperatures: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(first):
            blocks = Blocks(first, second, unit=True, shared=True)
            rates = (LOG2_E / temperatures.to(blocks.dtype)).expand(2, -1)
            sums, moments = _tempered_sums(blocks, rates)
            sums, moments = blocks.completed(sums), blocks.completed(moments)
            positive, mean, result = blocks.positives(cosine(1.0)), moments / sums, sums.log()
        ctx.save_for_backward(first, second, temperatures, sums)
        ctx.blocks = blocks
        ctx.mark_non_differentiable(mean)
        return positive, result, mean

    @staticmethod
    def backward(
        ctx: Any, positive_grad: Tensor, grad: Tensor, _: Tensor | None
    ) -> tuple[Tensor, Tensor, None]:
        refuse_double_backward()
        _, _, temperatures, sums = ctx.saved_tensors
        blocks = ctx.blocks
        with without_autocast(sums):
            rates = (LOG2_E / temperatures.to(blocks.dtype)).expand(2, -1)
            weight = grad / (sums * temperatures.to(blocks.dtype))
            gradients = _spread_tempered(blocks, rates, weight)
            blocks.finish(gradients, 1.0, positive_grad)
            return *blocks.as_inputs(gradients), None


def _tempered_sums(blocks: Blocks, rates: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j 2^(rate_i s_ij) of each row, and the sums of s_ij with these weights."""
    if visited := fused.visit(blocks, Form.SOFTMAX, numbers=(rates,), sums=True):
        log_sums, mean = visited.sums
        sums = log_sums.exp2_()
        return sums, mean * sums
    sums, moments, buffer = blocks.statistic(), blocks.statistic(), blocks.buffer()
    for tile in blocks.tiles():
        cosines = dot_products(tile.x, tile.y)
        for block, along in blocks.ends(tile):
            weights = torch.mul(
                cosines,
                blocks.part(rates, block).unsqueeze(along),
                out=shaped(buffer, tile),
            )
            weights.exp2_()
            blocks.mask_(tile, weights)
            blocks.part(sums, block).add_(weights.sum(along))
            blocks.part(moments, block).add_(weights.mul_(cosines).sum(along))
    return sums, moments


def _spread_tempered(blocks: Blocks, rates: Tensor, weight: Tensor) -> Tensor:
    """Gradient of sum_i weight_i sum_j 2^(rate_i s_ij), but for the factor of its exponent."""
    if fused.takes_blocks(blocks):
        numbers = rates, weight, blocks.statistic()
        if visited := fused.visit(blocks, Form.SOFTMAX, numbers=numbers, gradient=True):
            return visited.gradient
    gradients, buffer = blocks.gradients(), blocks.buffer()
    for tile in blocks.tiles():
        cosines = dot_products(tile.x, tile.y)
        of_rows = torch.mul(
            cosines, blocks.part(rates, tile.i).unsqueeze(1), out=shaped(buffer, tile)
        ).exp2_()
        of_rows.mul_(blocks.part(weight, tile.i).unsqueeze(1))
        of_columns = (
            cosines.mul_(blocks.part(rates, tile.j)).exp2_().mul_(blocks.part(weight, tile.j))
        )
        both = of_rows.add_(of_columns)
        blocks.mask_(tile, both)
        blocks.accumulate(gradients, None, tile, both)
    return gradients
