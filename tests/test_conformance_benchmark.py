"""docs/conformance.md has the tables of docs/results/conformance.json, and every check is explained."""

import importlib
import json
from pathlib import Path

from nearfar.testing import CHECKS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/conformance.md").read_text()


def test_the_tables_of_the_page_are_those_of_the_file(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    conformance = importlib.import_module("conformance")
    results = json.loads((ROOT / "docs/results/conformance.json").read_text())
    assert conformance.tables(results).strip() in PAGE
    assert {*results["losses"]} == {*conformance.PEERS}
    assert all([*losses] == [*CHECKS] for losses in results["losses"].values())


def test_every_check_is_explained_on_the_page():
    head = PAGE.partition("## How to read")[0]
    assert all(f"`{check}`" in head for check in CHECKS)
