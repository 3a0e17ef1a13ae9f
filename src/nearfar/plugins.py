"""Additions of other installed packages to nearfar: commands, and sections of the report.

A package declares them as entry points in its pyproject.toml. In the group "nearfar.commands" the
name is that of the command and the object a function, documented as those of nearfar are: Google's
"Args:" become its options. In the group "nearfar.report" the name is that of a section and the
object a function that takes a run folder and returns HTML, "" where the folder holds nothing for
it; a ValueError or an OSError says which file is damaged.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points


def commands() -> dict[str, EntryPoint]:
    """Return the commands of other packages by name, in the order of the alphabet."""
    return _installed("nearfar.commands")


def report_sections() -> dict[str, EntryPoint]:
    """Return the report's sections of other packages by name, in the order of the alphabet."""
    return _installed("nearfar.report")


def _installed(group: str) -> dict[str, EntryPoint]:
    plugins: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        plugins.setdefault(entry.name, entry)  # the first on the path
    return plugins
