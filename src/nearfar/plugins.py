"""Additions of other installed packages to nearfar: commands, tools, and sections of the report.

A package declares them as entry points in its pyproject.toml. In the group "nearfar.commands" the
name is that of the command and the object a function, documented as those of nearfar are: Google's
"Args:" become its options; types imported under TYPE_CHECKING are those of objects, which words
cannot give. In the group "nearfar.tools" the object is a tool. In the group "nearfar.report" the
name is that of a section and the object a function that takes a run folder and returns HTML, ""
where the folder holds nothing for it; a ValueError or an OSError says which file is damaged.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points


def commands() -> dict[str, EntryPoint]:
    """Return the commands of other packages by name, in the order of the alphabet."""
    return _installed("nearfar.commands")


def report_sections() -> dict[str, EntryPoint]:
    """Return the report's sections of other packages by name, in the order of the alphabet."""
    return _installed("nearfar.report")


def tools() -> dict[str, EntryPoint]:
    """Return the tools of other packages by name, in the order of the alphabet."""
    return _installed("nearfar.tools")


def _installed(group: str) -> dict[str, EntryPoint]:
    plugins: dict[str, EntryPoint] = {}
    declared = _declared(tuple(sys.path))(group=group)
    for entry in sorted(declared, key=lambda entry: entry.name):
        plugins.setdefault(entry.name, entry)  # the first on the path
    return plugins


@functools.lru_cache(maxsize=1)
def _declared(path: tuple[str, ...]) -> Callable[..., EntryPoints]:
    """Return how to select among what the packages on the path declare, which takes long to
    read.
    """
    return entry_points().select
