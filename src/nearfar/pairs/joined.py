"""A decorator of a loss's `forward`: outside autocast, and of the joined batch of all processes
where `gather` is set.

Values and gradients are those that `nearfar.losses` describes. All messages belong to the forward
pass.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from nearfar.pairs.arithmetic import without_autocast
from nearfar.pairs.shares import gather_rows, join_rows, shared_rows, world_size

Forward = TypeVar("Forward", bound=Callable[..., Tensor])


def on_joined_batch(*names: str) -> Callable[[Forward], Forward]:
    """Gather the rows of all processes before `forward`, and share the work inside it
    (`shared_rows`).

    names: the arguments with rows of the batch, [batch], [batch, dim] or [views, batch, dim]; the
    first is always given. What forward samples, rank 0 samples for all. Raises ValueError on every
    rank where a rank has no rows, or not as many in one argument as in another.
    """

    def decorate(forward: Forward) -> Forward:
        signature = inspect.signature(forward)

        @functools.wraps(forward)
        def run(self: Any, *args: Any, **kwargs: Any) -> Tensor:
            bound = signature.bind(self, *args, **kwargs)
            given = {
                name: bound.arguments[name]
                for name in names
                if bound.arguments.get(name) is not None
            }
            with without_autocast(given[names[0]]):
                if not self.gather or world_size() == 1:
                    return forward(self, *args, **kwargs)
                device, rank = given[names[0]].device, dist.get_rank()
                counts = _counts(names, given, device)
                for name, rows in given.items():
                    own = _weigh_gradient(rows.to(device), len(counts))
                    bound.arguments[name] = join_rows(own, counts, rank, _batch_dim(rows))
                shares = [slice(*edge) for edge in pairwise(accumulate(counts, initial=0))]
                with shared_rows(shares, rank, seeded_alike=False):
                    return forward(*bound.args, **bound.kwargs)

        return cast(Forward, run)

    return decorate


def _weigh_gradient(rows: Tensor, factor: int) -> Tensor:
    """The same rows; the gradient that passes through them is multiplied."""
    rows = rows.view_as(rows)
    if rows.requires_grad:
        rows.register_hook(lambda grad: grad * factor)
    return rows


def _batch_dim(rows: Tensor) -> int:
    return max(0, rows.ndim - 2)


def _counts(names: Sequence[str], given: dict[str, Tensor], device: torch.device) -> list[int]:
    """The rows of each rank, as every rank says for every argument (-1 where it is None)."""
    own = [given[name].shape[_batch_dim(given[name])] if name in given else -1 for name in names]
    of_ranks = gather_rows(torch.tensor([own], device=device), [1] * world_size()).tolist()
    counts = [of_rank[0] for of_rank in of_ranks]
    for of_rank, rows in zip(of_ranks, counts, strict=True):
        expected = [
            rows if count >= 0 else -1 for count in of_ranks[0]
        ]  # None on all ranks or on none
        if rows < 1 or of_rank != expected:
            described = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(of_ranks))
            raise ValueError(
                f"every process needs 1 row or more, as many in each of "
                f"{', '.join(names)}; got {described}"
            )
    return counts
