"""Rows of all processes in one tensor: the one place where processes send each other rows of unequal number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor


def world_size() -> int:
    """How many processes there are: 1 where torch.distributed is not initialised."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(
    rows: Shaped[Tensor, " own *features"], counts: Sequence[int] | None = None
) -> Shaped[Tensor, " joined *features"]:
    """The rows of all processes in rank order, without gradient; every process must call it.

    Shapes: rows [own, ...], of one dtype and one shape behind the first dimension everywhere; returns [joined, ...].
    One process: its rows as they are. counts: the rows of each rank where all know them, which saves a small message.
    To fill a queue with the keys of all processes: `queue.push(gather_rows(keys))`.
    """
    rows = rows.detach()
    if world_size() == 1:
        return rows
    if counts is None:
        own = torch.tensor([len(rows)], device=rows.device)
        counts = gather_rows(own, [1] * world_size()).tolist()
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def join_rows(own: Tensor, counts: Sequence[int], rank: int, dim: int = 0) -> Tensor:
    """`gather_rows` along `dim` with a gradient: this rank's rows get that of their places in the joined tensor."""
    return own if len(counts) == 1 else _Joined.apply(own, counts, rank, dim)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: Sequence[int], rank: int, dim: int) -> Tensor:
        ctx.place = dim, sum(counts[:rank]), counts[rank]
        return gather_rows(own.movedim(dim, 0), counts).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad.narrow(*ctx.place), None, None, None


def from_first_rank(sample: Callable[[], Tensor], shape: Sequence[int], device: torch.device | str) -> Tensor:
    """The integers of this shape that `sample` returns on rank 0; the other ranks' generators are left alone."""
    result = sample() if dist.get_rank() == 0 else torch.empty(*shape, dtype=torch.long, device=device)
    dist.broadcast(result, 0)
    return result
