"""Gathering the rows of all processes: what is drawn, what is refused. That two processes are one
is part of the contract (test_contract.py).
"""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import nearfar.losses as L
from nearfar.losses import gather_rows
from tests.losses import test_contract
from tests.losses.test_contract import CASES, make, small_tiles


def test_every_loss_is_here():
    public = {name for name in L.__all__ if isinstance(getattr(L, name), type)}
    assert {type(make()).__name__ for make, _ in CASES.values()} == public


def draws(name, rank):
    """True if a call moves this process's generator."""
    loss = make(name)
    loss.gather = True
    torch.manual_seed(100 + rank)
    before = torch.get_rng_state()
    loss(*test_contract.inputs(name, dtype=torch.float32))
    return not torch.equal(torch.get_rng_state(), before)


def work(rank, path):
    small_tiles()
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
    results = {"draws": {name: draws(name, rank) for name in CASES}}
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
    dist.barrier()  # whoever leaves first closes its connections
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("processes"))
    mp.spawn(work, (path,), nprocs=2)
    return [torch.load(f"{path}/{rank}.pt") for rank in range(2)]


@pytest.mark.slow
def test_rank_0_draws_for_all(of_ranks):
    first, second = (results["draws"] for results in of_ranks)
    assert first["SACLR, 1 sampled"] and first["SIGReg"] and not any(second.values())


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
