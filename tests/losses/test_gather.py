"""Gathering the rows of all processes: values and gradients, what is drawn, what is refused.

The ranks run one after another in this process; test_contract.py has processes of their own.
"""

import inspect

import pytest
import torch

import nearfar.losses as L
from nearfar import testing
from nearfar.losses import gather_rows
from nearfar.pairs import attention, blocks
from nearfar.pairs.joined import on_joined_batch
from nearfar.pairs.shares import active_shares
from tests.losses.replayed import ranks_of
from tests.losses.test_contract import CASES, GROUPED, IMAGES, KINDS, make

OWN = [slice(0, 8), slice(8, 12)]
"""Rows of the two ranks, which the groups of GROUPED divide."""
LOSSES = {name: case for name, case in (CASES | GROUPED).items() if "learned" not in name}


@pytest.fixture
def small_tiles(monkeypatch):
    """Let each rank have several blocks, and each block several tiles."""
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", 4)
    monkeypatch.setitem(attention.TILE, "cpu", 40)
    monkeypatch.setitem(attention.ROWS, "cpu", 3)


def step(name, own, rank, gather):
    """The loss of these rows of a batch of 12, and the gradients of its views."""
    make_loss, kinds = LOSSES[name]
    torch.manual_seed(0)
    loss = make_loss().double()
    loss.gather = gather
    given = testing.make_inputs([KINDS[kind] for kind in kinds], 12, 6, IMAGES, dtype=torch.float64)
    rows = [
        tensor.detach()
        if kind == "q"
        else tensor.detach()[..., own, :]
        if kind != "i"
        else tensor[own]
        for kind, tensor in zip(kinds, given, strict=True)
    ]
    views = [
        tensor.requires_grad_() for kind, tensor in zip(kinds, rows, strict=True) if kind in "oO"
    ]
    torch.manual_seed(100 + rank)  # every process draws something else
    value = loss(*rows)
    return value.detach(), torch.autograd.grad(value, views)


@pytest.mark.parametrize("name", LOSSES)
def test_two_ranks_are_one_process_with_the_joined_batch(name, small_tiles):
    """Each has the value of all rows, and its rows the gradient that DistributedDataParallel, which
    takes the mean over the ranks, makes that of all rows.
    """
    value, gradients = step(name, slice(None), 0, gather=False)
    ranks = ranks_of(2, lambda rank: step(name, OWN[rank], rank, gather=True))
    torch.testing.assert_close([each for each, _ in ranks], [value, value], rtol=1e-12, atol=0)
    parts = [torch.cat(both, -2) / 2 for both in zip(*(each for _, each in ranks), strict=True)]
    torch.testing.assert_close(parts, list(gradients), rtol=1e-10, atol=1e-14)


GATHERING = [
    loss
    for name in L.__all__
    if isinstance(loss := getattr(L, name), type) and "gather" in inspect.signature(loss).parameters
]


@pytest.mark.parametrize("loss", GATHERING, ids=lambda loss: loss.__name__)
def test_a_loss_gathers_where_it_is_asked_to(loss):
    parameters = inspect.signature(loss).parameters.values()
    needed = [12 for each in parameters if each.default is each.empty]
    assert loss(*needed).gather is False and loss(*needed, gather=True).gather is True


class Sum:
    """The sum of the rows by a factor, and the shares in force."""

    def __init__(self, gather):
        self.gather = gather

    @on_joined_batch("rows", "others")
    def forward(self, rows, others=None, *, factor=1.0):
        self.shares = active_shares(len(rows))
        return factor * (rows.sum() if others is None else (rows * others).sum())


def test_the_work_on_the_joined_batch_is_shared_and_without_gathering_each_has_its_own():
    """Rows of 1 to 6, of which the ranks have 2 and 4: 42 is twice their sum, and 6 of the first."""
    rows, own = torch.arange(1.0, 7)[:, None], [slice(0, 2), slice(2, 6)]

    def of(gather):
        def work(rank):
            total = Sum(gather)
            return total.forward(rows[own[rank]], factor=2.0).item(), total.shares

        return work

    messages = []
    (first, of_first), (second, of_second) = ranks_of(2, of(True), messages)
    assert (first, second) == (42, 42)
    assert (of_first.rank, of_second.rank) == (0, 1)
    assert of_first.rows == of_second.rows == tuple(own) and not of_first.seeded_alike
    assert [len(sent) for sent in messages] == [2, 2]  # the numbers of rows, and the rows
    alone = []
    assert ranks_of(2, of(False), alone) == [(6, None), (36, None)]
    assert alone == [[], []]


def test_every_loss_is_here():
    public = {name for name in L.__all__ if isinstance(getattr(L, name), type)}
    assert {type(make()).__name__ for make, _ in LOSSES.values()} == public


def draws(name, rank):
    """True if a call moves this process's generator."""
    loss = make(name)
    loss.gather = True
    given = testing.make_inputs([KINDS[kind] for kind in CASES[name][1]], 12, 6, IMAGES)
    torch.manual_seed(100 + rank)
    before = torch.get_rng_state()
    loss(*given)
    return not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["SACLR, 1 sampled", "SACLR, row, 3 sampled", "SIGReg", "LeJEPA"])
def test_rank_0_draws_for_all(name):
    assert ranks_of(2, lambda rank: draws(name, rank)) == [True, False]


def test_rows_of_any_dtype_and_number_are_gathered():
    def gathered(rank):
        numbers = gather_rows(torch.arange(2 + rank) + 10 * rank)
        return numbers, gather_rows(torch.ones(3 * rank, 2) > 0)

    for numbers, flags in ranks_of(2, gathered):
        assert numbers.tolist() == [0, 1, 10, 11, 12]
        assert flags.shape == (3, 2) and flags.all() and flags.dtype == torch.bool


def test_one_process_gathers_nothing():
    rows = torch.randn(3, 2, requires_grad=True)
    assert torch.equal(gather_rows(rows), rows) and not gather_rows(rows).requires_grad


def refusal(loss, *given):
    """Return the complaint of a loss about the rows of the ranks, "" where it takes them."""
    try:
        loss(*given)
    except ValueError as error:
        return str(error).split("; ", 1)[1]
    return ""


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        ([3, 3], [3, 4], "got rank 0: [3, 3]; rank 1: [3, 4]"),
        ([0, 3], [0, 3], "got rank 0: [0, 0]; rank 1: [3, 3]"),
    ],
    ids=["unequal on rank 1", "nothing on rank 0"],
)
def test_rows_that_do_not_fit_are_refused_on_every_rank(first, second, counts):
    def refused(rank):
        return refusal(
            L.SimCLR(gather=True), torch.ones(first[rank], 3), torch.ones(second[rank], 3)
        )

    assert ranks_of(2, refused) == [counts, counts]


def test_an_argument_that_one_rank_lacks_is_refused_on_every_rank():
    query, key, queue = torch.randn(2, 3, 4), torch.randn(3, 4), torch.eye(4)

    def refused(rank):
        return refusal(L.LORAC(gather=True), query, key, queue, query if rank else None)

    counts = "got rank 0: [3, 3, -1]; rank 1: [3, 3, 3]"
    assert ranks_of(2, refused) == [counts, counts]
