"""What a method is and needs, read from its declarations."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from nearfar.methods.method import Method


def describe(method: type[Method]) -> dict[str, Any]:
    """Return a method's paper, summary, needs, default numbers, recipes and how it differs from the paper."""
    docs = method.__doc__ or ""
    defaults = {field.name: field.default for field in fields(method)}
    small = method(**method.recipes["small"].method)
    wiring = small.wiring(num_images=2)
    parts = {
        "index": wiring.needs_index,
        "predictor": wiring.predictor is not None,
        "twin": wiring.twin is not None,
        "queue": wiring.queue_size is not None,
    }
    differs = re.search(r"Differs from the paper: (.*?)(?:\n\n|\Z)", docs, re.DOTALL)
    return {
        "paper": method.paper,
        "summary": docs.split("\n")[0],
        "needs": [name for name, needed in parts.items() if needed],
        "views": small.crops(),
        "defaults": defaults | dict(method.recipes["small"].method),
        "recipes": {name: recipe.source for name, recipe in method.recipes.items()},
        "differs": " ".join(differs[1].split()) if differs else "",
    }
