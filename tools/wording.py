"""Text that tests compare with a message: of an error, of the log, of a command line."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.house import nodes, parsed

_MESSAGE = re.compile(r"\b(cap)?log\.(text|lines|messages)|\.(err|stderr)\b|\b(complaint|line)\(")
_COMPARING = ("startswith", "endswith", "count", "match", "search", "fullmatch", "findall")

Bound = dict[str, list[ast.expr]]


def compared_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each literal that the tests in a file compare with a message.

    That is `match=` of `pytest.raises`, and what stands before `in`, beside `==` or in a call such
    as `.startswith` where the other side is the text of an error, `log.text`, `complaint(...)`,
    stderr, or a name assigned from one of these. Names are followed to the rows of `parametrize`,
    of a `for` or of an assignment; values in an f-string count as nothing.
    """
    constants: Bound = defaultdict(list)
    for node in parsed(path).body:
        if isinstance(node, ast.Assign):
            _bind(node.targets[0], [node.value], constants)
    texts = set()
    for function in nodes(path):
        if isinstance(function, ast.FunctionDef):
            inside = [*ast.walk(function)]
            bound = _bound(function, inside, constants)
            for literal in _compared(function, inside):
                texts |= {*_texts(literal, bound)}
    yield from sorted(texts)


def count_words(text: str) -> int:
    """Return the number of words: numbers and the signs of a regular expression are none."""
    return sum(bool(re.search("[^\\W\\d]", re.sub(r"\\.", "", word))) for word in text.split())


def _compared(function: ast.FunctionDef, inside: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """Yield the expressions of a function that are compared with a message; inside: its nodes."""
    messages = _messages(inside)
    has_any = bool(messages) or _MESSAGE.search(ast.unparse(function)) is not None

    def says(node: ast.expr) -> bool:
        if not has_any:
            return False
        text = ast.unparse(node)
        return bool(_MESSAGE.search(text) or messages & set(re.findall(r"\w+", text)))

    for node in inside:
        if isinstance(node, ast.Call):
            yield from (word.value for word in node.keywords if word.arg == "match")
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in _COMPARING:
                subjects = [called.value, *node.args[1:]]
                yield from node.args[: any(map(says, subjects))]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn | ast.Eq):
            left, right = node.left, node.comparators[0]
            if says(right):
                yield left
            elif says(left):
                yield right


def _messages(inside: Sequence[ast.AST]) -> set[str]:
    """Return the names among the nodes of a function that are errors or texts of messages."""
    names = set()
    for node in inside:
        if isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.withitem) and "raises" in ast.unparse(node.context_expr):
            names |= {part.id for part in [node.optional_vars] if isinstance(part, ast.Name)}
    for node in inside:
        if isinstance(node, ast.Assign):
            text = ast.unparse(node.value)
            if _MESSAGE.search(text) or any(f"str({name}.value)" in text for name in names):
                targets = [part for target in node.targets for part in ast.walk(target)]
                names |= {part.id for part in targets if isinstance(part, ast.Name)}
    return names


def _bound(function: ast.FunctionDef, inside: Sequence[ast.AST], constants: Bound) -> Bound:
    """Return the expressions that each name in a function may stand for."""
    bound: Bound = defaultdict(list, {name: [*values] for name, values in constants.items()})
    for call in function.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("parametrize"):
            given = ast.literal_eval(call.args[0])
            names = given if isinstance(given, str) else ", ".join(given)
            _bind(ast.parse(names, mode="eval").body, _rows(call.args[1], constants), bound)
    for node in inside:
        if isinstance(node, ast.For | ast.comprehension):
            _bind(node.target, _rows(node.iter, constants), bound)
        elif isinstance(node, ast.Assign):
            _bind(node.targets[0], [node.value], bound)
    return bound


def _bind(target: ast.expr, values: Sequence[ast.expr], bound: Bound) -> None:
    """Let the names of a target stand for values, each for those at its place."""
    if isinstance(target, ast.Name):
        bound[target.id] += values
    elif isinstance(target, ast.Tuple | ast.List):
        rows = [value.elts for value in values if isinstance(value, ast.Tuple | ast.List)]
        for place, part in enumerate(target.elts):
            _bind(part, [row[place] for row in rows if len(row) > place], bound)


def _rows(node: ast.expr, constants: Bound) -> list[ast.expr]:
    """Return the elements of a literal that is looped over; none for anything else."""
    match node:
        case ast.Name(name):
            return [row for value in constants.get(name, []) for row in _rows(value, {})]
        case ast.Call(ast.Attribute(ast.Dict() as table, "items")):
            pairs = zip(table.keys, table.values, strict=True)
            return [ast.Tuple([key, value]) for key, value in pairs if key is not None]
        case ast.Call(ast.Attribute(ast.Name(name), "items")):
            tables = constants.get(name, [])
            calls = [ast.Call(ast.Attribute(table, "items"), [], []) for table in tables]
            return [row for call in calls for row in _rows(call, {})]
        case ast.Dict():
            return [key for key in node.keys if key is not None]
        case ast.List() | ast.Tuple() | ast.Set():
            return [_row(element) for element in node.elts]
    return []


def _row(element: ast.expr) -> ast.expr:
    """Return a row of a table: of `pytest.param(...)` its values, of `*(row for ...)` that row."""
    match element:
        case ast.Starred(ast.GeneratorExp(row) | ast.ListComp(row)):
            return row
        case ast.Call(ast.Attribute(_, "param"), values):
            return ast.Tuple(values)
    return element


def _texts(node: ast.expr, bound: Bound, depth: int = 4) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each literal that an expression may be."""
    match node:
        case ast.Constant(str(text)):
            yield node.lineno, text
        case ast.JoinedStr(parts):
            texts = (str(part.value) if isinstance(part, ast.Constant) else "0" for part in parts)
            yield node.lineno, "".join(texts)
        case ast.BinOp(left, _, right):
            parts = [text for part in (left, right) for _, text in _texts(part, bound, depth)]
            yield node.lineno, "".join(parts)
        case ast.Name(name) if depth:
            for value in bound.get(name, []):
                yield from _texts(value, bound, depth - 1)
        case ast.Call(ast.Attribute(value), arguments):  # re.escape("..."), "...".format()
            for part in (value, *arguments[:1]):
                yield from _texts(part, bound, depth)
        case ast.IfExp(_, one, other):
            yield from (*_texts(one, bound, depth), *_texts(other, bound, depth))
        case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
            for part in parts:
                yield from _texts(part, bound, depth)
