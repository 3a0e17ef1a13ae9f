"""The kernel of the pairs without a GPU: its numbers by Triton's interpreter, its code by Triton's
compiler, and its way back to tiles.

The interpreter takes programs that the compiler refuses, so both are here, each in a process of its
own.
"""

import importlib.util
import json
import logging
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version
from torch.utils._python_dispatch import TorchDispatchMode

from nearfar import pairs, triton_kernels
from nearfar.losses import SACLR, SigCLR, SimCLR
from nearfar.pairs import fused
from tests.losses.test_contract import CASES as LOSSES
from tests.pairs.test_memory import extra_bytes

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
WITHOUT = ("sampled", "NegativeCosine", "BarlowTwins", "VICReg", "WMSE", "SIGReg", "LeJEPA", "SwAV")
ON_PAIRS = [name for name in LOSSES if not any(part in name for part in WITHOUT)]


def lines_of(script, *given, **environment):
    """The lines of JSON that a script beside this one prints."""
    root = HERE.parents[1]
    path = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    unset = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), *given],
        env=unset | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment,
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_reductions_of_one_tensor_as_both_views_are_compiled():
    differences = dict(lines_of("one_tensor.py"))
    assert len(differences) == 6
    assert all(isinstance(value, float) and value < 1e-5 for value in differences.values())


@needs_triton
@pytest.mark.slow
def test_values_and_gradients_equal_float64_in_the_interpreter():
    """Every reduction and every loss on pairs, with last tiles that are not full, in several parts.

    In float32 three products of bfloat16 leave 1e-5 of a gradient: the interpreter cuts digits off
    that a GPU rounds.
    """
    reported = lines_of("interpreted.py", *ON_PAIRS)
    assert len(reported) == 31 + len(ON_PAIRS)
    for name, value, gradient, launches in reported:
        low = "bfloat16" in name
        assert value < (2e-3 if low else 5e-6), name
        assert gradient < (2e-2 if low else 3e-5), name
        assert launches > 0, f"{name} did not use the kernel"


FORMS = [  # form, sums, gradient, in float32's quality, for both generations of tensor cores
    ("EXPONENTIAL", True, False, False, [90]),
    ("EXPONENTIAL", False, True, False, [80, 90]),
    ("EXPONENTIAL", True, True, True, [80, 90]),
    ("SOFTMAX", False, True, True, [80, 90]),
    ("SOFTMAX", True, True, False, [90]),
    ("LOGISTIC", True, True, False, [80, 90]),
    ("LOGISTIC", True, True, True, [90]),
    ("CAUCHY", True, True, True, [80, 90]),
]


@needs_triton
@pytest.mark.slow
def test_it_compiles_without_spills_and_within_the_memory_of_small_gpus(tmp_path):
    cases = [
        [
            f"{form} {sums} {gradient} {exact} {capability}",
            [form, capability, sums, gradient, exact],
        ]
        for form, sums, gradient, exact, capabilities in FORMS
        for capability in capabilities
    ]
    reported = dict(lines_of("compiled.py", json.dumps(cases), TRITON_CACHE_DIR=str(tmp_path)))
    for name, count in (("SimCLR", 2), ("SigCLR, learned", 3), ("queue", 4)):  # as Python launches
        assert reported.pop(name) == {"failed": False, "launches": count}
    assert len(reported) == len(cases)
    old = Version(version("triton")) < Version("3.9")  # spills up to 88 bytes on sm_80
    for name, used in reported.items():
        assert "error" not in used, f"{name}: {used}"
        assert used["shared"] <= 99 * 1024, f"{name}: {used}"
        assert used["products"] > 0, f"{name} does not use tensor cores"
        assert used["spilled"] <= (128 if old else 0), f"{name}: {used}"


@pytest.fixture
def chosen(monkeypatch):
    """The kernel is chosen for a CPU too, and has not failed yet."""
    monkeypatch.setattr(triton_kernels, "compiles_kernels", lambda device: True)
    monkeypatch.setattr(fused.KERNEL, "failed", False)
    monkeypatch.delenv(fused.KERNEL.switch, raising=False)


def every_way(views):
    """The values and gradients of reductions that try the kernel at different places."""
    first, second = views
    weights = torch.linspace(0.5, 1, 2 * len(first)).view(2, -1)
    values = [
        pairs.log_sum_exp(first, second, 0.1)[1].mean(),
        pairs.log_sum_exp(first, second, torch.tensor(0.1))[1].mean(),
        pairs.per_image_log_sum_exp(first, second, torch.full((len(first),), 0.3))[1].mean(),
        pairs.logistic_sum(first, second, torch.tensor(5.0), torch.tensor(-1.0))[1],
        pairs.weighted_sum(first, second, weights, pairs.cauchy())[1],
        pairs.attend(first, second.detach(), 0.1)[0].mean(),
        sum(pairs.attend_in_batch(first, second.detach(), 0.1, 0.2)).mean(),
    ]
    return [x for value in values for x in (value, torch.autograd.grad(value, first)[0])]


