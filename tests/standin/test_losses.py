"""Every loss on the GPU: the value and the gradients of the CPU, and nothing waits for the
device.
"""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from nearfar.device import compiles_kernels
from nearfar.losses import SimCLR
from nearfar.pairs import fused
from tests.losses.test_contract import CASES, inputs, make

EIGH = "eigenvalues, u = torch.linalg.eigh("


def evaluate(loss, given, forward=nullcontext):
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
    torch.manual_seed(1)
    with forward():
        value = loss(*given)
    value.backward()
    return value, [x.grad for x in given]


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_the_same_and_waits_for_nothing(name, device, tolerance, waits_for):
    given = inputs(name, dtype=torch.float32)
    own, sent = make(name), make(name).to(device)
    for _ in range(2):  # the second time with the state that the first has left
        wanted, wanted_gradients = evaluate(own, given)
        moved = [x.to(device) for x in given]
        with waits_for() as waits:
            value, gradients = evaluate(sent, moved)
        assert value.device == device
        torch.testing.assert_close(value.cpu(), wanted, **tolerance)
        for gradient, other in zip(gradients, wanted_gradients, strict=True):
            assert (gradient is None) == (other is None)
            if gradient is not None:
                torch.testing.assert_close(gradient.cpu(), other, **tolerance)
        assert {line for _, line in waits} <= ({EIGH} if name.startswith("LORAC") else set())
    for key, saved in sent.state_dict().items():
        torch.testing.assert_close(saved.cpu(), own.state_dict()[key], **tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_loss_leaves_autocast(name, device):
    """In autocast of the device, where products are of bfloat16, the value is that without it to
    the last bit; the kernel in Triton alone takes bfloat16 from it.
    """
    loss, given = make(name).to(device), [x.to(device) for x in inputs(name, dtype=torch.float32)]
    state = {key: value.clone() for key, value in loss.state_dict().items()}
    plain, gradients = evaluate(loss, given)
    loss.load_state_dict(state)
    lower = partial(torch.autocast, device.type, torch.bfloat16)
    with lower():
        rows = torch.ones(2, 2, device=device)
        assert (rows @ rows).dtype == torch.bfloat16
    value, others = evaluate(loss, given, lower)  # the way back stays outside, as torch advises
    assert value.dtype == torch.float32
    lowered = compiles_kernels(device)
    pairs = [(value, plain), *zip(gradients, others, strict=True)]
    for ours, other in ((a.cpu(), b.cpu()) for a, b in pairs if a is not None):
        near = (ours - other).norm() <= 3e-2 * other.norm()
        assert near if lowered else torch.equal(ours, other)


@pytest.mark.parametrize("batch", [1000, 4096])
def test_the_kernel_on_this_gpu_has_the_numbers_of_the_tiles(batch, device, monkeypatch):
    """The kernel is in use, equals the tiles in float32, and has the same bits in every run."""
    if not compiles_kernels(device):
        pytest.skip(f"{device.type} has no kernel: its tiles are tested above")
    given = [torch.randn(batch, 128, device=device) for _ in range(2)]
    (value, gradients), again = evaluate(SimCLR(), given), evaluate(SimCLR(), given)
    assert not fused.KERNEL.failed
    assert torch.equal(value, again[0]) and all(map(torch.equal, gradients, again[1]))
    monkeypatch.setenv(fused.KERNEL.switch, "tiles")
    expected, others = evaluate(SimCLR(), given)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    for gradient, other in zip(gradients, others, strict=True):
        assert (gradient - other).norm() < 1e-4 * other.norm()
