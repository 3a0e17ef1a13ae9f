"""docs/papers: every verdict and page, and every number of the page written by hand and of the
answers, follows from the JSON.
"""

import functools
import json
import math
import re
import shlex
import shutil
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nearfar import cli
from nearfar.networks import build_backbone
from nearfar.training.request import resolve_method
from nearfar.training.settings import Settings
from nearfar_papers import pages
from nearfar_papers.claims import holm, judge
from nearfar_papers.measures import MEASURES
from nearfar_papers.measures import __name__ as MEASURES_OF
from nearfar_papers.paper import Claim, paper_names
from nearfar_papers.runs import OF_MEASURES, known_in
from tests.papers.conftest import paper

DOCS = Path(__file__).parents[2] / "docs"
PAPERS = DOCS / "papers"
TABLES = [path.relative_to(PAPERS).as_posix() for path in sorted(PAPERS.glob("*/*.json"))]
MARKED = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*<!-- (.*?) -->")
VERDICT = r"not decided|decided|survives|does not survive"  # what the text says of a difference


@pytest.fixture(scope="module")
def anew(tmp_path_factory):
    """A copy of the folder in which every page was written again from its JSON."""
    out = tmp_path_factory.mktemp("anew") / "papers"
    shutil.copytree(PAPERS, out)
    known = known_in(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "draw_table", lambda *args: None)
        for path in TABLES:
            pages.write_outcome(*table_of(path), [], out, known)
    pages.write_claims(out)
    return out


@functools.cache
def claims_of_the_page():
    return pages.claims_in(PAPERS)


def table_of(path):
    read = paper(path.split("/")[0])
    name, *small = path.split("/")[1].removesuffix(".json").split(".")
    return read, read.tables[name].at("small" if small else "full")


@pytest.mark.parametrize("path", TABLES)
def test_verdicts_and_pages_follow_from_the_json(anew, path):
    kept, again = json.loads((PAPERS / path).read_text()), json.loads((anew / path).read_text())
    assert again["claims"] == kept["claims"]
    assert again["cells"] == kept["cells"]  # nothing is lost by a change of settings
    page = Path(path).with_suffix(".md")
    assert (anew / page).read_text() == (PAPERS / page).read_text()
    assert "| 0.00 " not in (PAPERS / page).read_text()  # a small number has its digits


def test_the_page_of_claims_follows_from_the_json(anew):
    assert (anew / "claims.md").read_text() == (PAPERS / "claims.md").read_text()


def test_the_page_lists_every_claim_of_every_table():
    every = {
        (paper(name).title, claim.text)
        for name in paper_names()
        for table in paper(name).tables.values()
        for claim in table.claims
    }
    listed = {
        (title, claim["text"]) for title, claims in claims_of_the_page().items() for claim in claims
    }
    assert listed == every
    tested = [c for claims in claims_of_the_page().values() for c in claims if "p" in c]
    assert [claim["holm"] == "survives" for claim in tested] == holm([c["p"] for c in tested])


