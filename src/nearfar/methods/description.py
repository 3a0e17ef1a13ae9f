"""What a method is and needs, read from its declarations."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, fields
from typing import Any

from nearfar.methods.method import Method


def describe(method: type[Method]) -> dict[str, Any]:
    """Return a method's paper, summary, needs, views, numbers, recipes and how it differs from the paper.

    "needs" lists which of "index", "predictor", "momentum encoder" and "queue" it has by default; "defaults" are its
    hyper-parameters with the recipe for small data, "meanings" what they are; "recipes" holds the settings of each
    recipe; "differs" is a list of sentences.
    """
    docs = inspect.cleandoc(method.__doc__ or "")
    small = method.from_recipe("small")
    setup = small.setup(num_images=2)
    needs = {
        "index": setup.needs_index,
        "predictor": setup.predictor is not None,
        "momentum encoder": setup.momentum is not None,
        "queue": setup.queue_size is not None,
    }
    return {
        "paper": method.paper,
        "summary": docs.split("\n")[0],
        "needs": [name for name, needed in needs.items() if needed],
        "views": small.views,
        "defaults": {field.name: getattr(small, field.name) for field in fields(method)},
        "meanings": _arguments(docs),
        "recipes": {name: asdict(recipe) for name, recipe in method.recipes.items()},
        "differs": _differences(docs),
    }


def _arguments(docs: str) -> dict[str, str]:
    """Read the section "Args:" of a docstring: the text after each name, in one line."""
    block = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", docs, re.DOTALL | re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", block[1] if block else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _differences(docs: str) -> list[str]:
    """Read the numbered points after "Differs from the paper:" in a docstring."""
    found = re.search(r"Differs from the paper: (.*?)(?:\n\n|\Z)", docs, re.DOTALL)
    points = re.split(r"\(\d+\) ", " ".join(found[1].split())) if found else []
    return [point.strip().rstrip(";.") for point in points if point]
