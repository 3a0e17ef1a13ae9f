"""Reductions that processes share equal one process on the joined batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from nearfar.pairs import (
    attend,
    attend_in_batch,
    blocks,
    cauchy,
    cosine,
    log_sum_exp,
    logistic_sum,
    per_image_log_sum_exp,
    shared_rows,
    weighted_sum,
)

WORLD, BATCH, DIM = 3, 17, 6
ROWS = [slice(0, 6), slice(6, 12), slice(12, 17)]


def batch():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    second = first + 0.5 * torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    number = torch.rand(2, BATCH, generator=generator, dtype=torch.float64) + 0.1
    keys = torch.randn(30, DIM, generator=generator, dtype=torch.float64)
    return first.requires_grad_(), second.requires_grad_(), number, keys


def logistic(a, b, number, _):
    return logistic_sum(a, b, number[0, 0] * 9, -number[0, 1])


CASES = {  # (first, second, a number for each row, keys) -> results, those with a gradient first
    "log-sum-exp": lambda a, b, *_: log_sum_exp(a, b, 0.2),
    "log-sum-exp, cold": lambda a, b, *_: log_sum_exp(a, b, 0.001),
    "per image": lambda a, b, number, _: per_image_log_sum_exp(a, b, number[0]),
    "weighted, cosine": lambda a, b, number, _: weighted_sum(a, b, number, cosine(0.2)),
    "weighted, cauchy": lambda a, b, number, _: weighted_sum(a, b, number, cauchy()),
    "logistic": logistic,
    "queue": lambda a, _, __, keys: attend(a, keys, 0.3),  # the number of queries does not divide
    "in batch": lambda a, b, *_: attend_in_batch(a, b, 0.3, 0.2),
}


def reduced(name):
    """Results, and gradients of both views and of what is learned, of a reduction over the joined batch."""
    first, second, number, keys = batch()
    number.requires_grad_(name == "logistic")
    results = CASES[name](first, second, number, keys)
    value = sum((k * result.square()).sum() for k, result in enumerate(results, 1) if result.requires_grad)
    inputs = [first, second] + ([number] if name == "logistic" else [])
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    return [result.detach() for result in results], [gradient for gradient in gradients if gradient is not None]


def work(rank, path):
    torch.set_num_threads(1)
    blocks.TILE_ROWS["cpu"] = 4
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=WORLD)
    with shared_rows(ROWS, rank):
        torch.save({name: reduced(name) for name in CASES}, f"{path}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("processes"))
    mp.spawn(work, (path,), nprocs=WORLD)
    return [torch.load(f"{path}/{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("name", CASES)
def test_shared_rows_are_the_whole(name, of_ranks):
    """Results are complete on every rank, and so are the gradients of its own rows and of what is learned."""
    results, gradients = reduced(name)
    for rank, of_rank in enumerate(of_ranks):
        got, own_gradients = of_rank[name]
        torch.testing.assert_close(got, results, rtol=1e-10, atol=1e-10)
        for own, expected in zip(own_gradients, gradients, strict=True):
            rows = ROWS[rank] if len(own) == BATCH else slice(None)
            torch.testing.assert_close(own[rows], expected[rows], rtol=1e-9, atol=1e-10)
            if name != "queue" and len(own) == BATCH:
                assert not own[: rows.start].any() and not own[rows.stop :].any()


def test_a_share_is_less_work(monkeypatch):
    """With W processes each makes about 1/W of all ordered pairs, fewer where both rows are its own."""
    first, second, *_ = batch()
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", 1)

    def pairs():
        return sum(len(tile.x) * len(tile.y) for tile in blocks.Blocks(first, second, unit=True, shared=True).tiles())

    assert pairs() == BATCH * (2 * BATCH + 1)
    with shared_rows(ROWS, 1):
        assert pairs() == 12 * (2 * BATCH - 12) + 12 * 13 // 2
