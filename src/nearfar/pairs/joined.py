"""Decorators of a loss's `forward`: outside autocast, and of the joined batch of all processes where `gather` is set.

Values and gradients are those that `nearfar.losses` describes. All messages belong to the forward pass.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from nearfar.pairs.arithmetic import without_autocast
from nearfar.pairs.logistic import around_ring
from nearfar.pairs.shares import gather_rows, join_rows, shared_rows, world_size

Forward = TypeVar("Forward", bound=Callable[..., Tensor])


def on_joined_batch(*names: str, ring: bool = False) -> Callable[[Forward], Forward]:
    """Gather the rows of all processes before `forward`, and share the pairs inside it (`shared_rows`).

    names: the arguments with rows of the batch, [batch], [batch, dim] or [views, batch, dim]. With `ring` each process
    keeps its own rows and forward runs inside `around_ring`. What forward samples, rank 0 samples for all.
    Raises ValueError on every rank where a rank has no rows, or not as many in one argument as in another.
    """

    def decorate(forward: Forward) -> Forward:
        signature = inspect.signature(forward)

        @_outside_autocast
        @functools.wraps(forward)
        def run(self: Any, *args: Any, **kwargs: Any) -> Tensor:
            if not self.gather or world_size() == 1:
                return forward(self, *args, **kwargs)
            bound = signature.bind(self, *args, **kwargs)
            given = {name: bound.arguments[name] for name in names if bound.arguments.get(name) is not None}
            counts, rank, device = _counts(names, given), dist.get_rank(), next(iter(given.values())).device
            for name, rows in given.items():
                own = _weigh_gradient(rows.to(device), len(counts))
                bound.arguments[name] = own if ring else join_rows(own, counts, rank, _batch_dim(rows))
            if ring:
                context = around_ring(counts, rank)
            else:
                ends = list(accumulate(counts))
                rows_of_ranks = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
                context = shared_rows(rows_of_ranks, rank, seeded_alike=False)
            with context:
                return forward(*bound.args, **bound.kwargs)

        return cast(Forward, run)

    return decorate


def averaged_over_ranks(name: str) -> Callable[[Forward], Forward]:
    """Average what `forward` returns over the rows of all processes: for a mean of rows that do not see each other.

    name: an argument with rows of the batch, [batch, dim] or [views, batch, dim]. Two numbers are sent, no rows.
    """

    def decorate(forward: Forward) -> Forward:
        signature = inspect.signature(forward)

        @_outside_autocast
        @functools.wraps(forward)
        def run(self: Any, *args: Any, **kwargs: Any) -> Tensor:
            mean = forward(self, *args, **kwargs)
            if not self.gather or world_size() == 1:
                return mean
            rows = signature.bind(self, *args, **kwargs).arguments[name]
            return _Averaged.apply(mean, rows.shape[_batch_dim(rows)])

        return cast(Forward, run)

    return decorate


def _outside_autocast(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run forward with autocast switched off on the device of its first tensor."""

    @functools.wraps(forward)
    def run(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):
                with without_autocast(value):
                    return forward(self, *args, **kwargs)
        return forward(self, *args, **kwargs)  # which names the argument that is missing

    return run


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, rows: int) -> Tensor:
        numbers = torch.stack([mean.detach().double(), torch.tensor(rows, dtype=torch.float64, device=mean.device)])
        means, counts = gather_rows(numbers[None], [1] * world_size()).unbind(1)
        ctx.factor = (rows * world_size() / counts.sum()).to(mean.dtype)
        return ((means * counts).sum() / counts.sum()).to(mean.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def _weigh_gradient(rows: Tensor, factor: int) -> Tensor:
    """The same rows; the gradient that passes through them is multiplied."""
    rows = rows.view_as(rows)
    if rows.requires_grad:
        rows.register_hook(lambda grad: grad * factor)
    return rows


def _batch_dim(rows: Tensor) -> int:
    return max(0, rows.ndim - 2)


def _counts(names: Sequence[str], given: dict[str, Tensor]) -> list[int]:
    """The rows of each rank, as every rank says for every argument (-1 where it is None)."""
    device = next(iter(given.values())).device
    own = [given[name].shape[_batch_dim(given[name])] if name in given else -1 for name in names]
    of_ranks = gather_rows(torch.tensor([own], device=device), [1] * world_size()).tolist()
    counts = [max(of_rank) for of_rank in of_ranks]
    absent = [[count < 0 for count in of_rank] for of_rank in of_ranks]
    unequal = any(count not in (-1, rows) for of_rank, rows in zip(of_ranks, counts, strict=True) for count in of_rank)
    if unequal or min(counts) < 1 or any(of_rank != absent[0] for of_rank in absent):
        found = "; ".join(f"rank {rank}: {of_rank}" for rank, of_rank in enumerate(of_ranks))
        raise ValueError(f"every process needs 1 row or more, as many in each of {', '.join(names)}; got {found}")
    return counts
