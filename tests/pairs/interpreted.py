"""Losses and reductions by the kernel of the pairs in Triton's interpreter, on a CPU; errors as JSON.

Run by test_kernel.py in a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
An error is that of a vector, relative, in the 2-norm, against float64 in plain PyTorch or in tiles.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import jaxtyping
import torch

import tools.typechecker

jaxtyping.install_import_hook(
    "nearfar", f"{tools.typechecker.__name__}.checked"
)  # as tests/conftest.py does

from nearfar import triton_kernels  # noqa: E402
from nearfar.pairs import attend, fused, fused_kernel, log_sum_exp, shares  # noqa: E402
from nearfar.pairs.blocks import Blocks  # noqa: E402
from nearfar.pairs.kernels import Form  # noqa: E402
from tests.losses.test_contract import inputs, make  # noqa: E402
from tests.pairs.test_tiles import CASES, double, inputs_of, relative, weigh  # noqa: E402

launches = []
launch = fused._launch


def counted(*given, **named):
    launches.append(given[2])
    return launch(*given, **named)


def interpret():
    """Let the kernel visit tensors of the CPU, in small tiles, with columns in several parts."""
    torch.set_num_threads(1)
    triton_kernels.compiles_kernels = lambda device: True
    fused_kernel.tile_of = lambda *given: (32, 32, 4, 1)
    fused.PROGRAMS = 6
    fused._launch = counted


def report(name, values, gradients):
    """Print the errors of pairs of tensors, ours and expected, and the launches since the last."""
    errors = [
        relative([ours for ours, _ in pairs], [expected for _, expected in pairs])
        for pairs in (values, gradients)
    ]
    print(json.dumps([name, *errors, len(launches)]), flush=True)
    assert not fused.KERNEL.failed
    launches.clear()


def reduction(name, batch, dim, dtype):
    case = CASES[name]
    given = inputs_of(case, batch, dim, dtype)
    exact = double(given)
    results, expected = case.ours(*given), case.plain(*exact)
    count = case.results
    ours = torch.autograd.grad(weigh(results[:count]), given)
    theirs = torch.autograd.grad(weigh(expected[:count]), exact)
    kind = str(dtype).removeprefix("torch.")
    report(
        f"{name}, {batch} x {dim}, {kind}",
        list(zip(results, expected, strict=True)),
        list(zip(ours, theirs, strict=True)),
    )


def loss(name):
    pairs = []
    for dtype in (torch.float32, torch.float64):
        module = make(name).to(dtype)
        given = []
        for x in inputs(name, dtype=torch.float32):
            real = x.is_floating_point()
            given.append(x.detach().to(dtype if real else x.dtype).requires_grad_(real))
        for _ in range(2):  # the second time with the state that the first has left
            torch.manual_seed(1)
            value = module(*given)
        value.backward()
        leaves = [x.grad for x in (*given, *module.parameters()) if x.grad is not None]
        pairs.append([value.detach(), *leaves])
    ours, expected = pairs
    both = list(zip(ours, expected, strict=True))
    report(name, both[:1], both[1:])


def queue(rows, keys, dim, dtype):
    """Queries against keys, the mean key too, and a learned temperature."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(rows, dim, generator=generator).to(dtype).requires_grad_()
    queue = torch.randn(keys, dim, generator=generator)
    temperature = torch.tensor(3.0, requires_grad=True)
    log_sum, mean = attend(query, queue, temperature)
    exact, t = double([query, temperature])
    logits = exact @ queue.double().T / t
    gradients = zip(
        torch.autograd.grad(weigh([log_sum]), [query, temperature]),
        torch.autograd.grad(weigh([logits.logsumexp(1)]), [exact, t]),
        strict=True,
    )
    expected = logits.softmax(1) @ queue.double()
    kind = str(dtype).removeprefix("torch.")
    report(
        f"queue, {rows} x {keys} x {dim}, {kind}",
        [(log_sum, logits.logsumexp(1)), (mean, expected)],
        list(gradients),
    )


def share(batch, own):
    """A process's own rows have the numbers of the whole, and all others zeros."""
    views = [torch.randn(batch, 20) for _ in range(2)]
    weights = torch.rand(2, batch)
    reported = []
    for active in (None, shares.Shares((slice(0, own.start), own, slice(own.stop, batch)), 1)):
        shares._active = active
        blocks = Blocks(*views, unit=True, shared=True)
        reported.append(
            fused.visit(
                blocks,
                Form.EXPONENTIAL,
                numbers=(weights,),
                affine=(5.0, 0.0),
                sums=True,
                gradient=True,
            )
        )
    shares._active = None
    whole, part = reported
    expected = torch.zeros_like(whole.gradient)
    expected[:, own] = whole.gradient[:, own]
    sums = torch.zeros_like(whole.sums[0])
    sums[:, own] = whole.sums[0][:, own]
    report("share of a process", [(part.sums[0], sums)], [(part.gradient, expected)])


def failing_gradient():
    """Tiles make the gradient of a sum that the kernel made, when the kernel fails there."""

    def failing(*given, **named):
        if named["gradient"]:
            raise RuntimeError("not compiled")
        return counted(*given, **named)

    views = [torch.randn(20, 8, requires_grad=True) for _ in range(2)]
    exact = double(views)
    fused._launch = failing
    value, expected = (log_sum_exp(*rows, 0.1)[1].mean() for rows in (views, exact))
    gradients = [torch.autograd.grad(x, rows) for x, rows in ((value, views), (expected, exact))]
    assert fused.KERNEL.failed
    fused.KERNEL.failed, fused._launch = False, counted
    report("failing gradient", [(value, expected)], list(zip(*gradients, strict=True)))


if __name__ == "__main__":
    interpret()
    for name in CASES:
        if "sampled" not in name:
            reduction(name, 45, 24, torch.float32)  # a last tile that is not full
            reduction(name, 32, 16, torch.bfloat16)
    for batch, dim in ((2, 3), (33, 128)):
        reduction("log-sum-exp, 0.1", batch, dim, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        queue(17, 130, 24, dtype)
    queue(3, 1, 16, torch.float32)
    failing_gradient()
    share(40, slice(11, 29))
    for name in sys.argv[1:]:
        loss(name)
    sys.exit(0)
