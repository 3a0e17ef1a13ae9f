"""List the methods: paper, what each needs, and its default numbers.

nearfar methods
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def list_methods(*, console: Console | None = None) -> dict[str, dict[str, Any]]:
    """List the methods: paper, what each needs, and its default numbers.

    Args:
        console: where the table is shown.

    Returns:
        For each method its paper, its needs and its default numbers.
    """
    from rich.table import Table

    from nearfar.methods import describe, method_class, method_names

    facts = {name: describe(method_class(name)) for name in method_names()}
    if console is not None:
        table = Table("method", "paper", "needs", "numbers", title="nearfar methods")
        for name, fact in facts.items():
            numbers = ", ".join(f"{key} {value}" for key, value in fact["defaults"].items())
            table.add_row(name, fact["paper"], ", ".join(fact["needs"]), numbers)
        console.print(table)
    return facts
