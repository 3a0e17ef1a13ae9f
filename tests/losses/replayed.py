"""Several ranks in this one process, which get what the others send."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

MOST = 50  # rounds


def ranks_of(
    world: int, work: Callable[[int], Any], messages: list[list[Tensor]] | None = None
) -> list[Any]:
    """Return the results of `work(rank)` on several ranks; `messages` gets all that each sends.

    The ranks run one after another, in torch's fake process group, and again until each has got
    what the others send in that round: messages depend on those before them alone. The first rounds
    have each rank's own tensor in place of those of others, so `work` may raise there.
    """
    before: list[list[Tensor]] = [[] for _ in range(world)]
    for _ in range(MOST):
        sent: list[list[Tensor]] = []
        results = []
        for rank in range(world):
            sent.append([])
            try:
                results.append(_as_rank(rank, work, before, sent[rank]))
            except Exception as error:
                results.append(error)
        if _same(sent, before):
            for result in results:
                if isinstance(result, Exception):
                    raise result
            if messages is not None:
                messages += sent
            return results
        before = sent
    raise AssertionError(f"the ranks send something else in each of {MOST} rounds")


def _same(sent: list[list[Tensor]], before: list[list[Tensor]]) -> bool:
    return all(
        len(now) == len(then) and all(map(torch.equal, now, then))
        for now, then in zip(sent, before, strict=True)
    )


def _as_rank(
    rank: int, work: Callable[[int], Any], before: list[list[Tensor]], sent: list[Tensor]
) -> Any:
    def received(source: int, own: Tensor) -> Tensor:
        """Return the tensor that a rank sent here in the round before, or `own` if that does not fit."""
        place = len(sent) - 1
        other = before[source][place] if place < len(before[source]) else own
        fits = other.shape == own.shape and other.dtype == own.dtype
        return own if source == rank or not fits else other

    def all_gather(parts: list[Tensor], tensor: Tensor) -> None:
        assert len(parts) == len(before)
        sent.append(tensor.clone())
        for source, part in enumerate(parts):
            part.copy_(received(source, tensor))

    def broadcast(tensor: Tensor, source: int) -> None:
        own = tensor.clone() if rank == source else torch.zeros_like(tensor)  # else never written
        sent.append(own)
        tensor.copy_(received(source, own))

    dist.init_process_group("fake", rank=rank, world_size=len(before), store=FakeStore())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "all_gather", all_gather)
            patch.setattr(dist, "broadcast", broadcast)
            return work(rank)
    finally:
        dist.destroy_process_group()
