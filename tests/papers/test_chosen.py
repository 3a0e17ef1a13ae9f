"""A table whose settings another one chooses: by which numbers, for which cells, and the two steps
from end to end.
"""

import json
from pathlib import Path

import pytest

import nearfar_papers
from nearfar.methods import method_class
from nearfar.views.plans import plan
from nearfar_papers.pages import claims_in, write_outcome
from nearfar_papers.paper import read_paper
from nearfar_papers.runs import path_of, resolved
from tests.papers.conftest import paper

OWN = """
title: two steps
beforehand: true
common: {epochs: 1, batch_size: 64, precision: 32-true, limit: 256}
tables:
  choose: &trials
    title: trials
    source: ours
    unit: "%"
    protocol: [knn]
    metric: knn
    evaluate: {held_out: 128}
    seeds: 2
    columns:
      few: {data: digits, run: {group_size: 2}}
      many: {data: digits}
    rows:
      simclr: {title: SimCLR, run: {method: simclr}, trials: &trials_of_two [{temperature: 0.1}, {temperature: 0.5}]}
      dcl: {title: DCL, run: {method: dcl}, trials: *trials_of_two}
  rate:
    <<: *trials
    title: rates of the chosen
    chosen: choose
    columns: {many: {data: digits}}
    rows: {simclr: {title: SimCLR, run: {method: simclr}}, dcl: {title: DCL, run: {method: dcl}}}
    trials: [{lr: 0.01}, {lr: 0.02}]
  fresh:
    title: fresh seeds
    source: ours
    unit: "%"
    protocol: [knn, few]
    metric: knn
    seeds: 2
    first_seed: 100
    question: Which is better?
    chosen: rate
    columns:
      many: {data: digits}
      five: {data: digits, metric: five_labels}
    rows:
      simclr: {title: SimCLR, run: {method: simclr}}
      other: {title: DCL, run: {method: dcl}, among: dcl}
    claims:
      - {text: DCL is better, column: many, better: [other, simclr]}
      - {text: with five labels too, column: five, better: [other, simclr]}
"""


def written(folder, numbers, table="choose"):
    """A table of own.yaml as if it had been run, with these numbers of each cell."""
    resolved_table = resolved(read_paper(folder / "own.yaml").tables[table], folder)
    path = path_of(resolved_table, folder).with_suffix(".json")
    path.parent.mkdir(exist_ok=True)
    cells = {
        cell.place: {
            "key": cell.key,
            "reading": cell.reading,
            "seeds": {
                str(seed): {"value": value, "seconds": 1.0, "commands": ["made up"], "versions": {}}
                for seed, value in enumerate(numbers[cell.place], resolved_table.first_seed)
            },
        }
        for cell in resolved_table.cells()
    }
    path.write_text(json.dumps({"paper": "own", "table": table, "cells": cells, "claims": []}))


CHOOSE = {
    "simclr-1/few": [50, 70],
    "simclr-2/few": [61, 61],
    "simclr-1/many": [80, 80],
    "simclr-2/many": [10, 90],
    "dcl-1/few": [50, 50],
    "dcl-2/few": [50, 50],
    "dcl-1/many": [1, 2],
    "dcl-2/many": [2, 2],
}
RATE = {
    "simclr-1/many": [3, 3],
    "simclr-2/many": [2, 3],
    "dcl-1/many": [5, 5],
    "dcl-2/many": [5, 6],
}


