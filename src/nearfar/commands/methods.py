"""The command that lists the methods.

nearfar methods
"""

from __future__ import annotations

from typing import Any

from nearfar.progress import Table, log


def list_methods() -> dict[str, dict[str, Any]]:
    """List the methods: paper, what each needs and computes, and its default hyperparameters.

    Computation is that of the encoder for one image in a step, in forward passes over a view of
    full size, where a backward pass counts as two.

    Returns:
        For each method its "paper", its "needs", its "computation" and its "defaults".

    >>> nearfar.list_methods()["simclr"]["defaults"]["temperature"]
    0.2
    """
    from nearfar.methods import describe, method_class, method_names

    facts = {name: describe(method_class(name)) for name in method_names()}
    table = Table(
        "method", "paper", "needs", "computation", "hyperparameters", title="nearfar methods"
    )
    for name, fact in facts.items():
        numbers = ", ".join(f"{key} {value}" for key, value in fact["defaults"].items())
        computation = f"{fact['computation']:.1f}"
        table.add(name, fact["paper"], ", ".join(fact["needs"]), computation, numbers)
    log.info(table)
    return facts
