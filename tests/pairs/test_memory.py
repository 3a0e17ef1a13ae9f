"""Peak memory of every reduction, forward and backward, counted storage by storage."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearfar import pairs
from nearfar.pairs import blocks

DIM = 32


class Live(TorchDispatchMode):
    """Bytes of all storages alive but those of the inputs, and the largest number seen."""

    def __init__(self, *inputs):
        super().__init__()
        self.now = self.peak = 0
        self.seen = weakref.WeakSet(tensor.untyped_storage() for tensor in inputs)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return result

    def count(self, storage):
        if storage not in self.seen:
            self.seen.add(storage)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.free, storage.nbytes())

    def free(self, size):
        self.now -= size


def ones(view):
    return torch.ones(2, len(view), device=view.device)


REDUCTIONS = {
    "cosine": lambda a, b: pairs.log_sum_exp(a, b, 0.1)[1].mean(),
    "running maximum": lambda a, b: pairs.log_sum_exp(a, b, 0.005)[1].mean(),
    "cauchy": lambda a, b: pairs.weighted_sum(a, b, ones(a), pairs.cauchy())[1],
    "weighted": lambda a, b: pairs.weighted_sum(a, b, ones(a), pairs.gaussian(0.5))[1],
    "sampled": lambda a, b: pairs.sampled_sum(
        a, b, pairs.sample_others(len(a), 1), ones(a), pairs.gaussian(0.5)
    )[1],
    "logistic": lambda a, b: pairs.logistic_sum(a, b, *ones(a)[:, 0])[1],
    "tempered": lambda a, b: pairs.per_image_log_sum_exp(a, b, ones(a)[0])[1].mean(),
    "relations": lambda a, b: pairs.relation_sum(a, b, a, 0.05),
    "across": lambda a, b: pairs.log_sum_exp(a, b, 0.1, across=True)[1].mean(),
}


def extra_bytes(reduction, batch, dim=DIM, device="cpu", dtype=torch.float32):
    """Peak above the inputs and their gradient."""
    given = dict(requires_grad=True, device=device, dtype=dtype)
    views = [torch.randn(batch, dim, **given) for _ in range(2)]
    with Live(*views) as live:
        gradients = torch.autograd.grad(reduction(*views), views)
    return live.peak - sum(gradient.nbytes for gradient in gradients)


@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
def test_memory_is_linear_and_below_16_mib_and_16_bytes_a_row(reduction):
    small, large = extra_bytes(reduction, 1100), extra_bytes(reduction, 2200)
    assert large < 2**24 + 16 * 2 * 2200
    assert large - small < 16 * 2 * (2200 - 1100) + 2**22  # n x n more would be 55 MiB


@pytest.mark.parametrize(("batch", "dim"), [(1024, 256), (1024, 512), (600, 1024)])
def test_kept_tiles_fit_the_budget_too(batch, dim):
    assert extra_bytes(REDUCTIONS["cosine"], batch, dim) < 2**24 + 16 * 2 * batch


WIDE = {name: reduction for name, reduction in REDUCTIONS.items() if name != "relations"}
"""Relations take unit rows of the teacher besides: 26 MiB."""


@pytest.mark.parametrize("reduction", WIDE.values(), ids=WIDE)
def test_wide_rows_fit_the_budget(reduction):
    assert extra_bytes(reduction, 160, 8192) < 2**24 + 16 * 2 * 160


ON_A_GPU = [name for name in WIDE if name != "sampled"]  # its samples come from the CPU


@pytest.mark.parametrize(("batch", "dim"), [(2**14, 128), (2**11, 2048)])
@pytest.mark.parametrize("name", ON_A_GPU)
def test_tiles_on_a_gpu_fit_their_budget(name, batch, dim, monkeypatch):
    """Tensors without values show how much a device holds, and take no time."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # fails for "meta"
    tiles = 3 * 4 * blocks.fitting_rows(torch.device("meta"), dim) ** 2
    rows = 6 * 4 * blocks.WIDE_ELSEWHERE
    assert extra_bytes(REDUCTIONS[name], batch, dim, "meta") < tiles + rows + 2**24


def test_few_tiles_on_a_gpu():
    """A tile is some 15 operations, each of which waits for Python."""
    z = torch.empty(4096, 128, device="meta")
    assert len(list(blocks.Blocks(z, z, unit=True).tiles())) == 3


def test_the_count_sees_a_full_matrix():
    """The measure itself: a plain n x n program is caught by the same assertion."""

    def plain(first, second):
        rows = torch.cat([first, second])
        return (rows @ rows.T).logsumexp(1).mean()

    assert extra_bytes(plain, 1500) > 2**24 + 16 * 2 * 1500


def test_attention_holds_one_tile():
    query, keys = torch.randn(300, DIM, requires_grad=True), torch.randn(20000, DIM)
    with Live(query, keys) as live:
        pairs.attend(query, keys, 0.1)[0].sum().backward()
    assert live.peak < 2**22  # [300, 20000] would be 23 MiB


def test_keys_of_the_batch_fit_the_budget_too():
    query, keys = torch.randn(3000, 512, requires_grad=True), torch.randn(3000, 512)
    with Live(query, keys) as live:
        (gradient,) = torch.autograd.grad(
            sum(pairs.attend_in_batch(query, keys, 0.1, 0.07)).sum(), query
        )
    assert (
        live.peak - gradient.nbytes < 2**24 + 16 * 2 * 3000
    )  # one more [batch, dim] would be 9 MiB, B x B 77 MiB
