"""The table of readouts in the documentation is that of its file."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def readout(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return pytest.importorskip("readout")


def test_the_documentation_has_the_table_of_the_file(readout):
    lines = (ROOT / "docs/results/readout.jsonl").read_text().splitlines()
    shown = [result for result in map(json.loads, lines) if result["readout"] in readout.SHOWN]
    assert readout.table(shown) in (ROOT / "docs/starting-weights.md").read_text()


def test_the_documentation_has_the_table_of_weights(readout):
    lines = (ROOT / "docs/results/readout-weights.jsonl").read_text().splitlines()
    table = readout.weights_table([json.loads(line) for line in lines])
    assert table in (ROOT / "docs/starting-weights.md").read_text()


def test_a_row_is_marked_where_it_is_more_than_a_point_below_the_best_that_costs_nothing(readout):
    same = dict(set="one", linear=0.5, one_label=0.5, five_labels=0.5, seed=0, on="held-out")
    lines = [
        {**same, "readout": "hog", "knn": 0.6},
        {**same, "readout": "trained", "knn": 0.589},
        {**same, "readout": "trained on a grid", "knn": 0.591},
    ]
    rows = readout.table(lines).splitlines()[2:]
    assert [("(-)" in row) for row in rows] == [False, True, False]
    twice = [*lines, {**lines[1], "knn": 0.593, "seed": 1}]  # the mean of two seeds is 0.591
    assert "(-)" not in readout.table(twice)
