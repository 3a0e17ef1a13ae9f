"""Sum of weight_i q_ij over negatives, weights known: one pass, with the gradient.

The negatives are all other images of the batch (`weighted_sum`), or a few sampled for each image
(`sampled_sum`).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from nearfar.pairs import fused
from nearfar.pairs.arithmetic import (
    Index,
    PerImage,
    PerRow,
    Rows,
    Scalar,
    refuse_double_backward,
    two_tensors,
    without_autocast,
)
from nearfar.pairs.blocks import Blocks, shaped
from nearfar.pairs.kernels import Form, Kernel
from nearfar.pairs.shares import sampled_alike

BLOCK = 2**17  # elements of the rows treated at a time where negatives are sampled
_ONE_BY_ONE = 64  # up to this many samples per image each is compared with those before it


def weighted_sum(
    first: Rows, second: Rows, weights: PerRow, kernel: Kernel, *, group_size: int | None = None
) -> tuple[PerImage, Scalar, PerRow]:
    """u of the positive pairs; sum_i weight_i sum_j q_ij over the negatives j of row i; and sum_j
    q_ij of each row.

    The weights are constants, so every tile is visited once, for the sums and for the gradient. The
    first two results are differentiable once with respect to both views; the row sums carry no
    gradient. Negatives, groups, dtypes and errors are those of `log_sum_exp`. q itself must fit the
    dtype: 1 / temperature below 60 in float32.

    >>> z = torch.eye(3)
    >>> positive, total, sums = weighted_sum(z, z, torch.ones(2, 3), cosine(temperature=1.0))
    >>> total  # 24 negatives, e^0 each
    tensor(24.)
    """
    wanted = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
    first, second = two_tensors(first, second)
    positive, total, sums = _WeightedSum.apply(
        first, second, weights.detach(), kernel, None, group_size, wanted
    )
    return positive, total, sums


def sampled_sum(
    first: Rows, second: Rows, others: Int[Tensor, "batch count"], weights: PerRow, kernel: Kernel
) -> tuple[PerImage, Scalar, PerRow]:
    """The three results of `weighted_sum`, where the negatives of a row are both views of the
    images in `others`.

    Row-wise dot products and no matrix of pairs: O(batch * count * dim) time and O(batch * dim)
    memory.

    >>> z, others = torch.eye(3), sample_others(3, count=1)
    >>> positive, total, sums = sampled_sum(z, z, others, torch.ones(2, 3), cosine(temperature=1.0))
    >>> total  # 12 negatives, e^0 each
    tensor(12.)
    """
    wanted = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
    first, second = two_tensors(first, second)
    positive, total, sums = _WeightedSum.apply(
        first, second, weights.detach(), kernel, others, None, wanted
    )
    return positive, total, sums


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        weights: Tensor,
        kernel: Kernel,
        others: Tensor | None,
        group_size: int | None,
        wanted: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(first):
            most_rows = None if others is None else max(1, BLOCK // first.shape[-1])
            blocks = Blocks(
                first,
                second,
                unit=kernel.unit,
                shared=others is None,
                most_rows=most_rows,
                group_size=group_size,
            )
            weights = weights.to(blocks.dtype)
            sums, gradients, mass = _visit(blocks, others, kernel, weights, wanted)
            sums = blocks.completed(sums)
            positive, total = blocks.positives(kernel), (weights * sums).sum()
        ctx.save_for_backward(first, second, weights, others)
        ctx.kernel, ctx.blocks, ctx.made = kernel, blocks, (gradients, mass) if wanted else None
        ctx.mark_non_differentiable(sums)
        return positive, total, sums

    @staticmethod
    def backward(
        ctx: Any, positive_grad: Tensor, total_grad: Tensor, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        _, _, weights, others = ctx.saved_tensors
        blocks = ctx.blocks
        with without_autocast(weights):
            gradients, mass = ctx.made or _visit(blocks, others, ctx.kernel, weights, True)[1:]
            assert gradients is not None
            # scaled in place below: a second backward through the same graph makes it again
            ctx.made = None
            gradients.mul_(total_grad)
            blocks.finish(
                gradients,
                ctx.kernel.scale,
                positive_grad,
                mass if mass is None else mass.mul_(total_grad),
            )
            return *blocks.as_inputs(gradients), None, None, None, None, None


def _visit(
    blocks: Blocks, others: Tensor | None, kernel: Kernel, weights: Tensor, wanted: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Row sums of q; if a gradient is wanted, sum_j (weight_i + weight_j) dq/du row_j, and for
    distances its mass.
    """
    fuses = others is None and fused.takes_blocks(blocks)
    if fuses and (visited := _visit_fused(blocks, kernel, weights, wanted)):
        return visited
    sums, mass = blocks.statistic(), None if kernel.unit else blocks.statistic()
    gradients = blocks.gradients() if wanted else None
    if others is not None:
        _visit_sampled(blocks, others, kernel, weights, sums, gradients)
        return sums, gradients, mass
    buffer = blocks.buffer()
    for tile in blocks.tiles(kernel.tile_scale):
        similarity = kernel.similarity_(blocks.affine(kernel, tile))
        blocks.mask_(tile, similarity)
        blocks.add_sums(sums, tile, similarity)
        if gradients is not None:
            both = shaped(buffer, tile)
            torch.add(
                blocks.part(weights, tile.i).unsqueeze(1), blocks.part(weights, tile.j), out=both
            )
            blocks.accumulate(gradients, mass, tile, kernel.times_slope_(both, similarity))
    return sums, gradients, mass


