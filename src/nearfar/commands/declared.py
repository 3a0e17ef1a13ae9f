"""What the verbs take, read from their source without importing it: that would take seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nearfar.docstrings import arguments

PACKAGE = Path(__file__).parents[1]
VERBS: dict[str, tuple[str, tuple[str, ...]]] = {  # file and function, and what is given by its place
    "pretrain": ("pretrain", ("data...",)),
    "evaluate": ("evaluate", ("run", "data...")),
    "embed": ("embed", ("run", "data...")),
    "map": ("map_images", ("run", "data...")),
    "search": ("search_images", ("run", "images...")),
    "duplicates": ("find_duplicates", ("run", "data...")),
    "select": ("select_images", ("run", "images...")),
    "cluster": ("cluster_images", ("run", "data...")),
    "export": ("export", ("run",)),
    "push": ("push", ("run", "repo")),
    "views": ("show_views", ("data...",)),
    "methods": ("list_methods", ()),
    "reproduce": ("reproduce", ("table",)),
    "demo": ("run_demo", ("data...",)),
    "doctor": ("doctor", ()),
    "completion": ("completion_script", ("shell",)),
}
LISTING = ("search", "duplicates", "select")  # verbs that give paths to other programs
OBJECTS = {"console", "encoder", "views"}  # parameters that no word can give, but for the views of `nearfar views`


class Option(NamedTuple):
    """An argument: its name in Python, what it means, its annotation, and its default, None where it is not plain.

    choices: the words that it is limited to, if any.
    """

    name: str
    meaning: str
    annotation: str
    default: Any = None
    choices: tuple[str, ...] = ()
    required: bool = False


class Verb(NamedTuple):
    """First line and examples of a verb's file, what it takes, and what of it is given by its place.

    places: by name; what may be given many times ends in dots.
    """

    name: str
    summary: str
    examples: tuple[str, ...]
    options: tuple[Option, ...]
    places: dict[str, str]


PRETRAIN_ALONE = (
    Option("resume", "run folder to go on with; give it alone, or with the data where that lies elsewhere now", "str"),
    Option("data_changed", "with --resume: go on although the data has changed", "bool", False),
    Option("config", "YAML file with any of these settings", "str"),
)
"""Options of `pretrain` that are no settings."""
NULL = Option("null", "where the output is piped: a zero byte behind each path, for xargs -0", "bool", False)
"""Of verbs that give paths to other programs."""


def read_verb(verb: str) -> Verb:
    """Read the file of a verb."""
    function, named = VERBS[verb]
    places = {place.rstrip("."): place for place in named}
    tree = _parsed(PACKAGE / "commands" / f"{verb}.py")
    summary, *rest = (ast.get_docstring(tree) or "").splitlines()
    examples = tuple(line for line in rest if line.startswith("nearfar "))
    if verb == "pretrain":
        return Verb(verb, summary, examples, (*_settings(), *PRETRAIN_ALONE), places)
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    options = [one for one in _parameters(found, _assigned(tree)) if one.name not in OBJECTS - {verb}]
    return Verb(verb, summary, examples, (*options, *[NULL] * (verb in LISTING)), places)


def _parameters(function: ast.FunctionDef, assigned: Mapping[str, ast.expr]) -> Iterator[Option]:
    meanings, given = arguments(ast.get_docstring(function) or ""), function.args
    defaults = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    for one, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True):
        yield _option(one.arg, meanings.get(one.arg, ""), one.annotation, default, assigned, default is None)


def _settings() -> Iterator[Option]:
    tree = _parsed(PACKAGE / "training" / "settings.py")
    (settings,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    for node in settings.body:
        value = node.value if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.AnnAssign) and isinstance(value, ast.Call) and ast.unparse(value.func) == "setting":
            named = {key.arg: key.value for key in value.keywords}
            meaning, default = ast.literal_eval(value.args[0]), value.args[1] if value.args[1:] else None
            kind = named.get("word", node.annotation)
            yield _option(ast.unparse(node.target), meaning, kind, default, _assigned(tree))


def _option(
    name: str,
    meaning: str,
    annotation: ast.expr | None,
    default: ast.expr | None,
    assigned: Mapping[str, ast.expr],
    required: bool = False,
) -> Option:
    words = "" if annotation is None else ast.unparse(annotation)
    kind = assigned.get(words, annotation)
    value = ast.literal_eval(default) if isinstance(default, ast.Constant | ast.Tuple) else None
    return Option(name, meaning, words, value, () if kind is None else _words_of(kind), required)


def _words_of(annotation: ast.expr) -> tuple[str, ...]:
    """The words of a Literal in an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            words = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return tuple(str(ast.literal_eval(word)) for word in words)
    return ()


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """What the names of a file stand for, such as an annotation with a name."""
    assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
    return {ast.unparse(target): node.value for node in assignments for target in node.targets}


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
