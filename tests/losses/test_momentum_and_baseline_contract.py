"""What every queue, low-rank and baseline loss keeps: precision, gradient routes, order of the batch, clear errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nearfar.losses import (
    JCL,
    LORAC,
    NNCLR,
    SCE,
    WMSE,
    BarlowTwins,
    MoCo,
    MoCoV3,
    NegativeCosine,
    ReSSL,
    SwAV,
    VICReg,
)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Case:
    make: Callable[[], torch.nn.Module]
    inputs: str  # o: online [batch, dim], O: online [3, batch, dim], k, K: fixed likewise, q: queue
    one_image: bool = False  # whether a batch of one means something


CASES = {
    "MoCo": Case(MoCo, "okq", True),
    "MoCoV3": Case(MoCoV3, "ok"),
    "ReSSL": Case(ReSSL, "okq", True),
    "SCE": Case(SCE, "okq", True),
    "SCE-batch": Case(SCE, "ok"),
    "SCE-free": Case(lambda: SCE(mu=1.0, eta=0.2), "okq", True),
    "MoCo-M": Case(lambda: LORAC(beta=math.inf), "Okq", True),
    "LORAC": Case(LORAC, "Okq", True),
    "LORAC-gaussian": Case(lambda: LORAC(prior="gaussian"), "Okq", True),
    "LORAC-constant": Case(lambda: LORAC(prior="constant"), "Okq", True),
    "LORAC-bs": Case(lambda: LORAC(batchwise=True), "Okq", True),
    "JCL": Case(JCL, "oKq", True),
    "NegativeCosine": Case(NegativeCosine, "ok", True),
    "BarlowTwins": Case(BarlowTwins, "oo"),
    "VICReg": Case(VICReg, "oo"),
    "WMSE": Case(WMSE, "oo"),
    "NNCLR": Case(NNCLR, "koq"),
    "SwAV": Case(lambda: SwAV(6, 9), "O"),
}
QUEUE_CASES = [name for name, case in CASES.items() if case.inputs.endswith("q")]
every_loss = pytest.mark.parametrize("name", CASES)


def make(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return CASES[name].make()


def inputs(name: str, batch: int = 12, dim: int = 6, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    made = []
    for position, kind in enumerate(CASES[name].inputs):
        shape = {"q": (40, dim)}.get(kind, (3, batch, dim) if kind.isupper() else (batch, dim))
        x = rows(*shape, seed=10 + position)
        x = torch.nn.functional.normalize(x, dim=-1) if kind == "q" else 3 * x
        made.append(x.to(dtype).requires_grad_())
    return made


@every_loss
def test_value_and_gradient_in_float32_are_those_of_float64(name):
    exact_inputs = inputs(name)
    single_inputs = [x.detach().float().requires_grad_() for x in exact_inputs]
    exact, single = make(name)(*exact_inputs), make(name)(*single_inputs)
    exact.backward()
    single.backward()
    assert exact.dtype == torch.float64
    assert single.dtype == torch.float32
    assert exact.shape == single.shape == ()
    assert single.item() == pytest.approx(exact.item(), rel=2e-6)
    for a, b in zip(exact_inputs, single_inputs, strict=True):
        if a.grad is not None:
            assert (a.grad - b.grad).norm() < 3e-6 * a.grad.norm()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_computed_in_float32(name, dtype):
    half = inputs(name, dtype=dtype)
    ours = make(name)(*half)
    ours.backward()
    single = make(name)(*(x.detach().float() for x in half))
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(single.item(), rel=1e-5)
    assert all(x.grad is None or (x.grad.dtype == dtype and x.grad.isfinite().all()) for x in half)


@every_loss
def test_autocast_changes_nothing(name):
    x = inputs(name, dtype=torch.float32)
    outside = make(name)(*x)
    with torch.autocast("cpu", torch.bfloat16):
        inside = make(name)(*x)
    assert inside.dtype == torch.float32
    assert inside.item() == outside.item()


@every_loss
def test_gradient_goes_to_the_online_branch_alone(name):
    x = inputs(name)
    make(name)(*x).backward()
    for kind, tensor in zip(CASES[name].inputs, x, strict=True):
        if kind in "oO":
            assert tensor.grad.norm() > 0
        else:
            assert tensor.grad is None


@every_loss
def test_the_order_of_the_batch_does_not_matter(name):
    x = inputs(name)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    shuffled = [
        y if kind == "q" else y.detach().index_select(-2, order).requires_grad_()
        for kind, y in zip(CASES[name].inputs, x, strict=True)
    ]
    one, other = make(name)(*x), make(name)(*shuffled)
    one.backward()
    other.backward()
    assert one.item() == pytest.approx(other.item(), rel=1e-9)
    for kind, y, z in zip(CASES[name].inputs, x, shuffled, strict=True):
        if kind in "oO":
            torch.testing.assert_close(y.grad.index_select(-2, order), z.grad, rtol=1e-6, atol=1e-9)


@every_loss
def test_a_batch_of_one(name):
    x = inputs(name, batch=1)
    if CASES[name].one_image:
        assert make(name)(*x).isfinite()
    else:
        with pytest.raises(ValueError, match="the batch must hold 2 images or more, got 1"):
            make(name)(*x)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.inputs) > 1])
@pytest.mark.usefixtures("unchecked")
def test_unequal_shapes(name):
    x = inputs(name)
    with pytest.raises(ValueError, match=r"must (have the same shape|be \[batch, dim\])"):
        make(name)(x[0], x[1][..., :11, :], *x[2:])
    with pytest.raises(ValueError, match=r"must be"):
        make(name)(x[0][0], x[1], *x[2:])


@pytest.mark.parametrize("name", QUEUE_CASES)
@pytest.mark.usefixtures("unchecked")
def test_wrong_queues(name):
    *x, queue = inputs(name)
    with pytest.raises(ValueError, match="queue must hold 1 key or more, got 0"):
        make(name)(*x, queue[:0])
    with pytest.raises(ValueError, match=r"queue must be \[keys, 6\]"):
        make(name)(*x, queue[:, :5])
    assert make(name)(*x, queue[:1]).isfinite()


@pytest.mark.parametrize("value", [0.0, -0.1, math.inf, math.nan])
@pytest.mark.parametrize(
    "make_with", [MoCo, MoCoV3, ReSSL, SCE, LORAC, JCL, NNCLR, lambda temperature: SwAV(6, 9, temperature=temperature)]
)
def test_temperatures_out_of_range(make_with, value):
    with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
        make_with(temperature=value)


@pytest.mark.parametrize(
    ("make_wrong", "message"),
    [
        (lambda: ReSSL(target_temperature=0.0), "target_temperature must be a finite number above 0"),
        (lambda: SCE(target_temperature=-1.0), "target_temperature must be a finite number above 0"),
        (lambda: SCE(lam=1.2), "lam must be between 0 and 1"),
        (lambda: SCE(lam=-0.1), "lam must be between 0 and 1"),
        (lambda: SCE(mu=-0.1), "mu must be a finite number, 0 or above"),
        (lambda: SCE(eta=math.nan), "eta must be a finite number, 0 or above"),
        (lambda: LORAC(variance=0.0), "variance must be a finite number above 0"),
        (lambda: LORAC(margin=-1.0), "margin must be a finite number above 0"),
    ],
)
def test_coefficients_out_of_range(make_wrong, message):
    with pytest.raises(ValueError, match=message):
        make_wrong()


@pytest.mark.parametrize("name", ["MoCo", "MoCoV3", "ReSSL", "SCE", "SCE-batch", "LORAC", "LORAC-bs", "JCL", "NNCLR"])
def test_double_backward_is_refused(name):
    x = inputs(name)
    online = x[CASES[name].inputs.lower().index("o")]
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(make(name)(*x), online, create_graph=True)


class Largest(TorchDispatchMode):
    """Remembers the most entries of any tensor that an operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else [out]
        self.entries = max([self.entries, *(x.numel() for x in made if isinstance(x, Tensor))])
        return out


@pytest.mark.parametrize("name", ["MoCo", "MoCoV3", "ReSSL", "SCE", "SCE-batch", "LORAC", "JCL", "NNCLR"])
def test_no_matrix_of_all_pairs_is_made(name):
    batch, keys, dim = 1100, 3000, 8
    x = [
        torch.nn.functional.normalize(rows(keys, dim), dim=1).float() if kind == "q" else tensor.detach()
        for kind, tensor in zip(CASES[name].inputs, inputs(name, batch, dim, torch.float32), strict=True)
    ]
    position = CASES[name].inputs.lower().index("o")
    x[position].requires_grad_()
    with Largest() as largest:
        make(name)(*x).backward()
    assert largest.entries <= 2**20 < batch * batch