def _visit_fused(
    blocks: Blocks, kernel: Kernel, weights: Tensor, wanted: bool
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """The results of `_visit` from one launch; None where tiles have to do it."""
    scale, bias = kernel.tile_scale, kernel.constant * kernel.factor
    numbers: tuple[Tensor, ...] = (weights,)
    if not kernel.unit:
        numbers = (blocks.squares().div_(2), weights)
    form = Form.EXPONENTIAL if kernel.unit else Form.CAUCHY
    visited = fused.visit(
        blocks, form, numbers=numbers, affine=(scale, bias), sums=True, gradient=wanted
    )
    if visited is None:
        return None
    mass = None if kernel.unit else visited.sums[1]
    return visited.sums[0], visited.gradient if wanted else None, mass


def _visit_sampled(
    blocks: Blocks,
    others: Tensor,
    kernel: Kernel,
    weights: Tensor,
    sums: Tensor,
    gradients: Tensor | None,
) -> None:
    """Add the same of sampled pairs, each met from one row; for distances, minus that row (so there
    is no mass).
    """
    for block in range(blocks.per_view):
        own = (block, block + blocks.per_view)
        rows = [blocks.rows(place) for place in own]
        for index in others[blocks.places[block][1]].T:
            for view in (0, 1):
                y = blocks.gathered(view, index)
                of_y = torch.zeros_like(y)
                for place, x in zip(own, rows, strict=True):
                    similarity, to_y, to_x = _similarity(kernel, x, y)
                    blocks.part(sums, place).add_(similarity)
                    if gradients is not None:
                        slope = kernel.times_slope_(
                            blocks.part(weights, place).clone(), similarity
                        ).unsqueeze(1)
                        blocks.part(gradients, place).addcmul_(to_y, slope)
                        of_y.addcmul_(to_x, slope)
                if gradients is not None:
                    gradients[view].index_add_(0, index, of_y)


def _similarity(kernel: Kernel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q of each row x_i with y_i, and du / dx and du / dy but for the kernel's scale."""
    if kernel.unit:
        u = torch.linalg.vecdot(x, y).mul_(kernel.scale).add_(kernel.constant)
        return kernel.similarity_(u.mul_(kernel.factor)), y, x
    to_y = y - x
    u = to_y.square().sum(1).mul_(-0.5 * kernel.scale).add_(kernel.constant)
    return kernel.similarity_(u.mul_(kernel.factor)), to_y, -to_y


def sample_others(
    batch: int, count: int, device: torch.device | str = "cpu"
) -> Int[Tensor, "batch count"]:
    """For each image `count` different other images of the batch, every subset equally likely, rows
    independent.

    Uses the CPU's global generator of torch: GPUs and processes that share rows (`shared_rows`) get
    the same samples. Raises ValueError unless 1 <= count < batch.

    >>> sample_others(2, count=1).tolist()
    [[1], [0]]
    """
    if not 1 <= count < batch:
        raise ValueError(
            f"{count} negatives per image need a batch of at least {count + 1} images, got {batch}"
        )
    return sampled_alike(lambda: _others(batch, count), batch, count, device=device)


def _others(batch: int, count: int) -> Tensor:
    if count > _ONE_BY_ONE:
        rows = max(1, 2**20 // batch)
        keys = (torch.rand(min(rows, batch - start), batch - 1) for start in range(0, batch, rows))
        steps = torch.cat([part.topk(count, dim=1).indices for part in keys])
    # Floyd's algorithm: sample k is uniform on 0..top, or top itself where that number has been
    # taken
    else:
        steps = torch.empty(batch, count, dtype=torch.long)
        for k, top in enumerate(range(batch - 1 - count, batch - 1)):
            chosen = torch.randint(top + 1, (batch,))
            steps[:, k] = torch.where((steps[:, :k] == chosen[:, None]).any(1), top, chosen)
    return (torch.arange(batch)[:, None] + 1 + steps) % batch


def sample_order(batch: int, device: torch.device | str = "cpu") -> Index:
    """The numbers of the images in a random order, the same on GPUs and on processes that share
    rows.

    >>> sorted(sample_order(4).tolist())
    [0, 1, 2, 3]
    """
    return sampled_alike(lambda: torch.randperm(batch), batch, device=device)
