"""Every rank issues the same collectives in the same order: NCCL would hang otherwise, where gloo
might not.

torch's fake process group stands for the other ranks, so that each rank of four runs alone, in this
process.
"""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nearfar.methods import method_names
from tests.losses.test_contract import CASES, inputs, make
from tests.training import test_processes

WORLD = 4
GATHERED = [name for name in CASES if hasattr(make(name), "gather")]


def as_rank(rank, work):
    """Messages that a rank sends, in order: operation, shape, type; every tensor must lie in one
    piece, as NCCL wants it.
    """
    sent = []
    own = {
        name: getattr(dist, name) for name in ("all_gather", "all_reduce", "broadcast", "barrier")
    }

    def note(name, tensor):
        assert tensor.is_contiguous()
        sent.append((name, tuple(tensor.shape), tensor.dtype))

    def all_gather(parts, tensor, *given, **named):
        note("all_gather", tensor)
        assert {(part.shape, part.dtype) for part in parts} == {
            (tensor.shape, tensor.dtype)
        } and len(parts) == WORLD
        own["all_gather"](parts, tensor, *given, **named)
        for part in parts:  # the fake group leaves them as they are: memory that was never written
            part.copy_(tensor)

    def all_reduce(tensor, *given, **named):
        note("all_reduce", tensor)
        return own["all_reduce"](tensor, *given, **named)

    def broadcast(tensor, *given, **named):
        note("broadcast", tensor)
        own["broadcast"](tensor, *given, **named)
        if rank > 0:  # places of rows, some or others
            tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) % len(tensor))

    dist.init_process_group("fake", rank=rank, world_size=WORLD, store=FakeStore())
    try:
        with pytest.MonkeyPatch.context() as patch:
            for function in (all_gather, all_reduce, broadcast):
                patch.setattr(dist, function.__name__, function)
            work(rank)
    finally:
        dist.destroy_process_group()
    return sent


def same_order(work):
    first, *others = (as_rank(rank, work) for rank in range(WORLD))
    for rank, sent in enumerate(others, 1):
        assert sent == first, f"rank {rank}"
    return first


@pytest.mark.parametrize("synced", [False, True], ids=["no norm", "synced norm"])
@pytest.mark.parametrize("name", method_names())
def test_a_method_sends_alike_on_every_rank(name, synced):
    """Two steps of a batch of 13: the first rank has a row more than the others."""
    sent = same_order(lambda rank: test_processes.train(name, rank, WORLD, synced=synced))
    kinds = {kind for kind, _, _ in sent}
    assert {"all_gather", "all_reduce"} <= kinds and len(sent) >= 2 * test_processes.STEPS


@pytest.mark.parametrize("name", test_processes.SPLIT)
def test_shuffled_batch_statistics_send_alike_on_every_rank(name):
    sent = same_order(lambda rank: test_processes.train(name, rank, WORLD, groups=4))
    assert "broadcast" in {kind for kind, _, _ in sent}  # the order of the rows


@pytest.mark.parametrize("name", test_processes.IN_PARTS)
def test_micro_batches_send_alike_on_every_rank(name):
    """4 rows of the first rank make two micro-batches and 3 of the others one: nothing is sent in
    between.
    """
    same_order(lambda rank: test_processes.train(name, rank, WORLD, micro=3))


@pytest.mark.parametrize("name", GATHERED)
def test_a_loss_alone_sends_alike_on_every_rank(name):
    def work(rank):
        torch.manual_seed(rank)  # what is sampled must not decide
        loss = make(name)
        loss.gather = True
        loss(
            *(x + rank if x.is_floating_point() and x.requires_grad else x for x in inputs(name))
        ).backward()

    assert same_order(work)
