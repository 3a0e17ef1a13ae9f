"""`nearfar reproduce`: what it lists, and a table from its runs to what is written, without running
anything twice.
"""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import nearfar
import nearfar_papers
from nearfar.cli import main
from nearfar.device import machine
from nearfar.evaluation.results import MeasuredOn, Measurement
from nearfar.training.run_folder import lock_run_folder
from nearfar_papers import runs
from nearfar_papers.paper import read_paper
from nearfar_papers.runs import (
    add_tasks,
    folder_of,
    found_so_far,
    packed,
    right_in,
    state_of,
    unpacked,
)
from tests.papers.conftest import paper

pytestmark = pytest.mark.usefixtures("known_speed")

OWN = """
title: a paper
data: {photos: "a folder of photographs"}
tables:
  table-1:
    title: accuracy
    source: Table 1
    unit: "%"
    protocol: [knn]
    metric: knn
    common: {epochs: 1, limit: 128, precision: 32-true}
    columns:
      digits: {data: digits}
      photos: {data: photos}
    rows:
      simclr: {title: SimCLR, run: {method: simclr}, paper: {digits: 98.5, photos: 70}}
      theirs: {title: Theirs, paper: {digits: [97, 0.5]}, note: from elsewhere}
      others: {title: Others, paper: {digits: 96}, note: from elsewhere}
  table-2:
    title: numbers kept
    source: Table 2
    measure: variables
    better: lower
    columns: {n: {title: N = 1000, run: {images: 1000}}}
    rows:
      matrix: {title: matrix, run: {method: saclr, scale: matrix}, paper: {n: 1}}
      row: {title: row, run: {method: saclr, scale: row}, paper: {n: 1000}}
    claims: [{text: a matrix needs fewer, better: [matrix, row]}]
  table-3:
    title: the runs of table 1 by another protocol
    source: Table 3
    unit: "%"
    protocol: [linear]
    metric: linear
    common: {epochs: 1, limit: 128, precision: 32-true}
    columns: {digits: {data: digits}}
    rows: {simclr: {title: SimCLR, run: {method: simclr}}}
"""


def test_what_there_is_is_listed_without_running_anything(tmp_path, monkeypatch):
    committed = Path("docs/papers").resolve()
    listed = nearfar_papers.reproduce(out=str(tmp_path / "out"))
    assert {"saclr/table-7", "saclr/figure-2", "sigclr/table-4"} <= set(listed)
    assert listed["saclr/table-3"]["data"] == ["cifar10", "cifar100"]
    assert listed["saclr/table-2"]["state"] == "not run"
    held = [
        claim["holds"]
        for claim in json.loads((committed / "saclr/table-7.json").read_text())["claims"]
    ]
    assert (
        listed["saclr/table-7"]["state"] == f"run (claims: yes {held.count('yes')}), in docs/papers"
    )
    for path in committed.glob("*/*.json"):
        words = "small scale" if path.stem.endswith(".small") else "run"
        assert words in listed[f"{path.parent.name}/{path.stem.removesuffix('.small')}"]["state"]
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(runs, "COMMITTED", tmp_path / "nowhere")  # an installed wheel
    assert {state_of(table, tmp_path) for table in paper("saclr").tables.values()} == {"not run"}


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """A folder in which every table of own.yaml was run, and what that returned."""
    place = tmp_path_factory.mktemp("papers")
    (place / "own.yaml").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        whole = nearfar_papers.reproduce("own.yaml", jobs=2)
    return place, whole


