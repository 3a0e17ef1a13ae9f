"""Papers as data: what comes with nearfar can be read and run, settings merge as documented, and
mistakes are named.
"""

import re
import subprocess
import sys
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from PIL import Image

from nearfar.data import open_images
from nearfar.methods import computation_of
from nearfar.training.health import Health
from nearfar.training.request import resolve_method
from nearfar.training.settings import Settings
from nearfar_papers.paper import paper_names, read_paper
from nearfar_papers.runs import HEALTH, check_cells, has
from tests.papers.conftest import paper

OWN = {
    "title": "a paper",
    "common": {"epochs": 1000},
    "tables": {
        "table-1": {
            "title": "accuracy",
            "source": "Table 1",
            "unit": "%",
            "protocol": ["knn"],
            "metric": "knn",
            "common": {"recipe": "cifar", "batch_size": 64},
            "columns": {
                "a": {"data": "cifar10"},
                "b": {"data": "cifar100", "run": {"batch_size": 128}},
            },
            "rows": {
                "x": {
                    "title": "X",
                    "run": {"method": "simclr", "lr": 1},
                    "small": {"lr": 2},
                    "paper": {"a": [90, 0.5]},
                },
                "y": {"title": "Y", "run": {"method": "saclr"}, "paper": {"a": 91}},
                "z": {"title": "Z", "paper": {"b": 3}},
            },
            "claims": [{"text": "y is better", "column": "a", "better": ["y", "x"]}],
            "small": {
                "common": {"epochs": 2},
                "columns": {"a": {"data": "digits"}},
                "seeds": 3,
                "rows": ["x"],
            },
        }
    },
}


def written(folder, change=lambda table: None):
    whole = yaml.safe_load(yaml.safe_dump(OWN))
    change(whole["tables"]["table-1"])
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path


def test_settings_are_merged_from_left_to_right(tmp_path):
    table = read_paper(written(tmp_path)).tables["table-1"]
    full = {(cell.row, cell.column): dict(cell.settings) for cell in table.cells()}
    common = {"epochs": 1000, "recipe": "cifar"}
    assert full["x", "a"] == {
        **common,
        "batch_size": 64,
        "data": "cifar10",
        "method": "simclr",
        "lr": 1,
    }
    assert full["y", "a"] == {**common, "batch_size": 64, "data": "cifar10", "method": "saclr"}
    assert set(full) == {("x", "a"), ("y", "a")}  # where the paper has numbers
    (small,) = table.small.cells()
    assert small.settings == {"epochs": 2, "data": "digits", "method": "simclr", "lr": 2}
    assert table.rows["x"].paper == {"a": (90.0, 0.5)}


def test_equal_settings_are_one_run_whatever_is_measured(tmp_path):
    table = read_paper(written(tmp_path)).tables["table-1"]
    linear = read_paper(written(tmp_path, lambda content: content.update(metric="linear"))).tables[
        "table-1"
    ]
    other = read_paper(
        written(tmp_path, lambda content: content["common"].update(weight_decay=0.5))
    ).tables["table-1"]
    assert [cell.key for cell in table.cells()] == [cell.key for cell in linear.cells()]
    assert table.cells()[0].reading != linear.cells()[0].reading
    assert table.cells()[0].key != other.cells()[0].key


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda table: table.update(protocl=[]),
            "'protocl': did you mean 'protocol'",
        ),
        (lambda table: table.pop("source"), "argument: 'source'"),
        (lambda table: table["rows"]["x"]["paper"].update(c=1), "row x: there is no"),
        (
            lambda table: table["claims"][0].update(better=["w", "x"]),
            "names a row w",
        ),
        (
            lambda table: table["claims"][0].pop("better"),
            "within, best, law and more",
        ),
        (
            lambda table: table["small"].update(rows=["z"]),
            "the row z",
        ),
        (lambda table: table.update(measure="curves"), "are run, variables"),
        (
            lambda table: table.update(seeds=0),
            "seeds must be",
        ),
        (
            lambda table: table["rows"]["x"].update(run=3),
            "row x: run takes names",
        ),
        (
            lambda table: table.update(cells={"x a": {"rum": {}}}),
            "cell x a: ",
        ),
        (lambda table: table.update(rows=3), "rows: expected names with values"),
        (lambda table: table.pop("rows"), "rows: expected names with values"),
        (lambda table: table.update(run={"epochs": 1}), "sets no 'run' here"),
        (lambda table: table["common"].update(seed=1), "sets no seed"),
        (lambda table: table.update(ratio="no"), "ratio takes true or false"),
        (lambda table: table.update(title=None), "title takes a text"),
        (lambda table: table["small"].update(rows=["x", "x"]), "x, x"),
        (lambda table: table["rows"]["y"].update(title="X"), "two rows have the title"),
        (lambda table: table["columns"]["b"].update(title="a"), "two columns have the title"),
        (lambda table: table["rows"]["x"]["paper"].update(a="90 %"), "row x, paper, a"),
        (lambda table: table["rows"]["x"]["paper"].update(a=float("nan")), "row x, paper, a"),
        (lambda table: table["rows"]["x"]["paper"].update(a=[90, 0.5, 3]), "row x, paper, a"),
        (lambda table: table["rows"]["x"].update(trials={"lr": 1}), "row x, trials: "),
        (lambda table: table.update(cells={"x a": {"run": None}}), "cell x a: run takes"),
        (
            lambda table: table["small"]["columns"].update(
                a={"like": "a", "data": "digits"}, c={"like": "a", "data": "digits"}
            ),
            "stand for 'a'",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, change, words):
    with pytest.raises(ValueError, match=r"own\.yaml: ") as caught:
        read_paper(written(tmp_path, change))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"better": ["y"]}, "better takes"),
        ({"better": ["y", "x", "z"]}, "better takes"),
        ({"better": "y"}, "better takes"),
        ({"better": ["y", "y"]}, "a cell twice"),
        ({"not_worse": ["y", "x"]}, "not_worse takes"),
        ({"not_worse": ["y", "x", "1 %"]}, "not_worse takes a number"),
        ({"within": ["y", "x", -1]}, "below 0: -1"),
        ({"more": ["y/a", "x/a"]}, "more takes"),
        ({"best": "y", "column": None}, "names no column"),
        ({"law": "order"}, "`effective`"),
    ],
)
def test_a_claim_that_nothing_could_judge_is_refused_before_the_runs(tmp_path, claim, words):
    """Some ended in a traceback behind the runs; one without a column was judged by the last."""
    claims = [{"text": "it is so", "column": "a", **claim}]
    with pytest.raises(ValueError, match=r"own\.yaml: ") as caught:
        read_paper(written(tmp_path, lambda table: table.update(claims=claims)))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_one_text_stands_for_a_list_of_one(tmp_path):
    """Its letters were taken for the list."""

    def change(table):
        table["related"] = "A. Uthor 2025"
        table["rows"]["x"]["without"] = "b"
        table["small"]["rows"] = "x"
        table["protocol"] = "knn"

    table = read_paper(written(tmp_path, change)).tables["table-1"]
    assert table.related == ("A. Uthor 2025",) and table.rows["x"].without == ("b",)
    assert table.small.run == ("x",) and table.protocol == ("knn",)


