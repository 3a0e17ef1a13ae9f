"""Rows of a table of results that are run again."""

import json
import sys

import pytest

from tools import compare

ACCURACIES = ("knn", "linear", "one_label", "five_labels")


def row(name, value):
    return {"name": name, "seconds_per_epoch": 1.0, "peak_mib": 1.0} | {key: [value, None] for key in ACCURACIES}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call the command with every run replaced by an accuracy of 0.9; return the table that it leaves."""
    ran = []
    (tmp_path / "cifar10-20.json").write_text(json.dumps([row(name, 0.5) for name in ("SACLR", "SimCLR", "SigCLR")]))

    def run_one(data, folder, *more):
        folder.mkdir(parents=True)
        (folder / "results.json").write_text('{"trained": {}}')
        ran.append(folder.name)

    monkeypatch.setattr(compare, "run_one", run_one)
    monkeypatch.setattr(compare, "summary", lambda *_: [row(name, 0.9) for name in ("raw pixels", "SACLR", "SimCLR")])

    def run(*options):
        arguments = ["compare", "cifar10-20", "--out", f"{tmp_path}/runs", "--docs", str(tmp_path), "--jobs", "1"]
        monkeypatch.setattr(sys, "argv", [*arguments, *options])
        compare.main()
        table = json.loads((tmp_path / "cifar10-20.json").read_text())
        return ran, {line["name"]: line["knn"][0] for line in table}, (tmp_path / "cifar10-20.md").read_text()

    return run


def test_only_the_rows_asked_for_are_run_and_replaced(call):
    ran, table, text = call("--only", "SimCLR")
    assert ran == ["simclr-0"]
    assert table == {"SACLR": 0.5, "SimCLR": 0.9, "SigCLR": 0.5}
    assert "| SimCLR | 90.0 |" in text and "| SACLR | 50.0 |" in text


def test_a_row_that_is_not_in_the_table(call, capsys):
    with pytest.raises(SystemExit) as stopped:
        call("--only", "SimCRL")
    assert stopped.value.code == 2
    assert "cifar10-20 has no row SimCRL" in capsys.readouterr().err