@pytest.mark.parametrize("failure", ["import", "launch"])
def test_a_failure_leaves_the_pairs_to_the_tiles_with_a_warning(
    failure, chosen, monkeypatch, caplog
):
    """Numbers are those of the tiles to the last bit, also where the gradient's kernel fails."""
    views = [torch.randn(20, 8, requires_grad=True) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setenv(fused.KERNEL.switch, "tiles")
        expected = every_way(views)
    assert not caplog.records and not fused.KERNEL.failed

    def refuse(*given):
        raise ImportError("no Triton here\nfor this system")

    def fail(*given):
        return SimpleNamespace(visit={}, tile_of=lambda *given: (32, 32, 4, 1))

    monkeypatch.setattr(fused.importlib, "import_module", refuse if failure == "import" else fail)
    with caplog.at_level(logging.WARNING, "nearfar"):
        reported = every_way(views)
    assert all(map(torch.equal, reported, expected))
    [record] = caplog.records
    assert ("ImportError: for this system" if failure == "import" else "KeyError") in record.message
    assert "tiles" in record.message


def test_memory_that_runs_out_is_no_failure_of_the_kernel(chosen, monkeypatch):
    def out_of_memory(*given, **named):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(fused, "_launch", out_of_memory)
    z = torch.randn(8, 4)
    with pytest.raises(torch.OutOfMemoryError):
        pairs.log_sum_exp(z, z, 0.1)
    assert not fused.KERNEL.failed


@pytest.mark.parametrize("case", ["float64", "wide", "groups", "cpu"])
def test_tiles_stay(case, chosen, monkeypatch):
    launched = []
    monkeypatch.setattr(fused, "_launch", lambda *given, **named: launched.append(given))
    z = torch.randn(8, fused.WIDEST + 1 if case == "wide" else 4)
    if case == "cpu":
        monkeypatch.undo()
    pairs.log_sum_exp(
        z.double() if case == "float64" else z,
        z.double() if case == "float64" else z,
        0.1,
        group_size=4 if case == "groups" else None,
    )
    assert not launched


def test_products_are_of_bfloat16_under_autocast_alone(chosen):
    def exact(rows):
        with pairs.arithmetic.without_autocast(rows):
            return pairs.arithmetic.is_exact(rows)

    rows = torch.ones(2, 2)
    assert exact(rows) and not exact(rows.bfloat16()) and exact(rows.half())
    with torch.autocast("cpu", torch.bfloat16):
        assert not exact(rows)
        with torch.autocast("cpu", enabled=False):
            assert exact(rows)
    assert exact(rows)


class Operations(TorchDispatchMode):
    """Count the operations of torch that a GPU would be given: none that returns a view."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not any(
            r.alias_info and not r.alias_info.is_write for r in operation._schema.returns
        )
        return operation(*args, **(kwargs or {}))


class Stub:
    """A kernel that computes nothing and counts its launches."""

    launches = 0

    def __getitem__(self, grid):
        def launch(*given, **named):
            self.launches += 1

        return launch


@pytest.fixture
def stub(chosen, monkeypatch):
    """The kernel without its work; blocks are those of a GPU, on tensors without values."""
    visit = Stub()
    module = SimpleNamespace(visit=visit, tile_of=lambda *given: (128, 128, 8, 2))
    monkeypatch.setattr(fused.importlib, "import_module", lambda name: module)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # fails for "meta"
    return visit


MOST = {  # launches of a loss and its gradient with 4096 and 65536 images: these may only fall
    "SimCLR": (46, 634),
    "SigCLR": (56, 644),
    "SACLR": (66, 684),
}
BUILD = {
    "SimCLR": SimCLR,
    "SigCLR": SigCLR,
    "SACLR": lambda: SACLR(100, "matrix", "all"),
}


@pytest.mark.parametrize("name", MOST)
def test_launches_of_a_step(name, stub):
    """With tiles of 4096 rows SimCLR with 65536 images makes some 8000."""
    counts = []
    for batch in (4096, 65536):
        loss = BUILD[name]().to("meta")
        views = [torch.empty(batch, 128, device="meta", requires_grad=True) for _ in range(2)]
        with Operations() as operations:
            loss(*views).backward()
        counts.append(operations.count + stub.launches)
    assert counts <= list(MOST[name]) and counts[1] <= MOST[name][1], counts
    assert stub.launches == 2 * (2 if name == "SimCLR" else 1)


@pytest.mark.parametrize(("dtype", "mebibytes"), [(torch.float32, 80), (torch.bfloat16, 72)])
def test_memory_of_65536_images(dtype, mebibytes, stub):
    """The rows twice in bfloat16 (64 MiB), or once and the gradient in float32 beside bfloat16."""

    def reduction(first, second):
        return pairs.log_sum_exp(first, second, 0.1)[1].mean()

    assert extra_bytes(reduction, 2**16, 128, "meta", dtype) < mebibytes * 2**20
