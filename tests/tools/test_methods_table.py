"""docs/methods.md is what the code says."""

import subprocess
import sys
from pathlib import Path

from nearfar.methods import method_class, method_names
from tools.methods_table import methods_page

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_committed_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == methods_page(), "run: python -m tools.methods_table"


def test_every_method_has_a_row_and_a_section():
    lines = methods_page().splitlines()
    rows = [line.split("](#")[0][3:] for line in lines if line.startswith("| [")]
    sections = [line[3:] for line in lines if line.startswith("## ")]
    assert rows == sections == method_names()


def test_tables_are_whole():
    widths = []
    for line in methods_page().splitlines():
        if line.startswith("|"):
            cells = line.count("|") - 1
            if line.startswith("| ---"):
                assert cells == widths[-1]
            widths.append(cells)
    assert set(widths) == {3, 6}


def test_facts_of_a_method():
    page = methods_page()
    section = page.split("## lorac\n")[1].split("\n## ")[0]
    assert "Needs: momentum encoder, queue. Views: 3 large + 2 small." in section
    assert "| `beta` | 2 | width of the prior" in section
    assert "| `imagenet` | lars, lr 1.8, decay 1e-06 | 256 | 200, 0 to warm up |" in section
    assert "1. The prior is divided by the temperature throughout, as in Eq. 12" in section
    saclr = page.split("## saclr\n")[1].split("\n## ")[0]
    assert "lars, lr 0.075 * sqrt(batch), decay 0.0001" in saclr
    assert all(recipe in saclr for recipe in ("`small`", "`cifar`", "`imagenet`"))


def test_all_recipes_are_listed():
    page = methods_page()
    for name in method_names():
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        for recipe in method_class(name).recipes:
            assert f"\n| `{recipe}` | " in section


def test_command_writes_the_page(tmp_path):
    file = tmp_path / "page.md"
    subprocess.run([sys.executable, "-m", "tools.methods_table", str(file)], check=True)
    assert file.read_text(encoding="utf-8") == methods_page()
