"""With `gather=True` two processes in torch's DistributedDataParallel are one process on the joined
batch.
"""

import inspect

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

import nearfar.losses as L
from nearfar.losses import gather_rows
from nearfar.pairs import attention, blocks
from tests.losses import test_contract
from tests.losses.test_contract import DIM, IMAGES

OWN = [slice(0, 10), slice(10, 18)]  # rank 0 has two rows more
BATCH, PIXELS, QUEUE, STEPS = 18, 6, 20, 3
CASES = {
    **test_contract.CASES,
    "SACLR, in groups": (lambda: L.SACLR(IMAGES, negatives="all", group_size=2), "oo"),
    "SigCLR, in groups": (lambda: L.SigCLR(group_size=2), "oo"),
    "SimCLR, in groups": (lambda: L.SimCLR(group_size=2), "oo"),
    "SogCLR, in groups": (lambda: L.SogCLR(IMAGES, group_size=2), "ooi"),
    "WMSE, parts": (lambda: L.WMSE(sub_batch=8, iterations=2), "oo"),
}
LEARNED = test_contract.LEARNED
CASES |= {f"{name}, learned": case for name, case in LEARNED.items()}
WITH_PARAMETERS = ["SigCLR", "SwAV", *(f"{name}, learned" for name in LEARNED)]


def call(loss, name, embedded, index, queue):
    """The loss of three views, its first argument by position and the others by name."""
    given, views = (
        {"i": index, "q": queue, "O": embedded, "K": embedded[1:].detach()},
        iter(embedded),
    )
    first, *others = [
        given[kind] if kind in given else next(views) if kind == "o" else next(views).detach()
        for kind in CASES[name][1]
    ]
    names = list(inspect.signature(loss.forward).parameters)[1 : 1 + len(others)]
    return loss(first, **dict(zip(names, others, strict=True)))


class Net(nn.Module):
    """Embeds three views, and the loss of them if it is given one."""

    def __init__(self, name, loss=None):
        super().__init__()
        self.name, self.loss = name, loss
        self.layers = nn.Sequential(nn.Linear(PIXELS, 8), nn.Tanh(), nn.Linear(8, DIM))

    def forward(self, views, index=None, queue=None):
        embedded = self.layers(views)
        return (
            embedded
            if self.loss is None
            else (call(self.loss, self.name, embedded, index, queue), embedded)
        )


def train(name, rank, gather=True, inside=False):
    """Losses and all state after three steps of SGD, by one process (rank None) or by one of
    two.
    """
    torch.manual_seed(0)
    loss = CASES[name][0]().double()
    loss.gather = gather
    net = Net(name, loss if inside else None).double()
    model = net if rank is None else DistributedDataParallel(net)
    parameters = list(dict.fromkeys([*net.parameters(), *loss.parameters()]))
    optimiser = torch.optim.SGD(parameters, lr=0.3)
    made = torch.Generator().manual_seed(1)
    queue = normalize(torch.randn(QUEUE, DIM, generator=made, dtype=torch.float64), dim=1)
    own = slice(None) if rank is None else OWN[rank]
    torch.manual_seed(100 + (rank or 0))  # every process samples something else
    before, values = torch.get_rng_state(), []
    for _ in range(STEPS):
        common = torch.randn(BATCH, PIXELS, generator=made, dtype=torch.float64)
        views = common + 0.5 * torch.randn(3, BATCH, PIXELS, generator=made, dtype=torch.float64)
        index = torch.randperm(IMAGES, generator=made)[:BATCH][own]
        if inside:
            value, embedded = model(views[:, own], index, queue)
        else:
            embedded = model(views[:, own])
            value = call(loss, name, embedded, index, queue)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        queue = torch.cat([gather_rows(normalize(embedded[1], dim=1)), queue])[:QUEUE]
        values.append(value.detach())
    if rank and gather:
        assert torch.equal(torch.get_rng_state(), before)  # rank 0 samples for all
    return (
        {"losses": torch.stack(values), "queue": queue}
        | net.layers.state_dict()
        | loss.state_dict()
    )


def work(rank, path):
    torch.set_num_threads(1)
    blocks.TILE_ROWS["cpu"], attention.TILE["cpu"], attention.ROWS = (
        4,
        40,
        3,
    )  # several blocks on each rank
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
    results = {name: train(name, rank) for name in CASES}
    results |= {(name, "inside"): train(name, rank, inside=True) for name in WITH_PARAMETERS}
    results["alone"] = {name: train(name, rank, gather=False) for name in CASES}
    results["rows"] = [
        gather_rows(torch.arange(2 + rank) + 10 * rank),
        gather_rows(torch.ones(3 * rank, 2) > 0),
    ]
    results["refused"] = []
    for first, second in (
        (3, 3 + rank),
        (3 * rank, 3 * rank),
    ):  # unequal on rank 1; nothing on rank 0
        with pytest.raises(ValueError) as error:
            L.SimCLR(gather=True)(torch.randn(first, 3), torch.randn(second, 3))
        results["refused"].append(str(error.value))
    torch.save(results, f"{path}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("processes"))
    mp.spawn(work, (path,), nprocs=2)
    return [torch.load(f"{path}/{rank}.pt") for rank in range(2)]


def test_every_loss_is_here():
    public = {name for name in L.__all__ if isinstance(getattr(L, name), type)}
    assert {type(make()).__name__ for make, _ in CASES.values()} == public


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(name, of_ranks):
    """Losses, weights, the loss's parameters and buffers, whether DistributedDataParallel wraps the
    loss or not.
    """
    one = train(name, None)
    for results in of_ranks:
        for state in [
            results[name],
            *([results[name, "inside"]] if name in WITH_PARAMETERS else []),
        ]:
            assert state.keys() == one.keys()
            for key in one:
                torch.testing.assert_close(
                    state[key],
                    one[key],
                    rtol=1e-9,
                    atol=1e-10,
                    msg=lambda text, key=key: f"{key}: {text}",
                )
        # This can fail: local negatives, or means of unequal batches, are another loss.
        assert (results["alone"][name]["losses"] - one["losses"]).abs().min() > 1e-5
    if name in WITH_PARAMETERS:
        torch.manual_seed(0)
        start = CASES[name][0]().double()
        assert all((one[key] - value).abs().max() > 1e-4 for key, value in start.named_parameters())


def test_rows_of_any_dtype_and_number_are_gathered(of_ranks):
    for results in of_ranks:
        numbers, flags = results["rows"]
        assert numbers.tolist() == [0, 1, 10, 11, 12]
        assert flags.shape == (3, 2) and flags.all() and flags.dtype == torch.bool


def test_one_process_gathers_nothing():
    rows = torch.randn(3, 2, requires_grad=True)
    assert torch.equal(gather_rows(rows), rows) and not gather_rows(rows).requires_grad


def test_rows_that_do_not_fit_are_refused_on_every_rank(of_ranks):
    for results in of_ranks:
        assert [text.split("; ", 1)[1] for text in results["refused"]] == [
            "got rank 0: [3, 3]; rank 1: [3, 4]",
            "got rank 0: [0, 0]; rank 1: [3, 3]",
        ]
