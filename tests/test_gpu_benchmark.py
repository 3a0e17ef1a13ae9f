"""benchmarks/gpu.py, which `make gpu` runs, comes to its end on the stand-in and says what it ran
on.
"""

import importlib.util
import json
import time
from pathlib import Path

import pytest

import tests.standin.device  # a device that is registered after a first backward pass fails
from nearfar.losses import SimCLR

FILE = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
spec = importlib.util.spec_from_file_location("gpu_benchmark", FILE)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


@pytest.fixture
def small(monkeypatch):
    """One case, one loss, and no compiler, which torch does not have for the stand-in."""
    monkeypatch.setattr(benchmark, "LOSSES", {"SimCLR": lambda images: SimCLR()})
    monkeypatch.setattr(benchmark.Model, "compile_networks", lambda model: None)
    monkeypatch.setattr(benchmark, "TINY", benchmark.TINY._replace(cases=benchmark.TINY.cases[:1]))
    kinds = {kind: benchmark.HALF if "compiled" not in kind else () for kind in benchmark.KINDS} | {
        "whole step": ("float32", "bfloat16")
    }
    monkeypatch.setattr(benchmark, "KINDS", kinds)


@pytest.mark.slow
@pytest.mark.slow
def test_it_runs_to_its_end_and_keeps_the_text_above_its_tables(tmp_path, small):
    (tmp_path / "gpu.md").write_text(f"# Mine\n\n{benchmark.MARKER}\n\nold\n")
    benchmark.main(["--stand-in", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results" / "gpu.json").read_text())
    assert results["about"]["kind"] == "standin" and results["tests"] is None
    speed = {(row["precision"], row["kind"]): row for row in results["speed"]}
    assert set(speed) >= {
        *(("bfloat16", kind) for kind in benchmark.KINDS if kind not in MISSING),
        ("float32", "whole step"),
    }
    for row in speed.values():
        assert row["why"] == "" and row["rate"] > 0
        assert row["device_ms"] > row["floor_ms"] > 0
    bare = speed["bfloat16", "bare encoder"]
    assert bare["ratio"] == 1 and speed["float32", "whole step"]["ratio"] is None
    whole = speed["bfloat16", "whole step"]
    assert whole["ratio"] == pytest.approx(whole["rate"] / bare["rate"])

    assert len(results["beside"]) == 4 and all(row["gpu"] > 0 for row in results["beside"])
    assert [row["what"] for row in results["beside"] if not row["cpu"]] == [
        "loss SimCLR and its gradient, batch 32"
    ]
    steps = {(row["optimizer"], row["captured"]) for row in results["optimizers"]}
    assert steps == {(name, way) for name in benchmark.OPTIMIZERS for way in (True, False)}
    rows = results["pairs"]
    assert len(rows) == len(benchmark.KERNEL_LOSSES) * len(benchmark.WAYS)
    assert all(("made by tiles" in row["why"]) == ("kernel" in row["way"]) for row in rows)
    for row in [*rows, *results["optimizers"]]:
        assert row["ms"] >= row["device_ms"] > 0 and row.get("floor", row.get("floor_ms")) > 0
    page = (tmp_path / "gpu.md").read_text()
    assert page.startswith("# Mine\n") and "old" not in page
    assert "| SimCLR | 16 | tiles, float32 |" in page
    assert "no number here says anything about a GPU" in page


MISSING = ("lightly", "whole step, compiled")
"""Kinds that need a package or a compiler."""
PARTS = ("pairs", "beside", "optimizers", "speed")


def test_what_the_time_does_not_allow_is_named(tmp_path):
    benchmark.main(["--stand-in", "--minutes", "1e-9", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results" / "gpu.json").read_text())
    assert all({row["why"] for row in results[part]} == {"no time left"} for part in PARTS)
    assert "no time left" in (tmp_path / "gpu.md").read_text()


def test_what_was_measured_is_there_where_it_is_stopped(tmp_path, monkeypatch):
    def stopped(scale, deadline):
        yield dict(
            encoder="tiny",
            size=16,
            batch=8,
            precision="float32",
            kind="whole step",
            rate=1234.0,
            device_ms=6.5,
            floor_ms=0.5,
            ratio=None,
            why="",
        )
        raise KeyboardInterrupt

    for part in ("of_pairs", "beside_the_cpu", "of_optimizers"):
        monkeypatch.setattr(benchmark, part, lambda scale, deadline: [])
    monkeypatch.setattr(benchmark, "speeds", stopped)
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(["--stand-in", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "results" / "gpu.json").read_text())["speed"][0]["rate"] == 1234
    assert "| 1234 | 6.50 | 0.500 | - |" in (tmp_path / "gpu.md").read_text()


def test_the_floor_counts_the_products_of_forward_and_backward():
    """ResNet-18 has 1.814e9 products forward at 224 px (He et al. 2016: 1.8e9) and twice as many
    backward, but for the images' gradient in the first layer, 0.118e9; two operations each.
    """
    wanted = 2 * (3 * 1.814e9 - 0.118e9)
    assert benchmark.operations("resnet18", 224) == pytest.approx(wanted, rel=0.01)


def test_the_documentation_does_not_claim_what_has_not_run():
    page = (FILE.parents[1] / "docs" / "gpu.md").read_text()
    real = (FILE.parents[1] / "docs" / "results" / "gpu.json").is_file()
    assert real or "has yet run on a real GPU" in page


def test_a_row_that_fails_is_named_and_the_others_are_measured(monkeypatch):
    def broken():
        raise RuntimeError("no memory\nleft")

    monkeypatch.setattr(benchmark, "KERNEL_LOSSES", {"A": (broken, 3), "SimCLR": (SimCLR, 3)})
    with tests.standin.device.available():
        rows = list(benchmark.of_pairs(benchmark.TINY, time.perf_counter() + 60))
    assert [row["why"] for row in rows[:3]] == ["no memory"] * 3
    assert [row["ms"] is not None for row in rows] == [False] * 3 + [True] * 3


def test_a_row_that_hangs_is_given_up():
    row = {"why": ""}
    with benchmark.recorded(row, time.perf_counter() + 1.0):
        time.sleep(60)
    assert "took longer than 1 s" in row["why"]


def test_tests_that_hang_are_stopped(monkeypatch, tmp_path):
    hanging = tmp_path / "test_hanging.py"
    hanging.write_text("import time\ntime.sleep(60)\n")
    assert "were stopped" in benchmark.tested([str(hanging)], 2.0)["error"]
