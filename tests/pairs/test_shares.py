"""Reductions that processes share, and the ring, equal one process on the joined batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from nearfar.losses import SigCLR
from nearfar.pairs import (
    around_ring,
    attend,
    blocks,
    cauchy,
    cosine,
    gaussian,
    log_sum_exp,
    logistic_sum,
    per_image_log_sum_exp,
    relate_in_batch,
    shared_rows,
    weighted_sum,
)

WORLD, BATCH, DIM = 3, 17, 6
ROWS = [slice(0, 6), slice(6, 12), slice(12, 17)]
KERNELS = {"cosine": cosine(0.2), "cold": cosine(0.001), "gaussian": gaussian(0.5, unit=False), "cauchy": cauchy()}


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    second = first + 0.5 * torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    number = torch.rand(2, BATCH, generator=generator, dtype=torch.float64) + 0.1
    return [first.to(dtype).requires_grad_(), second.to(dtype).requires_grad_()], number


def reduced(name):
    """Results, gradients and the numbers of tiles of a reduction over the joined batch."""
    views, number = batch()
    kind, _, kernel = name.partition(" ")
    if kind == "log-sum-exp":
        positive, sums = log_sum_exp(*views, KERNELS[kernel])
    elif kind == "tempered":
        positive, sums, mean = per_image_log_sum_exp(*views, number[0])
        number = number + mean
    else:
        positive, total, sums = weighted_sum(*views, number, KERNELS[kernel])
        number = total
    value = positive.square().sum() + (number * sums).sum() + (number.sum() if kind == "weighted" else 0)
    return [value.detach(), sums.detach(), *torch.autograd.grad(value, views)]


NAMES = [f"log-sum-exp {name}" for name in KERNELS] + ["tempered"]
NAMES += [f"weighted {name}" for name in KERNELS if name not in ("cold",)]


def attended():
    """Results and gradient of queries against keys; the number of queries does not divide."""
    (query, _), number = batch()
    keys = torch.randn(30, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_sums, mean_key = attend(query, keys, 0.3)
    value = (number[0] * log_sums).sum()
    return [log_sums.detach(), mean_key, *torch.autograd.grad(value, [query])]


def related():
    """Value, results and gradient of queries against the keys of the other images."""
    (query, keys), number = batch()
    results = relate_in_batch(query, keys, 0.3, 0.2)
    value = sum((number[0] * result).sum() for result in results)
    return [value.detach(), torch.stack(results).detach(), *torch.autograd.grad(value, [query])]


def around(rank, dtype, learn=True):
    """Value and gradients of SigCLR, by one process on the batch or by this rank from its own rows."""
    views, _ = batch(dtype)
    loss = SigCLR(0.3, bias=-2.0, learn_temperature=learn)
    if rank is None:
        value, own = loss(*views), views
    else:
        own = [view.detach()[ROWS[rank]].requires_grad_() for view in views]
        with around_ring([rows.stop - rows.start for rows in ROWS], rank):
            value = loss(*own)
    return [value.detach(), *torch.autograd.grad(value, [*own, loss.log_scale, loss.bias])]


def work(rank, path):
    torch.set_num_threads(1)
    blocks.TILE_ROWS["cpu"] = 4
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=WORLD)
    results = {}
    for name in NAMES:
        with shared_rows(ROWS, rank):
            results[name] = reduced(name)
    with shared_rows(ROWS, rank):
        results["attend"] = attended()
        results["related"] = related()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        results[dtype] = around(rank, dtype)
    torch.save(results, f"{path}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("processes"))
    mp.spawn(work, (path,), nprocs=WORLD)
    return [torch.load(f"{path}/{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("name", [*NAMES, "related"])
def test_shared_rows_are_the_whole(name, of_ranks):
    """Values and row sums are complete on every rank; its own rows' gradient is complete, that of others is zero."""
    value, sums, *gradients = related() if name == "related" else reduced(name)
    for rank, results in enumerate(of_ranks):
        torch.testing.assert_close(results[name][:2], [value, sums], rtol=1e-10, atol=1e-10)
        for got, expected in zip(results[name][2:], gradients, strict=True):
            torch.testing.assert_close(got[ROWS[rank]], expected[ROWS[rank]], rtol=1e-9, atol=1e-10)
            assert not got[: ROWS[rank].start].any() and not got[ROWS[rank].stop :].any()


def test_shared_queries_are_the_whole(of_ranks):
    for results in of_ranks:
        torch.testing.assert_close(results["attend"], attended(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_ring_is_the_whole(dtype, of_ranks):
    value, first, second, *slopes = around(None, dtype)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    results = [result[dtype] for result in of_ranks]
    for got in results:  # the value and the gradients of scale and bias are complete, and the same, on every rank
        torch.testing.assert_close([got[0], *got[3:]], [value, *slopes], rtol=min(tolerance, 1e-5), atol=1e-6)
        assert all(torch.equal(got[k], results[0][k]) for k in (0, 3, 4))
    for k, gradient in ((1, first), (2, second)):
        got = torch.cat([result[k] for result in results])
        torch.testing.assert_close(got, gradient, rtol=tolerance, atol=tolerance)


def test_one_process_alone_is_a_ring():
    inputs = [*batch()[0], *(torch.tensor(n, dtype=torch.float64, requires_grad=True) for n in (3.0, -1.0))]
    whole = logistic_sum(*inputs)[1]
    with around_ring([BATCH], 0):
        alone = logistic_sum(*inputs)[1]
    torch.testing.assert_close(alone, whole)
    torch.testing.assert_close(torch.autograd.grad(alone, inputs), torch.autograd.grad(whole, inputs))


def test_a_share_is_less_work(monkeypatch):
    """With W processes each makes about 1/W of all ordered pairs, fewer where both rows are its own."""
    views, _ = batch()
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", 1)

    def pairs():
        return sum(len(tile.x) * len(tile.y) for tile in blocks.Blocks(*views, unit=True, shared=True).tiles())

    assert pairs() == BATCH * (2 * BATCH + 1)
    with shared_rows(ROWS, 1):
        assert pairs() == 12 * (2 * BATCH - 12) + 12 * 13 // 2
