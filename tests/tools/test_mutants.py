"""The tool that makes mutants: what it changes, that a change takes effect, and the page of its results."""

import importlib.util
import json
import sys

import pytest

from tools.mutants import (
    PAGE,
    RESULTS,
    TABLE,
    mutants_of,
    page,
    put_in,
    reason_of,
    tomllib,
    with_reasons,
)

SOURCE = '''"""Texts stay."""
LIMIT = 3


def area(width: int, height: int = 2) -> int:
    """Return the product."""
    if width < 0:
        raise ValueError(f"{width - 1}")
    return width * height


class Box:
    def __init__(self, side):
        self.side = side

    def volume(self):
        return sum(self.side for _ in range(3)) + area(1)
'''


@pytest.fixture
def box(tmp_path):
    path = tmp_path / "box_under_test.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("box_under_test", path)
    sys.modules["box_under_test"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield path, module
    del sys.modules["box_under_test"]


def test_operators_numbers_and_arguments_change_and_texts_and_messages_do_not():
    pytest.importorskip("mutmut")
    _, mutants = mutants_of(SOURCE)
    changed = {mutant.now for mutant in mutants}
    assert "return width / height" in changed and "if width <= 0:" in changed
    assert "def area(width: int, height: int = 3) -> int:" in changed
    assert not any(mutant.line in (1, 2, 6, 8) for mutant in mutants)
    assert {mutant.function for mutant in mutants} == {"area", "Box.__init__", "Box.volume"}
    some = mutants_of(SOURCE, 4)[1]
    assert len(some) == 4 and some == mutants_of(SOURCE, 4)[1]


def test_a_change_holds_for_objects_that_were_there_before(box):
    path, module = box
    made, area = module.Box(2), module.area
    assert (made.volume(), area(3)) == (8, 6)
    put_in(path, SOURCE.replace("width * height", "width + height").replace("range(3)", "range(4)"))
    assert (made.volume(), area(3)) == (11, 5)
    put_in(path, SOURCE.replace("int = 2", "int = 5"))
    assert area(3) == 15
    put_in(path, SOURCE)
    assert (made.volume(), area(3)) == (8, 6)


def test_a_reason_is_found_by_file_function_and_lines():
    reasons = [{"file": "a.py", "function": "f", "now": "x + 1", "kind": "speed", "why": "w"}]
    assert reason_of("a.py", "f", "", "y = x + 1", reasons) == ("speed", "w")
    assert reason_of("a.py", "g", "", "y = x + 1", reasons) == ("open", "")
    assert reason_of("b.py", "f", "", "y = x + 1", reasons) == ("open", "")


def test_recorded_results_have_the_reasons_of_the_table():
    survivor = {"function": "f", "line": 3, "was": "x", "now": "x + 1", "kind": "open", "why": ""}
    other = survivor | {"function": "g", "kind": "words", "why": "no longer in the table"}
    recorded = {"file": "a.py", "killed": 5, "survived": [survivor, other]}
    reasons = [{"file": "a.py", "function": "f", "kind": "speed", "why": "w"}]
    assert with_reasons(recorded, reasons) == {
        "file": "a.py",
        "killed": 5,
        "survived": [survivor | {"kind": "speed", "why": "w"}, other | {"kind": "open", "why": ""}],
    }


def test_the_page_has_the_results():
    results = json.loads(RESULTS.read_text())
    assert PAGE.read_text() == page(results)
    files = {entry["name"] for entry in tomllib.loads(TABLE.read_text())["file"]}
    assert {each["file"] for each in results["files"]} <= files
    for each in results["files"]:
        assert each["killed"] + each["timeout"] + len(each["survived"]) == each["tried"]
