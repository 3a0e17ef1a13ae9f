"""The command that lists the methods.

nearfar methods
"""

from __future__ import annotations

from typing import Any

from nearfar.progress import Table, log


def list_methods() -> dict[str, dict[str, Any]]:
    """List the methods: paper, what each needs, and its default hyperparameters.

    Returns:
        For each method its "paper", its "needs" and its "defaults".

    >>> nearfar.list_methods()["simclr"]["defaults"]["temperature"]
    0.2
    """
    from nearfar.methods import describe, method_class, method_names

    facts = {name: describe(method_class(name)) for name in method_names()}
    table = Table("method", "paper", "needs", "hyperparameters", title="nearfar methods")
    for name, fact in facts.items():
        numbers = ", ".join(f"{key} {value}" for key, value in fact["defaults"].items())
        table.add(name, fact["paper"], ", ".join(fact["needs"]), numbers)
    log.info(table)
    return facts