def test_numbers_are_names_of_rows_in_claims_as_in_the_table(tmp_path):
    def change(table):
        table["rows"] = {
            0.1: {"title": 0.1, "run": {"method": "simclr"}},
            0.5: {"title": 0.5, "run": {"method": "dcl"}},
        }
        table["small"].pop("rows")
        table["claims"] = [{"text": "hot is better", "column": "a", "better": [0.5, 0.1]}]

    table = read_paper(written(tmp_path, change)).tables["table-1"]
    (claim,) = table.claims
    assert {row for row, _ in claim.cells(table.columns)} == set(table.rows)
    assert table.rows["0.5"].title == "0.5"


@pytest.mark.parametrize("name", paper_names())
def test_every_run_of_a_paper_has_settings_that_exist(name):
    for table in paper(name).tables.values():
        for variant in filter(None, (table, table.small)):
            check_cells(variant)
            assert {cell.settings.get("data", "digits") for cell in variant.cells()} <= {
                *paper(name).data,
                "digits",
            }


def test_the_methods_on_imagenette_have_the_computation_of_the_first():
    table = read_paper("methods").tables["imagenette"]
    whole = {
        cell.row: float(cell.settings["epochs"])
        * computation_of(resolve_method(Settings.of(**cell.settings))[0])
        for cell in table.cells()
    }
    assert len(whole) == 14
    assert whole == pytest.approx(dict.fromkeys(whole, 103 * 6), rel=0.01)


def test_numbers_that_are_older_than_random_samples_count_as_run_only_where_nothing_was_sampled():
    for name, table, size, again in (
        ("saclr", "table-15", "small", True),
        ("methods", "digits", "full", False),
    ):
        cell = paper(name).tables[table].at(size).cells()[0]
        samples = {
            f"{cell.row}/{cell.column}": {
                "seeds": {"0": {"value": 1.0}, "1": {"value": 2.0, "versions": {}}}
            }
        }
        assert [has(samples, cell, seed) for seed in (0, 1, 2)] == [not again, True, False]


def test_the_keys_of_the_health_are_those_of_metrics():
    assert {field.name for field in fields(Health)} == set(HEALTH)


def test_a_folder_of_links_holds_the_classes_of_a_list(tmp_path):
    """The loop of docs/reproduce.md, on a data set of 120 classes."""
    listed = (files("nearfar_papers") / "imagenet100.txt").read_text().split()
    assert len(set(listed)) == 100 and all(re.fullmatch(r"n\d{8}", name) for name in listed)
    others = [f"n{number:08d}" for number in range(20)]
    for split in ("train", "test"):
        for number, name in enumerate([*listed, *others]):
            (tmp_path / "imagenet" / split / name).mkdir(parents=True)
            image = Image.new("L", (8, 8), number)
            image.save(tmp_path / "imagenet" / split / name / f"{split}-{number}.png")
    text = Path("docs/reproduce.md").read_text()
    script = re.search(r"```sh\n(list=.*?)```", text, re.DOTALL)[1]
    script = script.replace("python", sys.executable)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    for split in ("train", "test"):
        images = open_images(tmp_path / "data/imagenet100", split=split)
        assert images.class_names == sorted(listed) and len(images) == 100
