"""docs/methods.md is what the code says."""

import contextlib
import re
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
    return (
        tuple(int(width) for width in text.split("-"))
        if re.fullmatch(r"\d+(-\d+)+", text)
        else text
    )


def equal(read_number, value):
    """A tuple of one width is written as a number, an empty one as "none"."""
    return (value if value != () else None) in (read_number, (read_number,))


def test_rows_say_what_the_methods_declare():
    lines = methods_page().splitlines()
    rows = {line.split("](#")[0][3:]: cells(line) for line in lines if line.startswith("| [")}
    assert list(rows) == method_names()
    for name, (_, paper, needs, views, computation, numbers, differences) in rows.items():
        cls = method_class(name)
        method = cls(**cls.recipes["small"].hyperparameters)
        setup = method.setup(num_images=10)
        assert cls.paper.split(", ")[0] in paper
        assert ("momentum encoder" in needs) == (setup.momentum is not None)
        assert ("queue" in needs) == (setup.queue_size is not None)
        assert ("predictor" in needs) == (setup.predictor is not None)
        assert ("index" in needs) == setup.needs_index
        online, keys = len(setup.pairing.online_views), len(setup.pairing.momentum_views)
        whole = "small" not in views and "local" not in views
        assert float(computation) == 3 * online + keys or not whole
        counted = [
            part.split(" ") if part[0].isdigit() else ["1", part] for part in views.split(" + ")
        ]
        assert [word for count, word in counted for _ in range(int(count))] == list(method.views)
        shown = dict(part.split(" ") for part in numbers.split(", ")) if numbers != "-" else {}
        for number, text in shown.items():
            assert equal(read(text), getattr(method, number)), (name, number)
        hidden = {field.name for field in fields(cls)} - set(shown)
        assert all(getattr(method, number) in (None, (), False, (512, 128)) for number in hidden), (
            name
        )
        assert (0 if differences == "-" else int(differences)) == len(
            re.findall(r"\s\(\d\)\s", cls.__doc__)
        )


def test_every_paper_recipe_has_a_table_with_the_source_of_each_number():
    tables = re.split(r"^### ", methods_page(), flags=re.MULTILINE)[1:]
    named = {
        tuple(table.split("\n")[0].split(" --recipe ")): table.split("\n## ")[0] for table in tables
    }
    declared = {
        (name, key)
        for name in method_names()
        for key in method_class(name).recipes
        if key != "small"
    }
    assert set(named) == declared
    for (name, key), table in named.items():
        recipe = method_class(name).recipe(key)
        rows = {
            line[0].strip("`"): line[1:]
            for line in map(cells, table.splitlines())
            if line and "`" in line[0]
        }
        assert (
            rows["encoder"][0].startswith(recipe.encoder)
            and rows["optimizer"][0] == recipe.optimizer
        )
        assert rows["lr"][0].startswith(f"{recipe.lr:g}") and rows["epochs"][0] == str(
            recipe.epochs
        )
        assert rows["batch_size"][0].startswith(str(recipe.batch_size))
        for number, value in recipe.hyperparameters.items():
            assert equal(read(rows[number][0]), value)
        for number, source in recipe.sources.items():
            assert number not in rows or rows[number][1] == source
        assert all(source for _, source in rows.values())