def test_each_cell_takes_the_trial_with_the_best_mean_in_its_column(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    written(tmp_path, CHOOSE)
    rate = resolved(read_paper(tmp_path / "own.yaml").tables["rate"], tmp_path)
    settings = {cell.place: dict(cell.settings) for cell in rate.cells()}
    assert (
        settings["simclr-1/many"]["temperature"] == 0.1 and settings["simclr-1/many"]["lr"] == 0.01
    )
    assert settings["dcl-2/many"]["temperature"] == 0.5 and settings["dcl-2/many"]["lr"] == 0.02
    assert (
        rate.choices["dcl-2/many"] == "temperature 0.5"
        and rate.rows["dcl-2"].title == "DCL, lr 0.02"
    )
    few = OWN.replace(
        "chosen: choose\n    columns: {many: {", "chosen: choose\n    columns: {few: {"
    )
    (tmp_path / "own.yaml").write_text(few)
    (cell, *_) = resolved(read_paper(tmp_path / "own.yaml").tables["rate"], tmp_path).cells()
    assert cell.settings["temperature"] == 0.5  # 61 against a mean of 60 with the better seed
    lower = few.replace("title: trials", "title: trials\n    better: lower")
    (tmp_path / "own.yaml").write_text(lower)
    (cell, *_) = resolved(read_paper(tmp_path / "own.yaml").tables["rate"], tmp_path).cells()
    assert cell.settings["temperature"] == 0.1


def test_choices_follow_one_another_and_another_column_takes_the_first(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    written(tmp_path, CHOOSE)
    written(tmp_path, RATE, "rate")
    fresh = resolved(read_paper(tmp_path / "own.yaml").tables["fresh"], tmp_path)
    chosen = {"simclr": "temperature 0.1, lr 0.01", "other": "temperature 0.5, lr 0.02"}
    assert fresh.choices == {
        f"{row}/{column}": choice for row, choice in chosen.items() for column in ("many", "five")
    }
    assert {(cell.settings["temperature"], cell.settings["lr"]) for cell in fresh.cells()} == {
        (0.1, 0.01),
        (0.5, 0.02),
    }


def test_a_choice_waits_for_all_trials(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    with pytest.raises(ValueError, match="own/rate waits for choose, simclr-1/many"):
        resolved(read_paper(tmp_path / "own.yaml").tables["rate"], tmp_path)
    written(tmp_path, CHOOSE | {"dcl-2/many": [2]})
    with pytest.raises(ValueError, match="own/rate waits for choose, dcl-2/many"):
        resolved(read_paper(tmp_path / "own.yaml").tables["rate"], tmp_path)


@pytest.mark.parametrize(
    ("was", "becomes", "words"),
    [
        (
            "trials: *trials_of_two",
            "trials: [{temperature: 0.1}]",
            "rate: every row",
        ),
        (", among: dcl", "", "{'simclr': 2, 'other': 0}"),
        ("among: dcl", "among: decl", "{'simclr': 2, 'other': 0}"),
        ("    chosen: rate\n", "", "fresh, row other: `among` needs"),
        ("trials: *trials_of_two", "trials: [0.1, 0.5]", "got 0.1"),
        ("chosen: choose", "chosen: fresh", "rate: chosen names fresh"),
    ],
)
def test_an_unfair_choice_is_refused(tmp_path, was, becomes, words):
    (tmp_path / "own.yaml").write_text(OWN.replace(was, becomes))
    with pytest.raises(ValueError, match=r"own\.yaml: ") as caught:
        read_paper(tmp_path / "own.yaml")
    assert words in str(caught.value)


def test_a_page_says_what_was_chosen_and_corrects_its_claims(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    written(tmp_path, CHOOSE)
    written(tmp_path, RATE, "rate")
    numbers = {
        "simclr/many": [60, 62],
        "other/many": [70, 72.1],
        "simclr/five": [50, 52],
        "other/five": [50.5, 53],
    }
    written(tmp_path, numbers, "fresh")
    own = read_paper(tmp_path / "own.yaml")
    path = write_outcome(own, own.tables["fresh"], [], tmp_path)
    [(first, second)] = claims_in(tmp_path).values()
    assert first["p"] < 0.025 and first["holm"] == "survives"
    assert second["p"] > 0.025 and (second["holds"], second["holm"]) == ("not decided", "")
    assert path.with_suffix(".png").stat().st_size > 1000
    words = path.read_text()
    assert "Which is better?\n\n`nearfar reproduce own/fresh --data FOLDER`" in words
    chosen = "- SimCLR: temperature 0.1, lr 0.01\n- DCL: temperature 0.5, lr 0.02"
    assert f"[rates of the chosen](rate.md), of 2 trials each:\n\n{chosen}" in words
    assert "| DCL is better | **yes** |" in words


TINY = """
title: two steps
common: {epochs: 1, batch_size: 64, precision: 32-true, limit: 128, held_out: 0}
tables:
  choose:
    title: trials
    source: ours
    protocol: [knn]
    metric: knn
    evaluate: {held_out: 128}
    columns: {digits: {data: digits}}
    rows: {simclr: {run: {method: simclr}, trials: [{temperature: 0.1}, {temperature: 0.5}]}}
  fresh:
    title: fresh seeds
    source: ours
    protocol: [knn]
    metric: knn
    first_seed: 100
    chosen: choose
    columns: {digits: {data: digits, run: {group_size: 2}}}
    rows: {simclr: {run: {method: simclr}}}
"""


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.slow
def test_one_command_chooses_and_runs_with_fresh_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(TINY)
    outcome = nearfar_papers.reproduce("own.yaml/fresh", jobs=1)["own/fresh"]
    trials = json.loads(Path("reproduced/own/choose.json").read_text())["cells"]
    values = [trials[f"simclr-{number}/digits"]["seeds"]["0"]["value"] for number in (1, 2)]
    temperature = "0.1" if values[0] >= values[1] else "0.5"
    assert all("--held-out 128" in trial["seeds"]["0"]["commands"][1] for trial in trials.values())
    (seed,) = outcome["cells"]["simclr/digits"]["seeds"]
    pretrain, evaluate = outcome["cells"]["simclr/digits"]["seeds"][seed]["commands"]
    assert (
        f"--temperature {temperature}" in pretrain
        and "--group-size 2" in pretrain
        and "--seed 100" in pretrain
    )
    assert seed == "100" and "--held-out" not in evaluate


EXPERIMENTS = paper("experiments")
CHOSEN = [table for table in EXPERIMENTS.tables.values() if table.chosen]


def settings_of(table, name):
    """The settings of a row, on top of those of its first trial."""
    trial = settings_of(table.chosen, table.trials(name)[0].name) if table.chosen else {}
    return {**trial, **table.common, **table.rows[name].run}


@pytest.mark.parametrize("table", CHOSEN, ids=lambda table: table.name)
def test_an_experiment_is_fair(table):
    """Trials are tested on training images that no run saw, and train as the table does; claims
    meet fresh seeds.
    """
    trials = table.chosen
    for cell in trials.cells():
        metric = "knn" if table.name.startswith("6") else "linear"
        assert cell.evaluate == {"held_out": 3000} and cell.metric == metric
        assert cell.settings["limit"] + 3000 <= EXPERIMENTS.images[cell.settings["data"]][0]
    if table.claims:
        assert table.first_seed >= trials.first_seed + trials.seeds
        assert table.seeds >= 3 or table.effective  # laws are judged over many cells
        assert not any("held_out" in cell.evaluate for cell in table.cells())
    for row in table.run:
        own = settings_of(table, row)
        for trial in table.trials(row):
            theirs = settings_of(trials, trial.name)
            for setting in (
                "method",
                "views",
                "small_views",
                "queue_size",
                "negatives",
                "batch_size",
                "crop_size",
            ):
                assert theirs.get(setting) == own.get(setting), (row, trial.name, setting)


def test_an_experiment_asks_a_question_and_says_what_it_needs():
    for number in "123456":
        table = EXPERIMENTS.tables[number]
        assert table.question and table.claims and "core hours" in table.needs


def test_equal_passes_are_equal():
    """A view through a network counts by its pixels; the epochs of the rows make as many of them as
    MoCo-M's.
    """
    passes = {}
    for row in EXPERIMENTS.tables["5"].rows.values():
        settings = settings_of(EXPERIMENTS.tables["5"], row.name)
        numbers = {
            name: value for name, value in settings.items() if name in ("symmetric", "small_views")
        }
        pairing = (
            method_class(settings["method"]).from_recipe("small", **numbers).setup(100).pairing
        )
        sizes = [view.size for view in plan(settings["views"], 64, 3).views]
        online = sum((sizes[view] / 64) ** 2 for view in pairing.online_views)
        passes[row.name] = settings["epochs"] * (online + len(pairing.momentum_views))
    equal = [
        value
        for name, value in passes.items()
        if name.endswith("-passes") or name in ("moco-m", "lorac")
    ]
    assert len(equal) == 6 and min(equal) == pytest.approx(max(equal), rel=0.005)