@pytest.mark.parametrize("page", sorted(PAPERS.rglob("*.md")), ids=lambda page: page.stem)
def test_every_printed_command_is_one_of_todays(page, monkeypatch, capsys):
    """Its words are parsed by the command line itself, which then runs nothing."""
    called = []
    monkeypatch.setattr(cli, "function_of", lambda verb: lambda **given: called.append(given))
    text = page.read_text()
    lines = [
        line
        for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    lines += re.findall(r"`(nearfar [a-z]+ [^`]+)`", text)
    for line in lines:
        words = shlex.split(line)
        if words[0] == "nearfar":
            assert cli.main(words[1:]) == 0, (line, capsys.readouterr().err)
        else:
            python, flag, module, measure, settings, folder = words
            assert (python, flag, module) == ("python", "-m", MEASURES_OF)
            assert measure in MEASURES and folder.startswith("runs/")
            given = json.loads(settings)
            resolve_method(Settings.of(**{k: given[k] for k in given.keys() - OF_MEASURES}))
    assert len(called) == sum(line.startswith("nearfar") for line in lines)


@functools.cache
def values_of(path):
    cells = json.loads((PAPERS / f"{path}.json").read_text())["cells"]
    return {
        tuple(cell.split("/")): {
            s: np.mean(run["value"]) for s, run in cell_results["seeds"].items()
        }
        for cell, cell_results in cells.items()
    }


def cell_in(values, words):
    row, _, column = words.partition("/")
    columns = {place[1] for place in values}
    return row, column or (next(iter(columns)) if len(columns) == 1 else "missing")


def holm_of(table, name, cells):
    """Say whether the verdicts on two cells of a table survive: of its claims about these alone."""
    page, columns = f"{name}.md", table.paper_columns or table.columns
    stands = {column.like: column.name for column in table.columns.values()}
    usual = next(iter(table.columns)) if len(table.columns) == 1 else None
    texts = {
        claim.text
        for claim in table.claims
        if claim.law is None and claim.best is None
        if {(row, stands.get(where, where or usual)) for row, where in claim.cells(columns)}
        == set(cells)
    }
    listed = [claim for claims in claims_of_the_page().values() for claim in claims]
    return {claim["holm"] for claim in listed if claim["page"] == page and claim["text"] in texts}


def check(number, source):
    """Assert that a number of the page is what the source in its comment says."""
    name, _, measure = source.partition(": ")
    if source == "tiny":
        parameters = build_backbone("tiny", image_size=32, channels=3).parameters()
        assert number == f"{sum(each.numel() for each in parameters) / 1e6:.1f}"
    elif name == "claims":
        measure, _, words = measure.partition(" of ")
        every = [
            claim
            for claims in claims_of_the_page().values()
            for claim in claims
            if words in claim["text"]
        ]
        tested = [claim for claim in every if "p" in claim]
        counts = Counter(claim["holds"] for claim in every)
        counts |= {"all": len(every), "tested": len(tested)}
        counts["lacking"] = counts["not run"] + counts["not here"]
        counts["decided"] = sum(claim["holds"] in ("yes", "no") for claim in tested)
        counts["survive"] = sum(claim["holm"] == "survives" for claim in every)
        counts["in part"] = sum("missed" in claim for claim in every)
        counts["later"] = sum("later" in claim for claim in tested)
        assert int(number) == counts[measure]
    elif "computation" in name:
        cost = {
            "simclr": 6.0,
            "moco-v2": 4.0,
            "byol": 8.0,
            "sce": 3 * 2.356 + 2,
            "moco-m": 3 * 3.356 + 2,
        }
        lengths = {"simclr": 80.4, "moco-v2": 80.4, "byol": 40.2, "sce": 36.9, "moco-m": 30.0}
        *_, rival = (row.removesuffix("-passes") for row in measure.split(" / "))
        spent = cost[rival] * lengths[rival]
        value = cost["simclr"] * lengths["simclr"] / spent
        if name == "equal computation":  # along the logarithm of the epochs
            cells = values_of("experiments/5")
            means = {
                row: statistics.mean(v.values()) for (row, c), v in cells.items() if c == "linear"
            }
            share = math.log(spent / cost["simclr"] / 30) / math.log(lengths["simclr"] / 30)
            between = means["simclr"] + share * (means["simclr-passes"] - means["simclr"])
            value = between - means[measure]
        assert float(number) == pytest.approx(
            value, abs=0.5001 * 10 ** -len(number.partition(".")[2])
        )
    elif name == "h200":
        losses = dict(
            re.findall(
                r"float32 batch 16384 (\S+): median (\S+) ms",
                (DOCS / "results/gpu-losses.txt").read_text(),
            )
        )
        rate = next(
            row["rate"]
            for row in json.loads((DOCS / "results/gpu.json").read_text())["speed"]
            if (row["encoder"], row["size"], row["precision"]) == ("resnet18", 32, "bfloat16")
            and row["kind"] == "whole step"
        )
        single, whole = float(losses["SACLR-1"]), float(losses["SimCLR"])
        assert int(number) == round(100 * (whole - single) / (1000 * 16384 / rate + single))
    elif name == "bench":
        case, batch, dim = measure.rsplit(" ", 2)
        rows = json.loads((DOCS / "benchmark-losses.json").read_text())["rows"]
        (row,) = [
            r for r in rows if (r["case"], r["batch"], r["dim"]) == (case, int(batch), int(dim))
        ]
        assert int(number) == round(1000 * row["median"])
    else:
        values = values_of(name)
        cells, verdict = re.fullmatch(rf"(.*?)(?: ({VERDICT}))?", measure).groups()
        first, *second = (cell_in(values, each) for each in cells.split(" - "))
        value = statistics.mean(values[first].values())
        if second:
            _, table = table_of(f"{name}.json")
            judgement = judge(
                Claim(text="", better=("/".join(first), "/".join(second[0]))), table, values
            )
            value = judgement.difference
            if verdict in ("decided", "not decided"):
                assert (judgement.holds in ("yes", "no")) == (verdict == "decided")
            elif verdict:
                survive = holm_of(table, name, [first, second[0]]) - {""}
                assert survive == {"survives" if verdict == "survives" else "does not"}
        digits = len(number.partition(".")[2])
        signed = value if number[0] in "+-" else abs(value)
        assert float(number) == pytest.approx(signed, abs=0.5001 * 10**-digits)


@pytest.mark.parametrize("number, source", MARKED.findall((PAPERS / "README.md").read_text()))
def test_a_number_of_the_page_is_that_of_the_json(number, source):
    check(number, source)


@pytest.mark.parametrize("name", sorted(paper("experiments").tables))
def test_marked_numbers_of_an_answer_are_those_of_the_json(name):
    answer = paper("experiments").tables[name].answer
    marked = MARKED.findall(answer)
    assert not answer or name == "3-values" or marked
    for number, source in marked:
        check(number, source)


def test_every_number_of_the_page_has_its_source():
    text = re.sub(r"`[^`]*`", "", (PAPERS / "README.md").read_text())  # names and settings
    assert not re.findall(r"\d+\.\d+", MARKED.sub("", re.sub(r"\]\([^)]*\)", "]", text)))
    sentences = re.split(r"(?<=[.;:]) ", " ".join(text.split()))
    for sentence in sentences:
        if (
            "decided" in re.sub(r"<!-- .*? -->", "", sentence).replace("are decided", "")
            and "points" in sentence
        ):
            assert "decided -->" in sentence or "<!-- claims" in sentence, sentence


def test_whatever_is_said_to_survive_is_marked_so():
    text = (PAPERS / "README.md").read_text()
    text = re.sub(r"<!-- (.*?) -->", lambda m: "[Holm]" * ("surviv" in m[1]), text)
    for sentence in re.split(r"(?<=\.)\s|\n\n|\n- ", text):
        if "surviv" in sentence:
            assert "[Holm]" in sentence or "claims.md" in sentence, sentence


def test_the_page_names_the_tables_that_were_run():
    listed = re.findall(r"^\| (\w+) \| (.*) \|$", (PAPERS / "README.md").read_text(), re.MULTILINE)
    for name, tables in listed[1:-1]:
        numbers = re.sub(r"(\d+) to (\d+)", lambda m: spelled(*map(int, m.groups())), tables)
        run = {
            path.split("/")[1].split(".")[0]
            for path in TABLES
            if path.startswith(f"{name.lower()}/")
            and any(values_of(path.removesuffix(".json")).values())
        }
        assert Counter(re.findall(r"\d+", numbers)) == Counter(
            re.search(r"\d+", table)[0] for table in run
        )


def spelled(first, last):
    return ", ".join(map(str, range(first, last + 1)))


def test_a_table_says_whose_the_numbers_of_the_paper_are():
    page = (PAPERS / "sce/table-1.small.md").read_text()
    assert "of imagenet100 where ours are of cifar10" in page
    assert "where ours are" not in (PAPERS / "saclr/table-3.small.md").read_text()


def test_the_papers_numbers_stand_under_the_papers_column():
    head = next(
        line
        for line in (PAPERS / "sce/table-1.small.md").read_text().splitlines()
        if line.startswith("|  | ")
    )
    assert head == "|  | ImageNet100, paper | CIFAR-10, ours |"


@pytest.mark.parametrize("path", TABLES)
def test_a_page_says_how_many_seeds_its_means_are_of(path):
    counts = [len(seeds) for seeds in values_of(path.removesuffix(".json")).values() if seeds]
    page = (PAPERS / path).with_suffix(".md").read_text()
    (line,) = re.findall(r"^In [^;\n]+; .*$", page, re.MULTILINE)
    stated = re.search(r"over (\d+)(?: to (\d+))? seeds|(\d+) seeds\.|one (run) of each", line)
    if not counts:
        assert not stated
    elif stated[4]:
        assert set(counts) == {1}
    else:
        numbers = [int(number) for number in stated.groups() if number]
        assert (numbers[0], numbers[-1]) == (min(counts), max(counts))


def test_claims_that_were_listed_after_their_numbers_are_marked():
    marked = {
        claim.text
        for name in paper_names()
        for table in paper(name).tables.values()
        for claim in table.claims
        if claim.later
    }
    every = [claim for claims in claims_of_the_page().values() for claim in claims]
    page = (PAPERS / "claims.md").read_text()
    lines = [line for line in page.splitlines() if line.endswith("; listed later |")]
    assert marked == {line.split(" | ")[0].removeprefix("| ") for line in lines}
    assert len(lines) == sum("later" in claim for claim in every)
    tested = sum("p" in claim for claim in every if "later" in claim)
    assert f"tested claims these are {tested}" in page


def test_a_claim_about_a_curve_compares_its_last_numbers():
    figure = json.loads((PAPERS / "saclr/figure-3.small.json").read_text())
    row, matrix = (
        [
            number["value"][-1]
            for number in figure["cells"][f"saclr-1-{form}/partition"]["seeds"].values()
        ]
        for form in ("row", "matrix")
    )
    gap = sum(row) / len(row) - sum(matrix) / len(matrix)
    (claim,) = figure["claims"]
    assert claim["difference"] == pytest.approx(gap, rel=1e-5) and claim["holds"] == "no"


def test_claims_of_our_own_are_not_called_those_of_a_paper():
    theirs, own = (
        (PAPERS / f"{page}.md").read_text() for page in ("saclr/table-7", "methods/normaliser")
    )
    assert "| what the paper says | where |" in theirs and "| claim | holds here |" in own
    after = (PAPERS / "batch-sizes/figure-1.small.md").read_text()
    assert "| claim, after the papers | where |" in after and "the paper's size" not in after


def test_a_wrong_number_of_the_page_is_found():
    check("1.9", "saclr/table-3.small: saclr-1-matrix - simclr decided")
    check("2.8", "saclr/table-3.small: saclr-1-row - simclr survives")
    for number, source in (
        ("2.9", "saclr/table-3.small: saclr-1-matrix - simclr decided"),
        ("1.9", "saclr/table-3.small: saclr-1-matrix - simclr not decided"),
        ("+1.9", "saclr/table-3.small: saclr-1-matrix - simclr decided"),
        ("1.9", "saclr/table-3.small: saclr-1-matrix - simclr survives"),
        ("2.8", "saclr/table-3.small: saclr-1-row - simclr does not survive"),
        ("240", "claims: all"),
        ("684", "bench: nearfar SimCLR 8192 128"),
    ):
        with pytest.raises(AssertionError):
            check(number, source)
