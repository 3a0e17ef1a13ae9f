"""What a method is and needs, read from its declarations."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from typing import Any

from nearfar.methods.method import Method


def describe(method: type[Method]) -> dict[str, Any]:
    """Return a method's paper, summary, needs, views, numbers, recipes and how it differs from the paper.

    "needs" lists what it has of index, predictor, momentum encoder and queue by default; "defaults" are its numbers
    with the recipe for small data, "meanings" what they are; "recipes" holds the settings of each recipe; "differs" is
    a list.
    """
    docs = method.__doc__ or ""
    small = method(**method.recipes["small"].hyperparameters)
    networks = small.networks(num_images=2)
    parts = {
        "index": networks.needs_index,
        "predictor": networks.predictor is not None,
        "momentum encoder": networks.momentum is not None,
        "queue": networks.queue_size is not None,
    }
    return {
        "paper": method.paper,
        "summary": docs.split("\n")[0],
        "needs": [name for name, needed in parts.items() if needed],
        "views": small.crops(),
        "defaults": {field.name: getattr(small, field.name) for field in fields(method)},
        "meanings": _arguments(docs),
        "recipes": {name: asdict(recipe) for name, recipe in method.recipes.items()},
        "differs": _differences(docs),
    }


def _arguments(docs: str) -> dict[str, str]:
    """Read the section "Args:" of a docstring: what stands after each name, in one line."""
    block = re.search(r"\n +Args:\n(.*?)(?:\n *\n|\s*\Z)", docs, re.DOTALL)
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {9,}.*)*)", block[1] if block else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _differences(docs: str) -> list[str]:
    """Read the numbered points after "Differs from the paper:" in a docstring."""
    found = re.search(r"Differs from the paper: (.*?)(?:\n *\n|\s*\Z)", docs, re.DOTALL)
    points = re.split(r"\(\d+\) ", " ".join(found[1].split())) if found else []
    return [point.strip().rstrip(";.") for point in points if point]
