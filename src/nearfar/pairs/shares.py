"""Reductions shared by processes that all hold the joined batch: each visits the pairs of its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Shares:
    """The rows of the joined batch that each rank owns, in rank order, and this process's rank."""

    rows: Sequence[slice]
    rank: int

    def complete(self, per_row: Float[Tensor, "k batch"]) -> Float[Tensor, "k batch"]:
        """Fill in the other ranks' numbers; every rank must call it, with its own rows' numbers in place."""
        widest = max(rows.stop - rows.start for rows in self.rows)
        own = self.rows[self.rank]
        sent = per_row.new_zeros(len(per_row), widest)
        sent[:, : own.stop - own.start] = per_row[:, own]
        parts = [torch.empty_like(sent) for _ in self.rows]
        dist.all_gather(parts, sent)
        for rows, part in zip(self.rows, parts, strict=True):
            per_row[:, rows] = part[:, : rows.stop - rows.start]
        return per_row


_active: Shares | None = None


@contextmanager
def shared_rows(rows: Sequence[slice], rank: int) -> Iterator[None]:
    """While entered, `log_sum_exp`, `tempered_log_sum_exp`, `weighted_sum` and `attend` of the joined batch are shared.

    Every process must call them alike, with the same joined batch. The n row sums are gathered (the only message), so
    values are complete on every rank, and the gradient of the rank's own rows is complete; that of all other rows is
    zero. Reductions over another number of rows, and those with `across`, are computed by each process as a whole.
    `attend` gathers its two results, which hold its gradient too.

    rows: the contiguous rows of the joined batch of each rank, in rank order, together all of it. rank: this one's.
    """
    global _active
    before, _active = _active, Shares(tuple(rows), rank)
    try:
        yield
    finally:
        _active = before


def active_shares(batch: int) -> Shares | None:
    """The shares in force for a joined batch of this many rows; None where a process computes it as a whole."""
    if _active is None or len(_active.rows) < 2 or _active.rows[-1].stop != batch:
        return None
    return _active


def by_rows(function: Callable[[Tensor], Sequence[Tensor]], rows: Float[Tensor, "rows dim"]) -> list[Tensor]:
    """Apply a function that treats each row on its own; processes that share rows do an equal part and get it all."""
    world = 1 if _active is None else len(_active.rows)
    if _active is None or world < 2:
        return list(function(rows))
    size = -(-len(rows) // world)
    start = size * _active.rank
    own = torch.arange(start, start + size, device=rows.device).clamp_(max=len(rows) - 1)
    results = []
    for part in function(rows[own]):
        parts = [torch.empty_like(part) for _ in range(world)]
        dist.all_gather(parts, part.contiguous())
        results.append(torch.cat(parts)[: len(rows)])
    return results
