"""Print files, lines and circles of imports for each room of src/nearfar, and for nearfar_papers:
python -m tools.house.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.sparse.csgraph import connected_components

SOURCE = Path(__file__).parents[1] / "src" / "nearfar"
PAPERS = SOURCE.with_name("nearfar_papers")


def room_of(path: Path) -> str:
    """The folder of a file below `SOURCE`, or the name of a file at the root."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, not to be changed."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree, not to be changed."""
    return tuple(ast.walk(parsed(path)))


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Names of all modules and of names in them that a file imports when it runs, at the top or in
    a function.
    """
    names: set[str] = set()
    for node in _at_run_time(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and _is_for_types_alone(child.test)):
            yield child
            yield from _at_run_time(child)


def _is_for_types_alone(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def circles() -> list[list[str]]:
    """Modules that import each other, directly or through others: the names of each such circle."""
    files = {}
    for path in (*SOURCE.rglob("*.py"), *PAPERS.rglob("*.py")):
        files[".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)] = path
    modules = [
        name for name in files if not name.endswith("__init__")
    ]  # packages import the modules in them
    arrows = np.array([np.isin(modules, list(imported(files[name]))) for name in modules])
    count, circle_of = connected_components(arrows, connection="strong")
    members = [[modules[i] for i in np.flatnonzero(circle_of == circle)] for circle in range(count)]
    return [names for names in members if len(names) > 1]


def sizes() -> tuple[Counter[str], Counter[str]]:
    """Files and lines of each room, in which files at the root are one room, ".", and so is
    nearfar_papers.
    """
    files, lines = Counter(), Counter()
    for path in (*SOURCE.rglob("*.py"), *PAPERS.rglob("*.py")):
        room = "." if path.parent == SOURCE else PAPERS.name
        if path.is_relative_to(SOURCE) and path.parent != SOURCE:
            room = room_of(path)
        files[room] += 1
        lines[room] += len(path.read_text().splitlines())
    return files, lines


if __name__ == "__main__":
    files, lines = sizes()
    groups = circles()
    for room in sorted(files):
        inside = [names for names in groups if f"{room}." in names[0]]
        print(f"{room:14} {files[room]:4} files {lines[room]:6} lines {len(inside):3} circles")
    print(f"{'all':14} {files.total():4} files {lines.total():6} lines {len(groups):3} circles")
    for names in groups:
        print(" <-> ".join(names))