@pytest.fixture
def again(reproduced, tmp_path, monkeypatch):
    """A copy of that folder to work in, where no run may be made; and what was returned."""
    shutil.copytree(reproduced[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "run_tasks", lambda *args: pytest.fail("it was run already"))
    return reproduced[1]


@pytest.mark.slow
def test_a_table_is_written_with_paper_and_ours(again):
    first, second = again["own/table-1"], again["own/table-2"]
    (number,) = first["cells"]["simclr/digits"]["seeds"].values()
    run = next(Path("reproduced/runs").glob("simclr-digits-*-0"))
    assert number["value"] == 100 * nearfar.Run(run).results[0]["trained"]["knn"]
    assert number["commands"][0].startswith(
        "nearfar pretrain digits --keep-colour 0 --grid 1 --beside none --epochs 1 --limit 128"
    )
    assert first["cells"]["simclr/photos"]["seeds"] == {}
    (linear,) = again["own/table-3"]["cells"]["simclr/digits"]["seeds"].values()
    assert (
        linear["commands"] == number["commands"]
        and "--protocol knn linear" in number["commands"][1]
    )
    words = Path("reproduced/own/table-1.md").read_text()
    assert (
        f"| SimCLR | 98.50 | {number['value']:.2f} | {number['value'] - 98.5:+.2f} | 70 |" in words
    )
    assert "| Theirs | 97.00 ± 0.50 |" in words and "data/photos: a folder of photographs" in words
    assert (
        "|  | digits, ours |" in Path("reproduced/own/table-3.md").read_text()
    )  # a paper without numbers
    assert "\n\nTheirs; Others: from elsewhere." in words
    assert [cell["seeds"]["0"]["value"] for cell in second["cells"].values()] == [1, 1000]
    assert [claim["holds"] for claim in second["claims"]] == ["yes"]
    tables = read_paper("own.yaml").tables
    assert state_of(tables["table-1"], Path("reproduced")) == "run, begun"
    assert state_of(tables["table-2"], Path("reproduced")) == "run (claims: yes 1)"


@pytest.mark.slow
def test_nothing_is_run_twice_and_the_written_table_keeps_the_numbers(again, monkeypatch):
    assert (
        nearfar_papers.reproduce("own.yaml/table-2")["own/table-2"]["cells"]
        == again["own/table-2"]["cells"]
    )
    for path in Path("reproduced/runs").rglob("measured.json"):
        path.unlink()
    monkeypatch.setattr(runs, "machine", lambda: "another machine")
    assert (
        nearfar_papers.reproduce("own.yaml/table-2")["own/table-2"]["cells"]
        == again["own/table-2"]["cells"]
    )
    assert (
        f"on {machine()}." in Path("reproduced/own/table-2.md").read_text()
    )  # the one that measured
    Path("mine.yaml").write_text(OWN)  # another table with the same run
    cells = nearfar_papers.reproduce("mine.yaml/table-3")["mine/table-3"]["cells"]
    assert cells == again["own/table-3"]["cells"]


@pytest.mark.slow
def test_a_number_says_what_it_was_made_with_and_which_test_images_were_right(again):
    (number,) = again["own/table-3"]["cells"]["simclr/digits"]["seeds"].values()
    right = unpacked(number["right"])
    assert 100 * right.mean() == pytest.approx(number["value"]) and len(right) == 360
    assert (
        number["versions"]["torch"] == importlib.metadata.version("torch")
        and number["threads"] >= 1
    )
    assert set(number) >= {"commit", "date", "hardware"}


TRUE = np.array([0, 1, 2, 1])


def huge(path):
    """An array whose header claims 80 TB, of which nothing is there."""
    with zipfile.ZipFile(path, "w") as file:
        header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (10000000000000,)}"
        file.writestr(
            "truth.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        )


DAMAGED = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"[1, 2]"),
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "one array": lambda path: np.save(path.open("wb"), TRUE),
    "no truth": lambda path: np.savez(path, knn=TRUE),
    "objects": lambda path: np.savez(path, truth=TRUE, knn=np.array([{}] * 4, object)),
    "too few": lambda path: np.savez(path, truth=TRUE, knn=TRUE[:3]),
    "one": lambda path: np.savez(path, truth=TRUE, knn=np.array(1)),
    "cubes": lambda path: np.savez(path, truth=TRUE, knn=TRUE[None, None]),
    "texts": lambda path: np.savez(path, truth=TRUE, knn=TRUE.astype(str)),
    "huge": huge,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_predictions_are_one_line(tmp_path, damage):
    path = tmp_path / "predictions.npz"
    np.savez(path, truth=TRUE, knn=np.array([0, 1, 1, 1]), few_1=np.array([TRUE, TRUE[::-1]]))
    right = right_in(path)
    assert right["knn"].tolist() == [True, True, False, True]
    assert right["few_1"].tolist() == [[True] * 4, [False, False, False, False]]
    path.unlink()
    DAMAGED[damage](path)
    with pytest.raises(
        ValueError, match=r"predictions\.npz is damaged; evaluate again: "
    ) as caught:
        right_in(path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_tables_can_be_judged_anew_without_running_anything(again):
    for name in ("table-1", "table-3"):
        for path in Path("reproduced/own").glob(f"{name}.*"):
            path.unlink()
    Path("own.yaml").write_text(OWN.replace("better: [matrix, row]", "better: [row, matrix]"))
    judged = nearfar_papers.reproduce("own.yaml", run=False)
    assert list(judged) == ["own/table-2"] and judged["own/table-2"]["claims"][0]["holds"] == "no"
    words = Path("reproduced/claims.md").read_text()
    assert (
        "| a paper | 1 | 0 | 1 | 0 | 0 |" in words and "[Table 2](own/table-2.md) | **no**" in words
    )
    assert "0 claims were tested" in words  # counts have no interval


def test_seeds_begin_where_the_table_says_and_rows_can_be_chosen(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN.replace("measure: variables", "measure: variables\n    first_seed: 100"))
    table, tasks = read_paper(path).tables["table-2"], {}
    assert add_tasks(tasks, table, tmp_path, tmp_path, {}, only=["row"], seeds=2) == []
    assert [(task.seed, [cell.row for cell in task.cells]) for task in tasks.values()] == [
        (100, ["row"]),
        (101, ["row"]),
    ]


WAITING = """
  trials:
    title: trials
    source: none
    protocol: [knn]
    metric: knn
    columns: {photos: {data: photos}}
    rows: {simclr: {run: {method: simclr}, trials: [{lr: 0.1}, {lr: 0.2}]}}
  chosen:
    title: chosen
    source: none
    chosen: trials
    protocol: [knn]
    metric: knn
    columns: {photos: {data: photos}}
    rows: {simclr: {run: {method: simclr}}}
  again:
    title: chosen again
    source: none
    chosen: trials
    protocol: [knn]
    metric: knn
    columns: {photos: {data: photos}}
    rows: {simclr: {run: {method: simclr, epochs: 2}}}
"""


def test_a_table_that_waits_for_data_leaves_the_others_of_its_paper(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    before, after = (OWN.index(f"  table-{number}:") for number in (1, 3))
    second = OWN.index("  table-2:")
    Path("own.yaml").write_text(OWN[:before] + OWN[second:after] + WAITING)
    monkeypatch.setattr(runs._Commands, "run", lambda *_: {"result": 7})
    tables = nearfar_papers.reproduce("own.yaml", out="out", jobs=1)
    assert set(tables) == {"own/table-2", "own/trials"}
    assert tables["own/table-2"]["cells"]["matrix/n"]["seeds"]["0"]["value"] == 7
    assert "own/chosen waits for trials" in caplog.text
    with pytest.raises(ValueError, match="waits for trials"):
        nearfar_papers.reproduce("own.yaml/chosen", out="out", jobs=1)


def number_of(value, *commands):
    return {"value": value, "seconds": 1.0, "commands": list(commands), "versions": {}}


def test_the_seeds_that_chose_settings_are_no_fresh_ones(tmp_path):
    """Trials may read the same number of the same runs."""
    path = tmp_path / "own.yaml"
    path.write_text(OWN.replace("measure: variables", "measure: variables\n    first_seed: 100"))
    table = read_paper(path).tables["table-2"]
    known = {
        (cell.key, cell.reading): {str(seed): number_of(1.0) for seed in (0, 1, 99, 100, 101)}
        for cell in table.cells()
    }
    cells = found_so_far(table, tmp_path, known)
    assert {seed for cell in cells.values() for seed in cell["seeds"]} == {"100", "101"}


def test_a_copy_of_a_run_folder_is_no_seed(tmp_path):
    """It became one, and the table that was written with it was refused as damaged."""
    (tmp_path / "own.yaml").write_text(OWN)
    table = read_paper(tmp_path / "own.yaml").tables["table-2"]
    cell = table.cells()[0]
    for seed in ("0", "0 (copy)", "0-old", "0.bak"):
        folder = folder_of(cell, seed, tmp_path)
        folder.mkdir(parents=True)
        (folder / "measured.json").write_text(json.dumps({cell.reading: number_of(1.0)}))
    assert list(found_so_far(table, tmp_path)[cell.place]["seeds"]) == ["0"]


def test_files_of_others_beside_the_tables_are_left_alone(tmp_path, monkeypatch):
    """Such as the results of a run, which a message told to remove."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN)
    Path("runs/photos").mkdir(parents=True)
    Path("runs/photos/results.json").write_text('{"measurements": []}')
    monkeypatch.setattr(runs._Commands, "run", lambda *_: {"result": 7})
    nearfar_papers.reproduce("own.yaml/table-2", out="runs", jobs=1)
    assert Path("runs/own/table-2.md").is_file()
    assert Path("runs/photos/results.json").read_text() == '{"measurements": []}'


def test_numbers_of_other_data_of_the_same_name_are_said(tmp_path, caplog):
    (tmp_path / "own.yaml").write_text(OWN)
    table = read_paper(tmp_path / "own.yaml").tables["table-1"]
    for folder in ("here", "there"):
        (tmp_path / folder / "photos").mkdir(parents=True)
    source = tmp_path / "here/photos"
    known = {
        (cell.key, cell.reading): {"0": number_of(1.0, f"nearfar pretrain {source} --epochs 1")}
        for cell in table.cells()
        if cell.column == "photos"
    }
    for folder, lines in (("here", 0), ("there", 1)):
        tasks: dict = {}
        add_tasks(tasks, table, tmp_path / folder, tmp_path, known, only=["simclr"])
        assert not [task for task in tasks.values() if "there" in str(task.source)]
        assert len([line for line in caplog.messages if str(source) in line]) == lines


def test_a_number_in_another_unit_is_not_taken_for_that_of_the_table(tmp_path):
    tables = {}
    for unit in ("MiB", "GB"):
        path = tmp_path / f"{unit.lower()}.yaml"
        path.write_text(
            OWN.replace("measure: variables", f"measure: loss-memory\n    unit: {unit}")
        )
        tables[unit] = read_paper(path).tables["table-2"]
    known = {
        (cell.key, cell.reading): {"0": {"value": 7.0, "versions": {}}}
        for cell in tables["MiB"].cells()
    }
    lacking: dict[str, dict] = {unit: {} for unit in tables}
    for unit, table in tables.items():
        add_tasks(lacking[unit], table, tmp_path, tmp_path, known)
    assert len(lacking["MiB"]) == 0 and len(lacking["GB"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["saclr/table-33"], "'table-33': did you mean 'table-3'"),
        (
            ["saclr/table-3", "--only", "simclrr"],
            "'simclrr': did you mean 'simclr'",
        ),
        (["saclr/table-2", "--scale", "small"], "saclr/table-2 has no small scale"),
        (["missing.yaml"], "missing.yaml"),
        (["saclr/table-7", "--no-run"], "reproduced has no saclr/table-7"),
        (["saclr/table-7", "--no-run", "--only", "row"], "nothing is run"),
        (["--seeds", "3"], "nothing is run"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path, monkeypatch, complaint, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in complaint("reproduce", *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        (
            "metric: knn",
            "metric: knnn",
            "row simclr, column digits: ",
        ),
        (
            "epochs: 1,",
            "epochz: 1,",
            "'epochz': did you mean 'epochs'",
        ),
        ("epochs: 1,", "epochs: 0,", "--epochs must be"),
        ("method: simclr}", "temperature: 0.1}", "method is missing"),
        (
            "method: simclr}",
            "method: simclr, temperature: hot}",
            "--temperature must be a number",
        ),
        (
            "metric: knn",
            "metric: knn\n    evaluate: {limmit: 3}",
            "'limmit': did you mean 'limit'",
        ),
        (
            "metric: knn",
            "metric: knn\n    evaluate: {limit: many}",
            "--limit must be",
        ),
        (
            "metric: knn",
            "metric: knn\n    evaluate: {held_out: 0}",
            "--held-out must be",
        ),
        (
            "metric: knn",
            "metric: lost\n    measure: curve",
            "'lost': did you mean 'loss'",
        ),
        ("metric: knn", "metric: knn\n    measure: detect", "there is no protocol 'knn'"),
    ],
)
def test_a_paper_that_cannot_be_run_is_refused_before_anything_runs(
    tmp_path, monkeypatch, complaint, was, becomes, message
):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN.replace(was, becomes, 1))
    printed = complaint("reproduce", "own.yaml")
    assert "table-1" in printed and message in printed
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    """By its own error, and by a top-5 accuracy, which is measured from 100 classes on."""
    monkeypatch.chdir(tmp_path)
    own = OWN.replace(
        "protocol: [knn]\n    metric: knn", "protocol: [finetune-50]\n    metric: finetune_50_top5"
    )

    def run(commands, words, environment, log):
        if words[2] == "evaluate":
            on = MeasuredOn("digits", "the test split", 9, 9, 10, 0.1, 0, "i", "e")
            rows = {"trained": {"finetune_50": 0.5, "linear": 0.25}}
            measured = Measurement(on, rows).to_json()
            Path(words[3], "results.json").write_text(json.dumps({"measurements": [measured]}))
        if "row" in words[-3]:
            log.write_text("nearfar: it is too large\n")
            raise subprocess.CalledProcessError(1, words)
        return {"result": 7}

    monkeypatch.setattr(runs._Commands, "run", run)
    Path("own.yaml").write_text(own)
    assert main(["reproduce", "own.yaml", "--jobs", "1"]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("nearfar: 2 of 3 runs failed") and output.err.count("\n") == 1
    assert "failed: ValueError: results.json has no finetune_50_top5, but finetune_50" in output.out
    assert "failed: nearfar: it is too large (see" in output.out
    cells = json.loads(Path("reproduced/own/table-2.json").read_text())["cells"]
    assert cells["matrix/n"]["seeds"]["0"]["value"] == 7 and not cells["row/n"]["seeds"]


READ = """
title: a paper
data: {photos: "a folder of photographs"}
tables:
  table-1:
    title: loss
    source: Table 1
    measure: last
    metric: loss
    seeds: 2
    common: {epochs: 1, precision: 32-true}
    columns: {photos: {data: photos}}
    rows: {simclr: {title: SimCLR, run: {method: simclr}}}
"""


@pytest.mark.slow
def test_what_the_runs_read_and_left_out_is_said_once(tmp_path, monkeypatch, capsys):
    """Every command of both seeds prints the same, as `--json` does."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(READ)
    Path("data/photos").mkdir(parents=True)
    line = "data/photos: 20 images read, 1 left out: 1 cut off"
    commands = []

    def run(self, words, environment, log_file):
        commands.append(words[1:3])
        return {"result": 0.5, "read": [{"line": line, "images": 20, "left_out": 1}]}

    monkeypatch.setattr(runs._Commands, "run", run)
    assert main(["reproduce", "own.yaml", "--jobs", "1"]) == 0
    assert commands == 2 * [["nearfar", "pretrain"], ["nearfar_papers.measures", "last"]]
    out = capsys.readouterr().out.splitlines()
    assert [shown for shown in out if "images read" in shown] == [line]
    assert out.index(line) < next(i for i, shown in enumerate(out) if shown.startswith("1/2"))


def test_a_run_that_was_begun_goes_on_with_the_data_that_is_named_now(tmp_path, monkeypatch):
    """Of a folder that has moved; `pretrain` refuses one that has changed."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(READ.replace("seeds: 2", "seeds: 1"))
    Path("moved/photos").mkdir(parents=True)
    (cell,) = read_paper("own.yaml").tables["table-1"].cells()
    folder = folder_of(cell, 0, Path("reproduced"))
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    commands = []

    def run(self, words, environment, log_file):
        commands.append(list(words))
        return {"result": 0.5}

    monkeypatch.setattr(runs._Commands, "run", run)
    nearfar_papers.reproduce("own.yaml", data="moved", jobs=1)
    assert commands[0][2:6] == ["pretrain", "moved/photos", "--resume", str(folder)]


@pytest.mark.slow
def test_what_runs_is_stopped_with_it_and_can_go_on(tmp_path):
    """As by a batch system, which sends SIGTERM to the command alone."""
    (tmp_path / "own.yaml").write_text(OWN.replace("epochs: 1,", "epochs: 100000,"))
    command = [sys.executable, "-m", "nearfar", "reproduce", "own.yaml/table-1", "--jobs", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as reproduce:
        while not any(
            path.stat().st_size for path in tmp_path.glob("reproduced/runs/*/metrics.jsonl")
        ):
            assert reproduce.poll() is None
            time.sleep(0.1)
        reproduce.terminate()
        assert reproduce.wait(60) == 128 + signal.SIGTERM
    written = tmp_path / "reproduced"
    assert (written / "own/table-1.md").is_file() and (
        written / "claims.md"
    ).is_file()  # what there is so far
    (run,) = tmp_path.glob("reproduced/runs/simclr-digits-*-0/")
    with lock_run_folder(run):  # nobody else has it
        assert (run / "checkpoints").is_dir()


@pytest.mark.parametrize("shape", [(1000,), (20, 1000)])
def test_what_was_right_is_packed_without_loss(shape):
    """Of several trials the share of them that were right, image by image."""
    right = np.random.default_rng(0).random(shape) < 0.7
    assert unpacked(packed(right)) == pytest.approx(right.reshape(-1, 1000).mean(0), abs=1e-12)
