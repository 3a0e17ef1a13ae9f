"""Join what the processes hold: embeddings before the loss, gradients of parameters after it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.data import rank_rows
from nearfar.pairs.gather import gather_rows, world_size


def join_batches(own: Tensor, batch: int, dim: int = 0) -> Tensor:
    """Return the joined tensor of all ranks along the batch dimension, in rank order; no gradient flows through.

    own: this rank's rows, `rank_rows(batch, rank, world)` of them along `dim`. One process: returned as it is.
    """
    world = world_size()
    if world == 1:
        return own
    shares = [rank_rows(batch, rank, world) for rank in range(world)]
    return gather_rows(own.movedim(dim, 0), [rows.stop - rows.start for rows in shares]).movedim(0, dim)


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all ranks in place, in one message; a parameter without gradient counts as zero."""
    if world_size() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None])
    dist.all_reduce(flat)
    for parameter, summed in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        parameter.grad = summed.view_as(parameter)
