"""--json: one JSON object on stdout, whatever a verb returns, and everything else on stderr."""

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path

import pytest

import nearfar
from nearfar import cli
from nearfar.cli import main
from nearfar.messages import as_json

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture(scope="module")
def run(images_file, tmp_path_factory):
    """A run made by the command line, and what that said on stdout and stderr."""
    folder, out, err = tmp_path_factory.mktemp("runs") / "halves", io.StringIO(), io.StringIO()
    words = [
        "--epochs",
        "1",
        "--batch-size",
        "16",
        "--held-out",
        "16",
        "--encoder",
        "small",
        "--precision",
        "32-true",
    ]
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["pretrain", images_file, "--out", str(folder), *words, "--json"]) == 0
    return folder, out.getvalue(), err.getvalue()


def run_json(capsys, *words):
    """The exit code, the object on stdout, and stderr."""
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    return code, json.loads(out), err


def test_a_run_tells_what_it_came_to(run):
    folder, out, err = run
    printed = json.loads(out)
    assert out.count("\n") == 1 and "first step done" in err
    made = nearfar.Run(folder)
    assert printed["path"] == str(folder) and Path(printed["report"]).is_file()
    assert printed["verdict"] == asdict(made.verdict)
    assert (
        printed["metrics"]["loss"] == [line["loss"] for line in made.metrics if "loss" in line][-1]
    )
    assert printed["health"]["images"] == 16 and printed["results"] == []
    [read] = printed.pop("read")
    assert read["images"] == 80 and read["left_out"] == {}
    assert printed == json.loads(as_json(made))


def test_tables_and_paths(run, capsys, tmp_path):
    out = str(run[0])
    code, table, err = run_json(capsys, "evaluate", out, "--protocol", "knn", "--no-baselines")
    assert [entry["images"] for entry in table.pop("read")] == [80]
    [measured] = nearfar.Run(run[0]).results
    assert code == 0 and table == measured.summary() and "trained" in err
    assert table["on"]["data"].endswith("halves.npz")
    file = tmp_path / "features.csv"
    code, written, _ = run_json(capsys, "embed", out, "--out", str(file))
    assert code == 0 and written["path"] == str(file) and file.is_file()
    assert run_json(capsys, "views")[1].keys() >= {"photographs", "microscope"}
    _, methods, err = run_json(capsys, "methods")
    assert methods["simclr"]["defaults"]["projector"] == [512, 128] and "Barlow" in err


@pytest.mark.parametrize(
    "words",
    [
        ["pretrian"],
        ["pretrain", "a", "--epochs", "many"],
        ["pretrain", "no/such/folder"],
        ["embed", "no/such/run", "--out", "x.csv"],
    ],
)
def test_a_mistake_is_an_error_in_json_too(words, capsys):
    code, printed, err = run_json(capsys, *words)
    assert code == 2 and list(printed) == ["error"] and err == f"nearfar: {printed['error']}\n"


def test_what_nobody_foresaw_is_an_error_in_json_too(capsys, monkeypatch):
    def broken():
        print("by the way")
        raise KeyError("key")

    monkeypatch.setattr(nearfar, "list_methods", broken)
    code, printed, err = run_json(capsys, "methods")
    assert code == 1 and printed["error"].startswith("KeyError") and err.startswith("by the way\n")


def test_what_a_library_in_c_writes_does_not_go_to_stdout(capfd, monkeypatch):
    """torch 2.8's gloo tells there how many processes are connected."""

    def noisy(*_: object, **__: object) -> dict[str, int]:
        os.write(1, b"[Gloo] Rank 0 is connected\n")
        return {"found": 1}

    monkeypatch.setattr(cli, "_called", noisy)
    assert main(["methods", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"found": 1} and "[Gloo]" in err
    os.write(1, b"afterwards")
    assert capfd.readouterr().out == "afterwards"
