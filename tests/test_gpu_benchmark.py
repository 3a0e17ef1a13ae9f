"""benchmarks/gpu.py, which `make gpu` runs, comes to its end on the stand-in and says what it ran
on.
"""

import importlib.util
import json
from pathlib import Path

import pytest

import tests.standin.device  # a device that is registered after a first backward pass fails
from nearfar.losses import SimCLR

FILE = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
spec = importlib.util.spec_from_file_location("gpu_benchmark", FILE)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


def test_it_runs_to_its_end_and_keeps_the_text_above_its_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "LOSSES", {"SimCLR": lambda images: SimCLR()})
    monkeypatch.setattr(
        benchmark.Model, "compile_networks", lambda model: None
    )  # torch has no compiler for it
    monkeypatch.setattr(benchmark, "TINY", benchmark.TINY._replace(cases=benchmark.TINY.cases[:1]))
    (tmp_path / "gpu.md").write_text(f"# Mine\n\n{benchmark.MARKER}\n\nold\n")
    benchmark.main(["--stand-in", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results" / "gpu.json").read_text())
    assert results["about"]["kind"] == "standin" and results["tests"] is None
    kinds = [(row["precision"], row["kind"]) for row in results["speed"]]
    plain = {
        (precision, kind)
        for precision in benchmark.PRECISIONS
        for kind in ("whole step", "bare encoder")
    }
    assert plain | {("bfloat16", "whole step, compiled")} <= set(kinds)
    assert all(row["rate"] > 0 for row in results["speed"] if "compiled" not in row["kind"])
    assert len(results["beside"]) == 4 and all(row["gpu"] > 0 for row in results["beside"])
    assert [row["what"] for row in results["beside"] if not row["cpu"]] == [
        "loss SimCLR and its gradient, batch 32"
    ]
    rows = results["pairs"]
    assert len(rows) == len(benchmark.KERNEL_LOSSES) * len(benchmark.WAYS)
    assert all(row["ms"] > row["floor"] > 0 for row in rows)
    assert all(("made by tiles" in row["why"]) == ("kernel" in row["way"]) for row in rows)
    page = (tmp_path / "gpu.md").read_text()
    assert page.startswith("# Mine\n") and "old" not in page
    assert "| SimCLR | 16 | tiles, float32 |" in page
    assert "no number here says anything about a GPU" in page


def test_what_the_time_does_not_allow_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "beside_the_cpu", lambda scale: [])
    monkeypatch.setattr(benchmark, "of_pairs", lambda scale: [])
    benchmark.main(["--stand-in", "--minutes", "1e-9", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results" / "gpu.json").read_text())
    assert {row["why"] for row in results["speed"]} == {"no time left"}
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
            why="",
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "beside_the_cpu", lambda scale: [])
    monkeypatch.setattr(benchmark, "of_pairs", lambda scale: [])
    monkeypatch.setattr(benchmark, "speeds", stopped)
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(["--stand-in", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "results" / "gpu.json").read_text())["speed"][0]["rate"] == 1234
    assert "| 1234 |" in (tmp_path / "gpu.md").read_text()


def test_the_documentation_does_not_claim_what_has_not_run():
    page = (FILE.parents[1] / "docs" / "gpu.md").read_text()
    real = (FILE.parents[1] / "docs" / "results" / "gpu.json").is_file()
    assert real or "has yet run on a real GPU" in page


def test_a_row_that_fails_is_named_and_the_others_are_measured(monkeypatch):
    def broken():
        raise RuntimeError("no memory\nleft")

    monkeypatch.setattr(benchmark, "KERNEL_LOSSES", {"A": (broken, 3), "SimCLR": (SimCLR, 3)})
    with tests.standin.device.available():
        rows = list(benchmark.of_pairs(benchmark.TINY))
    assert [row["why"] for row in rows[:3]] == ["no memory"] * 3
    assert [row["ms"] is not None for row in rows] == [False] * 3 + [True] * 3
