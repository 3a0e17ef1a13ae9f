"""Reductions shared by processes that all hold the joined batch: each visits the pairs of its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.gather import from_first_rank, gather_rows


@dataclass(frozen=True)
class Shares:
    """The rows of the joined batch that each rank owns, in rank order, this process's rank, and who samples."""

    rows: Sequence[slice]
    rank: int
    seeded_alike: bool = True

    def complete(self, per_row: Float[Tensor, "k batch"]) -> Float[Tensor, "k batch"]:
        """Fill in the other ranks' numbers; every rank must call it, with its own rows' numbers in place."""
        counts = [rows.stop - rows.start for rows in self.rows]
        return per_row.copy_(gather_rows(per_row[:, self.rows[self.rank]].T, counts).T)


_active: Shares | None = None


@contextmanager
def shared_rows(rows: Sequence[slice], rank: int, seeded_alike: bool = True) -> Iterator[None]:
    """While entered, the reductions over the joined batch are shared, and so are `attend` and the in-batch ones.

    Every process must call them alike, with the same joined batch. The n row sums are gathered (the only message), so
    values are complete on every rank, and the gradient of the rank's own rows is complete; that of all other rows is
    zero. Reductions over another number of rows, and those with `across`, are computed by each process as a whole.
    `attend` gathers its two results, which hold its gradient too.

    rows: the contiguous rows of the joined batch of each rank, in rank order, together all of it. rank: this one's.
    seeded_alike: whether torch's generators are in the same state on all ranks; if not, rank 0 samples for all.
    """
    global _active
    before, _active = _active, Shares(tuple(rows), rank, seeded_alike)
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
        results.append(gather_rows(part, [size] * world)[: len(rows)])
    return results


def sampled_alike(sample: Callable[[], Tensor], *shape: int, device: torch.device | str) -> Tensor:
    """The integers [*shape] that `sample` returns, the same on all processes that share rows."""
    if _active is None or len(_active.rows) < 2 or _active.seeded_alike:
        return sample()
    return from_first_rank(sample, shape, device)
