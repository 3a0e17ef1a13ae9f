"""Several processes in one reduction: rows of all in one tensor, and each visits the pairs of its
own rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.device import draw, send


@dataclass(frozen=True)
class Shares:
    """The rows of the joined batch that each rank owns, in rank order, this process's rank, and who
    samples.
    """

    rows: Sequence[slice]
    rank: int
    seeded_alike: bool = True

    def complete(self, per_row: Float[Tensor, "k batch"]) -> Float[Tensor, "k batch"]:
        """Fill in the other ranks' numbers; every rank must call it, with its own rows' numbers in
        place.
        """
        counts = [rows.stop - rows.start for rows in self.rows]
        return per_row.copy_(gather_rows(per_row[:, self.rows[self.rank]].T, counts).T)

    def added_up(self, numbers: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Add up each number over the ranks; every rank must call it.

        The gradient is that of this rank's numbers.
        """
        return join_rows(numbers[None], [1] * len(self.rows), self.rank).sum(0)


_active: Shares | None = None


@contextmanager
def shared_rows(rows: Sequence[slice], rank: int, seeded_alike: bool = True) -> Iterator[None]:
    """While entered, the reductions over the joined batch are shared, and so are `attend` and the
    in-batch ones.

    Every process must call them alike, with the same joined batch. The n row sums are gathered (the
    only message), so values are complete on every rank, and the gradient of the rank's own rows is
    complete; that of all other rows is zero. Reductions over another number of rows, and those with
    `across`, are computed by each process as a whole. `attend` gathers its two results, which hold
    its gradient too.

    rows: the contiguous rows of the joined batch of each rank, in rank order, together all of it.
    rank: this one's. seeded_alike: whether torch's generators are in the same state on all ranks;
    if not, rank 0 samples for all.

    >>> z = torch.randn(6, 4)
    >>> with shared_rows([slice(0, 6)], rank=0):
    ...     positive, negative = log_sum_exp(z, z, temperature=0.2)
    """
    global _active
    before, _active = _active, Shares(tuple(rows), rank, seeded_alike)
    try:
        yield
    finally:
        _active = before


def active_shares(batch: int) -> Shares | None:
    """The shares in force for a joined batch of this many rows; None where a process computes it as
    a whole.
    """
    if _active is None or len(_active.rows) < 2 or _active.rows[-1].stop != batch:
        return None
    return _active


def by_rows(
    function: Callable[[Tensor], Sequence[Tensor]], rows: Float[Tensor, "rows dim"]
) -> list[Tensor]:
    """Apply a function that treats each row on its own; processes that share rows do an equal part
    and get it all.
    """
    if _active is None or len(_active.rows) < 2:
        return list(function(rows))
    world = len(_active.rows)
    size = -(-len(rows) // world)
    start = size * _active.rank
    own = torch.arange(start, start + size, device=rows.device).clamp_(max=len(rows) - 1)
    return [gather_rows(part, [size] * world)[: len(rows)] for part in function(rows[own])]


def sampled_alike(
    sample: Callable[[], Tensor],
    *shape: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """The numbers [*shape] that `sample` draws on the CPU, sent to a device: those of rank 0 where
    rows are shared.
    """
    if _active is None or len(_active.rows) < 2 or _active.seeded_alike:
        return draw(sample, torch.device(device))
    drawn = sample() if dist.get_rank() == 0 else torch.empty(*shape, dtype=dtype)
    result = send(drawn, torch.device(device))
    dist.broadcast(result, 0)
    return result


def world_size() -> int:
    """Return the number of processes: 1 where torch.distributed is not initialised."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(
    rows: Shaped[Tensor, " own *features"], counts: Sequence[int] | None = None
) -> Shaped[Tensor, " joined *features"]:
    """The rows of all processes in rank order, without gradient; every process must call it.

    Shapes: rows [own, ...], of one dtype and one shape behind the first dimension everywhere;
    returns [joined, ...]. One process: its rows as they are. counts: the rows of each rank where
    all know them, which saves a small message. To fill a queue with the keys of all processes:
    `queue.push(gather_rows(keys))`.

    >>> gather_rows(torch.eye(2))  # one process
    tensor([[1., 0.],
            [0., 1.]])
    """
    rows = rows.detach()
    if world_size() == 1:
        return rows
    if counts is None:
        counts = gather_rows(
            torch.tensor([len(rows)], device=rows.device), [1] * world_size()
        ).tolist()
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def join_rows(own: Tensor, counts: Sequence[int], rank: int, dim: int = 0) -> Tensor:
    """`gather_rows` along `dim` with a gradient: this rank's rows get that of their places in the
    joined tensor.
    """
    return own if len(counts) == 1 else _Joined.apply(own, counts, rank, dim)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: Sequence[int], rank: int, dim: int) -> Tensor:
        ctx.place = dim, sum(counts[:rank]), counts[rank]
        return gather_rows(own.movedim(dim, 0), counts).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad.narrow(*ctx.place), None, None, None
