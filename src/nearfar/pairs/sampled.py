"""A few sampled negatives per image: row-wise dot products, no matrix of pairs at all."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.pairs.blocks import Blocks
from nearfar.pairs.kernels import Kernel
from nearfar.pairs.precision import refuse_double_backward, without_autocast
from nearfar.pairs.shares import sampled_alike

BLOCK = 2**17  # elements of the rows treated at a time
_ONE_BY_ONE = 64  # up to this many samples per image each is compared with those before it


def sample_others(batch: int, count: int, device: torch.device | str = "cpu") -> Int[Tensor, "batch count"]:
    """For each image `count` different other images of the batch, every subset equally likely, rows independent.

    Uses torch's global generator of the device. Processes that share rows get the same samples (`shared_rows`).
    Raises ValueError unless 1 <= count < batch.
    """
    if not 1 <= count < batch:
        raise ValueError(f"{count} negatives per image need a batch of at least {count + 1} images, got {batch}")
    return sampled_alike(lambda: _others(batch, count, device), batch, count, device=device)


def _others(batch: int, count: int, device: torch.device | str) -> Tensor:
    if count > _ONE_BY_ONE:
        rows = max(1, 2**20 // batch)
        keys = (torch.rand(min(rows, batch - start), batch - 1, device=device) for start in range(0, batch, rows))
        steps = torch.cat([part.topk(count, dim=1).indices for part in keys])
    else:  # Floyd's algorithm: sample k is uniform on 0..top, or top itself where that number has been taken
        steps = torch.empty(batch, count, dtype=torch.long, device=device)
        for k in range(count):
            top = batch - 1 - count + k
            chosen = torch.randint(top + 1, (batch,), device=device)
            steps[:, k] = torch.where((steps[:, :k] == chosen[:, None]).any(1), top, chosen)
    return (torch.arange(batch, device=device)[:, None] + 1 + steps) % batch


def sample_order(batch: int, device: torch.device | str = "cpu") -> Int[Tensor, " batch"]:
    """The numbers of the images in a random order, the same on processes that share rows."""
    return sampled_alike(lambda: torch.randperm(batch, device=device), batch, device=device)


def sampled_sum(
    first: Float[Tensor, "batch dim"],
    second: Float[Tensor, "batch dim"],
    others: Int[Tensor, "batch count"],
    weights: Float[Tensor, "2 batch"],
    kernel: Kernel,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, ""], Float[Tensor, "2 batch"]]:
    """The three results of `weighted_sum`, where the negatives of a row are both views of the images in `others`.

    O(batch * count * dim) time and O(batch * dim) memory; differentiable once with respect to both views, the weights
    being constants. Dtypes and errors are those of `weighted_sum`.
    """
    wanted = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
    positive, total, sums = _SampledSum.apply(first, second, others, weights.detach(), kernel, wanted)
    return positive, total, sums


class _SampledSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, others: Tensor, weights: Tensor, kernel: Kernel, wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(first):
            blocks = Blocks(first, second, unit=kernel.unit, most_rows=max(1, BLOCK // first.shape[-1]))
            weights = weights.to(blocks.dtype)
            sums, gradients = _visit(blocks, others, kernel, weights, wanted)
            positive, total = blocks.positives(kernel), (weights * sums).sum()
        ctx.save_for_backward(first, second, others, weights)
        ctx.kernel, ctx.blocks, ctx.gradients = kernel, blocks, gradients if wanted else None
        ctx.mark_non_differentiable(sums)
        return positive, total, sums

    @staticmethod
    def backward(
        ctx: Any, positive_grad: Tensor, total_grad: Tensor, _: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        refuse_double_backward()
        _, _, others, weights = ctx.saved_tensors
        blocks = ctx.blocks
        with without_autocast(weights):
            gradients = ctx.gradients
            if gradients is None:
                gradients = _visit(blocks, others, ctx.kernel, weights, True)[1]
            ctx.gradients = None  # scaled in place below: a second backward through the same graph makes it again
            gradients.mul_(total_grad)
            blocks.finish(gradients, ctx.kernel.scale, positive_grad, None if blocks.unit else blocks.statistic())
            return *blocks.as_inputs(gradients), None, None, None, None


def _visit(blocks: Blocks, others: Tensor, kernel: Kernel, weights: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """Row sums of q, and the sum over its pairs of weight_i dq/du times the other row (minus the row for distances)."""
    sums = blocks.statistic()
    gradients = blocks.gradients() if wanted else sums.new_empty(0)
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
                    if wanted:
                        slope = kernel.times_slope_(blocks.part(weights, place).clone(), similarity).unsqueeze(1)
                        blocks.part(gradients, place).addcmul_(to_y, slope)
                        of_y.addcmul_(to_x, slope)
                if wanted:
                    gradients[view].index_add_(0, index, of_y)
    return sums, gradients


def _similarity(kernel: Kernel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q of each row x_i with y_i, and du / dx and du / dy but for the kernel's scale."""
    if kernel.unit:
        u = torch.linalg.vecdot(x, y).mul_(kernel.scale).add_(kernel.constant)
        return kernel.similarity_(u.mul_(kernel.factor)), y, x
    to_y = y - x
    u = to_y.square().sum(1).mul_(-0.5 * kernel.scale).add_(kernel.constant)
    return kernel.similarity_(u.mul_(kernel.factor)), to_y, -to_y
