"""--json: one JSON object on stdout, whatever a verb returns, and everything else on stderr."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch

import nearfar
from nearfar.cli import main
from nearfar.messages import as_json, plain


@pytest.fixture(scope="module")
def run(images_file, tmp_path_factory):
    """A run made by the command line, and what that said on stdout and stderr."""
    folder, out, err = tmp_path_factory.mktemp("runs") / "halves", io.StringIO(), io.StringIO()
    words = ["--epochs", "1", "--batch-size", "16", "--held-out", "16", "--encoder", "small", "--precision", "32-true"]
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["pretrain", images_file, "--out", str(folder), *words, "--json"]) == 0
    return folder, out.getvalue(), err.getvalue()


def said(capsys, *words):
    """The exit code, the object on stdout, and stderr."""
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    return code, json.loads(out), err


def test_a_run_tells_what_it_came_to(run):
    folder, out, err = run
    told = json.loads(out)
    assert out.count("\n") == 1 and "first step done" in err
    made = nearfar.Run(folder)
    assert told["path"] == str(folder) and Path(told["report"]).is_file()
    assert told["verdict"] == {
        "healthy": made.verdict.healthy,
        "state": made.verdict.state,
        "words": made.verdict.words,
    }
    assert told["metrics"]["loss"] == [line["loss"] for line in made.metrics if "loss" in line][-1]
    assert told["health"]["images"] == 16 and told["results"] == {}
    assert told == json.loads(as_json(made))


def test_tables_paths_and_columns(run, capsys, tmp_path):
    out = str(run[0])
    code, table, err = said(capsys, "evaluate", out, "--protocol", "knn", "--no-baselines")
    assert code == 0 and table == nearfar.Run(run[0]).results and "trained" in err
    file = tmp_path / "features.csv"
    assert said(capsys, "embed", out, "--out", str(file))[:2] == (0, {"path": str(file)}) and file.is_file()
    code, columns, err = said(capsys, "search", out, "000000", "--k", "3")  # and no bare names beside it
    assert code == 0 and columns["rank"] == [1, 2, 3] and len(columns["name"]) == 3
    assert columns["distance"] == sorted(columns["distance"])
    assert said(capsys, "views")[1].keys() >= {"photographs", "microscope"}
    _, methods, err = said(capsys, "methods")
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
    code, told, err = said(capsys, *words)
    assert code == 2 and list(told) == ["error"] and err == f"nearfar: {told['error']}\n"


def test_what_nobody_foresaw_is_an_error_in_json_too(capsys, monkeypatch):
    def broken(*, console):
        print("by the way")
        raise KeyError("key")

    monkeypatch.setattr("nearfar.list_methods", broken)
    code, told, err = said(capsys, "methods")
    assert code == 1 and told["error"].startswith("KeyError") and err.startswith("by the way\n")


def test_a_process_of_its_own_writes_nothing_else_to_stdout():
    done = subprocess.run([sys.executable, "-m", "nearfar", "methods", "--json"], capture_output=True, check=True)
    assert json.loads(done.stdout).keys() >= {"simclr", "saclr"} and done.stdout.count(b"\n") == 1 and done.stderr


def test_what_a_library_in_c_writes_does_not_go_to_stdout(capfd, monkeypatch):
    """torch 2.8's gloo tells there how many processes are connected."""

    def noisy(*_: object, **__: object) -> dict[str, int]:
        os.write(1, b"[Gloo] Rank 0 is connected\n")
        return {"found": 1}

    monkeypatch.setattr("nearfar.cli._called", noisy)
    assert main(["methods", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"found": 1} and "[Gloo]" in err
    os.write(1, b"afterwards")
    assert capfd.readouterr().out == "afterwards"


def test_help_stays_text(capsys):
    assert main(["pretrain", "--help", "--json"]) == 0
    assert capsys.readouterr().out.startswith("Usage: nearfar pretrain [OPTIONS] [ARGS...]\n")


def test_every_kind_of_value_has_a_plain_form():
    values = {
        1: np.float32(0.5), "rows": np.arange(3), "tensor": torch.ones(1, 2), "path": Path("a/b"),
        "yes": np.bool_(True), "tuple": (1, None), "nothing": float("nan"), "most": float("inf"), "count": np.int64(7),
        "name": "caf\udce9",
    }  # fmt: skip
    told = json.loads(as_json(values))
    assert told == {
        "1": 0.5, "rows": [0, 1, 2], "tensor": [[1.0, 1.0]], "path": "a/b", "yes": True, "tuple": [1, None],
        "nothing": None, "most": None, "count": 7, "name": "caf\udce9",
    }  # fmt: skip
    assert type(plain(np.int64(7))) is int
    assert as_json(Path("a")) == '{"path": "a"}' and as_json("b") == '{"result": "b"}'
