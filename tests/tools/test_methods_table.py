"""docs/methods.md is what the code says."""

import contextlib
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from nearfar.methods import method_class, method_names
from tools.methods_table import methods_page

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_committed_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == methods_page(), "run: python -m tools.methods_table"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def read(text):
    """A number of the page as Python has it."""
    if text in ("none", "yes", "no"):
        return {"none": None, "yes": True, "no": False}[text]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return tuple(int(width) for width in text.split("-")) if re.fullmatch(r"\d+(-\d+)+", text) else text


def equal(read_number, value):
    """A tuple of one width is written as a number, an empty one as "none"."""
    return (value if value != () else None) in (read_number, (read_number,))


def test_rows_say_what_the_methods_declare():
    lines = methods_page().splitlines()
    rows = {line.split("](#")[0][3:]: cells(line) for line in lines if line.startswith("| [")}
    assert list(rows) == method_names()
    for name, (_, paper, needs, views, numbers, differences) in rows.items():
        cls = method_class(name)
        method = cls(**cls.recipes["small"].hyperparameters)
        setup = method.setup(num_images=10)
        assert cls.paper.split(", ")[0] in paper
        assert ("momentum encoder" in needs) == (setup.momentum is not None)
        assert ("queue" in needs) == (setup.queue_size is not None)
        assert ("predictor" in needs) == (setup.predictor is not None)
        assert ("index" in needs) == setup.needs_index
        counted = [part.split(" ") if part[0].isdigit() else ["1", part] for part in views.split(" + ")]
        assert [word for count, word in counted for _ in range(int(count))] == list(method.views)
        shown = dict(part.split(" ") for part in numbers.split(", ")) if numbers != "-" else {}
        for number, text in shown.items():
            assert equal(read(text), getattr(method, number)), (name, number)
        hidden = {field.name for field in fields(cls)} - set(shown)
        assert all(getattr(method, number) in (None, (), False, (512, 128)) for number in hidden), name
        assert (0 if differences == "-" else int(differences)) == len(re.findall(r"\s\(\d\)\s", cls.__doc__))


def test_sections_list_every_number():
    sections = re.split(r"^## ", methods_page(), flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0] for section in sections] == method_names()
    for section in sections:
        cls = method_class(section.split("\n")[0])
        method = cls(**cls.recipes["small"].hyperparameters)
        rows = [cells(line) for line in section.split("### ")[0].splitlines() if line.startswith("| `")]
        numbers = {row[0].strip("`"): read(row[1]) for row in rows}
        assert list(numbers) == [field.name for field in fields(cls)]
        assert all(equal(value, getattr(method, number)) for number, value in numbers.items())


def test_every_paper_recipe_has_a_table_with_the_source_of_each_number():
    tables = re.split(r"^### ", methods_page(), flags=re.MULTILINE)[1:]
    named = {tuple(table.split("\n")[0].split(" --recipe ")): table.split("\n## ")[0] for table in tables}
    declared = {(name, key) for name in method_names() for key in method_class(name).recipes if key != "small"}
    assert set(named) == declared
    for (name, key), table in named.items():
        recipe = method_class(name).recipe(key)
        rows = {line[0].strip("`"): line[1:] for line in map(cells, table.splitlines()) if line and "`" in line[0]}
        assert rows["encoder"][0].startswith(recipe.encoder) and rows["optimizer"][0] == recipe.optimizer
        assert rows["lr"][0].startswith(f"{recipe.lr:g}") and rows["epochs"][0] == str(recipe.epochs)
        assert rows["batch_size"][0].startswith(str(recipe.batch_size))
        for number, value in recipe.hyperparameters.items():
            assert equal(read(rows[number][0]), value)
        for number, source in recipe.sources.items():
            assert number not in rows or rows[number][1] == source
        assert all(source for _, source in rows.values())


def test_facts_of_a_method():
    page = methods_page()
    section = page.split("## lorac\n")[1].split("\n## ")[0]
    assert "Needs: momentum encoder, queue. Views: 3 large + 2 small." in section
    assert "| `beta` | 2 | width of the prior" in section
    assert "### lorac --recipe imagenet" in section and "| `lr` | 1.8 | LORAC, section 6.1 |" in section
    assert "1. The prior is divided by the temperature throughout, as in Eq. 12" in section
    saclr = page.split("## saclr\n")[1].split("\n## ")[0]
    assert "| `lr` | 0.075 * sqrt(batch) | SACLR, appendix A.1 |" in saclr
    assert "### saclr --recipe cifar" in saclr


def test_command_writes_the_page(tmp_path):
    file = tmp_path / "page.md"
    subprocess.run([sys.executable, "-m", "tools.methods_table", str(file)], check=True)
    assert file.read_text(encoding="utf-8") == methods_page()
