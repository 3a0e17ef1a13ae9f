"""The rows of several processes in one reduction: what is gathered, by how many messages, and what
each process computes.
"""

import pytest
import torch
import torch.distributed as dist

from nearfar.pairs import gather_rows, shared_rows
from nearfar.pairs.shares import (
    Shares,
    active_shares,
    by_rows,
    join_rows,
    sampled_alike,
    world_size,
)
from tests.losses.replayed import ranks_of

ROWS = [slice(0, 2), slice(2, 5), slice(5, 6)]
COUNTS = [2, 3, 1]
ALL = torch.arange(12.0).reshape(6, 2)


def test_the_batch_that_is_shared_is_that_of_all_rows_of_several_processes():
    assert active_shares(6) is None
    for rows in (ROWS, ROWS[:2]):
        with shared_rows(rows, 1):
            assert active_shares(rows[-1].stop) == Shares(tuple(rows), 1, True)
            assert active_shares(4) is None
            with shared_rows([slice(0, 6)], 0):
                assert active_shares(6) is None  # one process
            assert active_shares(rows[-1].stop).rank == 1
    with pytest.raises(KeyError), shared_rows(ROWS, 0):
        raise KeyError("of the loss")
    assert active_shares(6) is None and world_size() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_rows_are_gathered_in_the_order_of_the_ranks(dtype):
    """Padded to the longest: by one message where all know their numbers, else by one more."""
    rows = (ALL % 3).to(dtype)
    for known, sizes in ((COUNTS, [3]), (None, [1, 3])):
        messages = []
        gathered = ranks_of(3, lambda rank, n=known: gather_rows(rows[ROWS[rank]], n), messages)
        assert all(torch.equal(each, rows) for each in gathered)
        assert [[len(tensor) for tensor in sent] for sent in messages] == [sizes] * 3


@pytest.mark.parametrize("dim", [0, 1])
def test_joined_rows_have_the_gradient_of_their_places(dim):
    """Of the sum of squares, so twice the own rows; of one process the rows themselves."""

    def joined(rank):
        own = ALL[ROWS[rank]].movedim(0, dim).clone().requires_grad_()
        rows = join_rows(own, COUNTS, rank, dim)
        return rows.detach(), torch.autograd.grad(rows.square().sum(), own)[0]

    messages = []
    for rank, (rows, gradient) in enumerate(ranks_of(3, joined, messages)):
        assert torch.equal(rows, ALL.movedim(0, dim))
        assert torch.equal(gradient, 2 * ALL[ROWS[rank]].movedim(0, dim))
    assert [len(sent) for sent in messages] == [1, 1, 1]
    assert join_rows(ALL, [6], 0) is ALL


def test_numbers_of_rows_are_completed_and_sums_added_up():
    """Each by one message; the sum has the gradient of the rank's own numbers."""

    def shared(rank):
        shares = Shares(ROWS, rank)
        numbers = torch.full((2, 6), -1.0)
        numbers[:, ROWS[rank]] = ALL.T[:, ROWS[rank]]
        own = torch.tensor([1.0, 2.0]).mul(10**rank).requires_grad_()
        total = shares.added_up(own)
        return shares.complete(numbers), total.detach(), torch.autograd.grad(total.sum(), own)[0]

    messages = []
    for numbers, total, gradient in ranks_of(3, shared, messages):
        assert torch.equal(numbers, ALL.T)
        assert total.tolist() == [111, 222] and gradient.tolist() == [1, 1]
    assert [len(sent) for sent in messages] == [2, 2, 2]


@pytest.mark.parametrize("world", [2, 3])
def test_each_process_treats_an_equal_part_of_rows_and_gets_all(world):
    """7 rows by 2 are 4 and 3, by 3 are 3, 3 and 1; the last ones fill up."""
    queue = torch.arange(14.0).reshape(7, 2)
    treated = []

    def doubled(rows):
        treated.append(len(rows))
        return 2 * rows, rows.sum(1)

    def shared(rank):
        with shared_rows(ROWS[:world], rank):
            return by_rows(doubled, queue)

    messages = []
    for twice, sums in ranks_of(world, shared, messages):
        assert torch.equal(twice, 2 * queue) and torch.equal(sums, queue.sum(1))
    assert set(treated) == {-(-7 // world)}
    assert [len(sent) for sent in messages] == [2] * world
    for outside in (by_rows(doubled, queue), ranks_of(2, lambda rank: by_rows(doubled, queue))[1]):
        assert torch.equal(outside[0], 2 * queue) and treated[-1] == 7
    with shared_rows(ROWS[:1], 0):
        assert len(by_rows(doubled, queue)[1]) == treated[-1] == 7


def test_rank_0_samples_for_all_unless_their_generators_are_in_one_state():
    def sampled(alike):
        def work(rank):
            with shared_rows(ROWS, rank, seeded_alike=alike):
                return sampled_alike(
                    lambda: torch.full((2, 3), 7 + rank), 2, 3, device="cpu", dtype=torch.int64
                )

        return work

    messages = []
    for drawn in ranks_of(3, sampled(False), messages):
        assert drawn.tolist() == [[7, 7, 7], [7, 7, 7]] and drawn.dtype == torch.int64
    assert [len(sent) for sent in messages] == [1, 1, 1]
    own = ranks_of(3, sampled(True), messages := [])
    assert [drawn[0, 0].item() for drawn in own] == [7, 8, 9] and messages == [[], [], []]
    with shared_rows([slice(0, 6)], 0, seeded_alike=False):  # one process
        assert sampled_alike(lambda: torch.ones(2), 2, device="cpu").tolist() == [1, 1]
    assert not dist.is_initialized()
