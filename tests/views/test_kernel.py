"""The kernel of the views without a GPU: its numbers by Triton's interpreter, its code by Triton's
compiler, its launches, and its way back to operations.

The interpreter takes programs that the compiler refuses, so both are here, each in a process of its
own.
"""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nearfar import triton_kernels
from nearfar.views import View, ViewPlan, fused, make_views, plan
from tests.pairs.test_kernel import Stub, lines_of, needs_triton

HERE = Path(__file__).parent


def check(reported):
    """Values equal those of operations within 4e-6, by the kernel."""
    for name, error, launches in reported:
        assert error < 4e-6, name
        assert launches > 0, f"{name} did not use the kernel"


@pytest.mark.slow
@needs_triton
def test_views_equal_those_of_operations_in_the_interpreter():
    reported = lines_of(HERE / "interpreted.py", "few")
    assert len(reported) == 1
    check(reported)


@needs_triton
@pytest.mark.slow
def test_every_operation_equals_that_of_pytorch_in_the_interpreter():
    """By itself and with all others; one, three and five channels; sides that are no powers of two,
    larger and smaller than the images; bytes and floats; crops made elsewhere; tables of several
    batches.
    """
    reported = lines_of(HERE / "interpreted.py")
    assert len(reported) == 46
    check(reported)


FULL = ["jitter", "affine", "blur"]
CASES = [
    [capability, channels, source, side, kind, changes]
    for capability in (80, 90)
    for channels, source, side, kind, changes in (
        (3, 32, 32, "u8", FULL),
        (3, 32, 14, "u8", ["jitter"]),
        (3, 96, 96, "u8", ["jitter", "blur"]),
        (3, 224, 224, "fp32", FULL),
        (3, 224, 96, "u8", ["jitter", "blur"]),
        (1, 28, 28, "u8", FULL),
        (5, 64, 64, "fp32", ["jitter", "blur"]),
        (3, 64, 64, "u8", []),
    )
]


@needs_triton
@pytest.mark.slow
def test_it_compiles_without_spills_and_within_the_memory_of_small_gpus(tmp_path):
    named = [[str(case), case] for case in CASES]
    reported = dict(
        lines_of(HERE / "compiled.py", json.dumps(named), TRITON_CACHE_DIR=str(tmp_path))
    )
    launched = {"failed": False, "launches": 3}
    assert reported.pop("as Python launches it") == launched
    assert len(reported) == len(CASES)
    for name, used in reported.items():
        assert "error" not in used, f"{name}: {used}"
        assert used["shared"] <= 99 * 1024, f"{name}: {used}"
        assert used["spilled"] == 0, f"{name}: {used}"


@needs_triton
def test_the_table_has_the_columns_that_the_kernel_reads():
    kernel = pytest.importorskip("nearfar.views.fused_kernel")
    assert kernel.COLUMNS.value == fused.COLUMNS
    assert fused.COLUMNS % 4 == 0 and kernel.MATRIX.value + 6 <= fused.COLUMNS


@pytest.fixture
def chosen(monkeypatch):
    """The kernel is chosen for a CPU too, and has not failed yet."""
    monkeypatch.setattr(triton_kernels, "compiles_kernels", lambda device: True)
    monkeypatch.setattr(fused.KERNEL, "failed", False)
    monkeypatch.delenv(fused.KERNEL.switch, raising=False)


@pytest.fixture
def stub(chosen, monkeypatch):
    """The kernel without its work."""
    work = Stub()
    monkeypatch.setattr(
        fused.importlib, "import_module", lambda name: SimpleNamespace(make_view=work)
    )
    return work


def made(images, the_plan=None):
    channels = images.shape[1]
    the_plan = the_plan or plan("strong-gamma", 32, channels)
    generator = torch.Generator().manual_seed(3)
    return make_views(images, the_plan, generator, [0.4] * channels, [0.2] * channels)


@pytest.mark.parametrize("failure", ["import", "launch"])
def test_a_failure_leaves_the_views_to_operations_with_a_warning(
    failure, chosen, monkeypatch, caplog, pictures
):
    """Views are those of operations to the last bit, also in the batches that follow."""
    images = pictures(4, 3, 32)
    with monkeypatch.context() as patch:
        patch.setenv(fused.KERNEL.switch, "operations")
        expected = made(images)
    assert not caplog.records and not fused.KERNEL.failed

    def refuse(*given):
        raise ImportError("no Triton here\nfor this system")

    def fail(*given):
        return SimpleNamespace(make_view={})

    monkeypatch.setattr(fused.importlib, "import_module", refuse if failure == "import" else fail)
    with caplog.at_level(logging.WARNING, "nearfar"):
        views = [made(images) for _ in range(2)]
    assert all(torch.equal(a, b) for some in views for a, b in zip(some, expected, strict=True))
    [record] = caplog.records
    assert ("ImportError: for this system" if failure == "import" else "KeyError") in record.message
    assert "operations" in record.message


def test_memory_that_runs_out_is_no_failure_of_the_kernel(chosen, monkeypatch, pictures):
    def out_of_memory(*given, **named):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(fused, "_launch", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        made(pictures(4, 3, 32))
    assert not fused.KERNEL.failed


@pytest.mark.parametrize("case", ["noise", "float64", "switch", "cpu"])
def test_operations_stay(case, stub, monkeypatch, pictures):
    images = pictures(4, 3, 32)
    if case == "cpu":
        monkeypatch.undo()
    if case == "switch":
        monkeypatch.setenv(fused.KERNEL.switch, "operations")
    if case == "float64":
        images = images.double() / 255
    made(images, ViewPlan("noisy", (View(noise=0.5),)) if case == "noise" else None)
    assert stub.launches == 0


def test_neighbouring_views_of_one_side_are_one_launch(stub, pictures):
    images = pictures(4, 3, 48)
    views = made(images, plan("multi-crop", 48, 3))
    sides = [view.shape[-1] for view in views]
    assert len(set(sides)) == 2 and sides == sorted(sides, reverse=True)
    assert stub.launches == 2
    assert all(view.is_contiguous() and view.dtype == torch.float32 for view in views)
    assert [view.shape[0] for view in made(images[:0])] == [0, 0]  # a process without a share
    assert stub.launches == 2
