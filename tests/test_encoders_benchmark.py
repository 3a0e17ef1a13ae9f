"""benchmarks/encoders.py: choices never see test images, a rerun measures what is missing, failures
are lines, and its tables say what the lines say.
"""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearfar.data import open_images
from nearfar.training import trial

pytestmark = pytest.mark.usefixtures("known_speed")

BENCHMARKS, DOCS = (Path(__file__).parents[1] / name for name in ("benchmarks", "docs"))


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("encoders")


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("encoders_report")


def line(contender, knn, **others):
    return {
        "set": "digits",
        "contender": contender,
        "seed": 0,
        "on": "test",
        "epochs": 0,
        "knn": knn,
        "linear": 0.5,
        "one_label": 0.25,
        "five_labels": 0.4,
    } | others


def test_a_run_is_a_line_and_is_not_measured_twice(benchmark, tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    words = ["no-data", "--sets", "digits", "--out", str(out), "--contenders", "raw pixels"]
    benchmark.main([*words, "--on", "test"])
    [row] = [json.loads(text) for text in out.read_text().splitlines()]
    assert (row["set"], row["contender"], row["seed"], row["on"]) == (
        "digits",
        "raw pixels",
        0,
        "test",
    )
    assert (row["images"], row["tested"], row["epochs"]) == (1437, 360, 0) and row["cpu"]
    train, test = (open_images("digits", split=split).labels for split in ("train", "test"))
    assert row["knn"] > 0.95 and row["linear"] > 0.9
    assert row["largest"] == np.mean(test == np.bincount(train).argmax())
    benchmark.main([*words, "--on", "test"])
    assert len(out.read_text().splitlines()) == 1
    benchmark.main([*words, "--on", "held-out"])
    rows = [json.loads(text) for text in out.read_text().splitlines()]
    assert [row["on"] for row in rows] == ["test", "held-out"]
    assert (rows[1]["images"], rows[1]["tested"]) == (1149, 288)
    capsys.readouterr()
    benchmark.main([str(out)])
    assert "## digits, held-out images" in capsys.readouterr().out


@pytest.mark.slow
def test_a_trained_contender_has_its_epochs_and_its_encoder_in_the_line(
    benchmark, tmp_path, monkeypatch
):
    small = replace(
        benchmark.SETS["digits"],
        load=lambda data, split: open_images("digits", split=split).subset(range(120)),
    )
    monkeypatch.setitem(benchmark.SETS, "digits", small)
    monkeypatch.setattr(trial, "training_speed", lambda *given, **named: 200.0)
    out = tmp_path / "lines.jsonl"
    words = ["no-data", "--sets", "digits", "--out", str(out), "--on", "test"]
    benchmark.main([*words, "--contenders", "pretrain 0.1 minutes", "histogram"])
    trained, untrained = (json.loads(text) for text in out.read_text().splitlines())
    assert (trained["contender"], trained["images"]) == ("pretrain 0.1 minutes", 120)
    assert trained["epochs"] > 0 == untrained["epochs"] and trained["encoder"]
    assert trained["knn"] > untrained["knn"]
    other = [*words, "--contenders", "pretrain 0.1 minutes", "--seeds", "1"]
    benchmark.main([*other, "--as-long-as-seed", "0", "--no-averages"])
    again = json.loads(out.read_text().splitlines()[-1])
    same = ("encoder", "epochs", "images", "largest")
    assert [again[key] for key in same] == [trained[key] for key in same]
    assert "flips_knn" in trained and "flips_knn" not in again
    assert (again["seed"], again["as_long_as_seed"]) == (1, 0) and again["knn"] != trained["knn"]


def test_a_seed_that_was_not_measured_gives_no_length(benchmark, tmp_path):
    words = ["no-data", "--sets", "digits", "--out", str(tmp_path / "lines.jsonl"), "--seeds", "1"]
    with pytest.raises(SystemExit, match="digits, pretrain 1 minute, 0, held-out"):
        benchmark.main([*words, "--contenders", "pretrain 1 minute", "--as-long-as-seed", "0"])


def test_a_failure_is_a_line_and_the_others_go_on(benchmark, tmp_path, monkeypatch, capsys):
    def fails(task):
        raise RuntimeError("no memory for it")

    monkeypatch.setitem(benchmark.UNTRAINED, "hog", fails)
    out = tmp_path / "lines.jsonl"
    words = ["no-data", "--sets", "flowers", "digits", "--out", str(out)]
    for _ in range(2):
        benchmark.main([*words, "--contenders", "hog", "histogram"])
    rows = [json.loads(text) for text in out.read_text().splitlines()]
    assert [row["contender"] for row in rows] == ["hog", "histogram"]
    assert rows[0]["error"] == "RuntimeError: no memory for it" and "knn" not in rows[0]
    assert "flowers left out: " in capsys.readouterr().err
    benchmark.main([str(out)])
    assert "| hog, seed 0 | 0 | RuntimeError: no memory for it |" in capsys.readouterr().out


def test_a_run_that_was_stopped_is_no_line(benchmark, tmp_path, monkeypatch):
    def stopped(task):
        raise benchmark.nearfar.TrainingStopped("stopped")

    monkeypatch.setitem(benchmark.UNTRAINED, "hog", stopped)
    out = tmp_path / "lines.jsonl"
    with pytest.raises(benchmark.nearfar.TrainingStopped):
        benchmark.main(["no-data", "--sets", "digits", "--out", str(out), "--contenders", "hog"])
    assert not out.exists()


def test_a_misspelt_contender_ends_in_one_line_before_anything_is_measured(benchmark, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["no-data", "--contenders", "histogramm"])
    assert "no 'histogramm'; choose among raw" in capsys.readouterr().err


def test_the_default_of_the_product_is_given_minutes_and_nothing_else(benchmark, monkeypatch):
    options = {}
    monkeypatch.setattr(
        benchmark.nearfar, "pretrain", lambda *images, **given: options.update(given)
    )
    task = benchmark.Task(["images"], benchmark.SETS["digits"], 3, "nearfar")
    benchmark.train("pretrain 2.5 minutes", task, "folder")
    assert options == {"minutes": 2.5, "seed": 3, "out": "folder"}
    options.clear()
    benchmark.train("pretrain 2.5 minutes", replace(task, length={"epochs": 7}), "folder")
    assert options == {"epochs": 7, "seed": 3, "out": "folder"}
    options.clear()
    benchmark.train("pretrain 10 minutes, trained net 0.7", task, "folder")
    assert options == {"minutes": 10.0, "trained_weight": 0.7, "seed": 3, "out": "folder"}


def test_the_default_is_marked_where_the_best_baseline_leads_by_more_than_a_point(report):
    lines = [
        line("pretrain 1 minute", 0.60, seed=0),
        line("pretrain 1 minute", 0.70, seed=1, linear=0.485),
        line("hog", 0.66, knn_balanced=0.6),
        line("raw pixels", 0.64, linear=0.4, one_label=0.2, five_labels=0.3),
        line("two spaces", 0.99),  # no baseline
        line("at once", 0.9, error="RuntimeError: no"),
        line("hog", 0.9, set="bees"),  # without the default
    ]
    [_, _, row, count] = report.against(lines, "pretrain 1 minute").splitlines()
    assert count.endswith("| 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 0 of 0 | 0 of 0 |")
    assert row == (
        "| digits | test | 65.0 / 66.0 hog | 49.2 / 50.0 hog | 25.0 / 25.0 hog "
        "| 40.0 / 40.0 hog |  |  |"
    )
    lines[2]["knn"] = 0.6601
    lines.append(line("pretrain 1 minute", 0, seed=2, error="RuntimeError: no memory"))
    table = report.against(lines, "pretrain 1 minute")
    assert "| 65.0 / 66.0 hog **loses** |" in table and " or above** | | 0 of 1 | 1 of 1 |" in table
    assert table.endswith(
        "pretrain 1 minute failed on digits (test, seed 2): RuntimeError: no memory"
    )


def test_the_table_of_baselines_has_a_number_for_what_was_measured(report):
    lines = [
        line("hog", 0.6, images=80, tested=20, largest=0.5),
        line("hog", 0.7, seed=1, images=80, tested=20, largest=0.5),
        line("raw pixels", 0.6, images=80, tested=20, largest=0.5, on="held-out"),
        line("at once", 0, images=80, tested=20, error="RuntimeError: no"),
    ]
    [_, _, row] = report.baselines(lines, "test").splitlines()
    assert row == "| digits | 80 | 20 | 50.0 |  |  | 65.0 / 40.0 |  |  |"


def test_the_tables_of_the_page_are_those_of_the_file(report):
    lines = report.read(DOCS / "results/kinds.jsonl")
    page = (DOCS / "kinds.md").read_text()
    assert f"\n{report.baselines(lines, 'held-out')}\n" in page
    assert f"\n{report.against(lines, 'at once')}\n" in page
    tested = report.read(DOCS / "results/kinds-test.jsonl")
    assert f"\n{report.against(tested, 'pretrain 10 minutes')}\n" in page
    assert report.measured(lines) == lines
    assert {row["set"] for row in lines} <= set(importlib.import_module("kinds").SETS)


def test_lines_from_before_the_choice_of_images_were_of_held_out_ones(report, tmp_path):
    (tmp_path / "old.jsonl").write_text('{"set": "digits"}\n{"set": "digits", "on": "test"}\n')
    assert [row["on"] for row in report.read(tmp_path / "old.jsonl")] == ["held-out", "test"]
    assert report.read(tmp_path / "none.jsonl") == []


def test_held_out_images_are_training_images_and_test_images_are_others(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kinds = importlib.import_module("kinds")
    names = {
        on: [set(images.names) for images in kinds.parts(kinds.SETS["digits"], Path("no-data"), on)]
        for on in kinds.ON
    }
    (chosen, held), (train, test) = names["held-out"], names["test"]
    assert chosen | held == train and not chosen & held and not train & test
    assert len(train | test) == 1797
    labels = np.repeat(np.arange(3), (50, 25, 10))
    images = kinds._images(kinds.torch.zeros(85, 1, 4, 4, dtype=kinds.torch.uint8), labels)
    parts = [kinds.a_fifth(images, split) for split in ("train", "test")]
    assert [np.bincount(part.labels).tolist() for part in parts] == [[40, 20, 8], [10, 5, 2]]
    assert not set(parts[0].names) & set(parts[1].names)
    assert parts[0].names == kinds.a_fifth(images, "train").names
