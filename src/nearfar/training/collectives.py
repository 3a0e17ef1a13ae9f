"""Join what the processes hold: embeddings before the loss, gradients of parameters after it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.data import rank_rows


def join_batches(own: Tensor, batch: int, dim: int = 0) -> Tensor:
    """Return the joined tensor of all ranks along the batch dimension, in rank order; no gradient flows through.

    own: this rank's rows, `rank_rows(batch, rank, world)` of them along `dim`. One process: returned as it is.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    world = dist.get_world_size()
    sizes = [rank_rows(batch, rank, world) for rank in range(world)]
    counts = [rows.stop - rows.start for rows in sizes]
    rows = own.detach().movedim(dim, 0).contiguous()
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).movedim(0, dim)


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all ranks in place, in one message; a parameter without gradient counts as zero."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None])
    dist.all_reduce(flat)
    for parameter, summed in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        parameter.grad = summed.view_as(parameter)


def sum_over_ranks(number: Tensor) -> Tensor:
    """Return the sum of all ranks' tensors, the same on each."""
    total = number.clone()
    dist.all_reduce(total)
    return total
