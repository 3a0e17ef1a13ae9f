"""Docstrings on the site: an extension of griffe, which reads the code and imports none
of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import griffe

TITLES = {"Args": "Arguments", "Returns": "Returns", "Raises": "Raises", "Yields": "Yields"}
SETTINGS = "nearfar.training.settings.Settings"
FIELD = re.compile(r"(`[^`]+`[^:.]{0,30}|[A-Z][\w ()]{0,40}):( \S|$)|Raises [A-Z]|Returns ")
NUMPY_FIELD = re.compile(r"([a-z]\w*(?:, [a-z]\w*)*) : ")
ITEM = re.compile(r"- |\d+\. ")
EXAMPLE = re.compile(r"^>>> (?:.|\n(?!\n|$))*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Turns every docstring into Markdown, and gives functions of the settings the signature that
    they have.
    """

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Change one object of the tree, which is complete."""
        if isinstance(obj, griffe.Function) and any(
            "arguments_of(" in str(decorator.value) for decorator in obj.decorators
        ):
            take_settings(obj, loader.modules_collection[SETTINGS])
        if obj.docstring is not None:
            names = (
                [parameter.name for parameter in obj.parameters]
                if isinstance(obj, griffe.Function)
                else []
            )
            obj.docstring.value = as_markdown(obj.docstring.value, names)


def take_settings(function: griffe.Function, settings: Any) -> None:
    """Do what `nearfar.training.settings.arguments_of` does: parameters and "Args" are those of the
    settings.
    """
    words = griffe.ParameterKind.keyword_only
    parameters, lines = [], []
    for name, annotation, meaning, default in settings_of(settings):
        kind = words if parameters else griffe.ParameterKind.positional_or_keyword
        parameters.append(
            griffe.Parameter(name, annotation=annotation, kind=kind, default=repr(default))
        )
        lines.append(
            f"    {name}: {meaning}." + ("" if default is None else f" Default: {default!r}.")
        )
    _, *own = function.parameters
    parameters += own
    others = griffe.ParameterKind.var_keyword
    parameters.append(griffe.Parameter("hyperparameters", annotation="Any", kind=others))
    lines.append("    hyperparameters: the method's own numbers.")
    function.parameters = griffe.Parameters(*parameters)
    assert function.docstring is not None
    before, after = function.docstring.value.split("Returns:\n", 1)
    before, _, further = before.partition("Args:\n")
    lines += further.rstrip().splitlines()
    function.docstring.value = "\n".join([before + "Args:", *lines, "", "Returns:", after])


def settings_of(settings: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Yield name, annotation, meaning and default of every setting, from the lines of the class."""
    for name, attribute in settings.members.items():
        value = getattr(attribute, "value", None)
        if isinstance(value, griffe.ExprCall) and str(value.function) == "setting":
            placed = [
                ast.literal_eval(str(argument))
                for argument in value.arguments
                if not isinstance(argument, griffe.ExprKeyword)
            ]
            annotation = re.sub(r"^Chosen\[(.*)\]$", r"\1 | None", str(attribute.annotation))
            yield name, annotation, placed[0], placed[1] if len(placed) > 1 else None


def as_markdown(text: str, names: list[str]) -> str:
    """Return a docstring as Markdown: sections as lists, a paragraph for each "name: meaning", no
    sign of its own.

    names: parameters, whose lines "name: meaning" are paragraphs too.
    """
    lines: list[str] = []
    section, code = "", False
    for line in EXAMPLE.sub(r"\n```pycon\n\g<0>\n```", text).splitlines():
        title = re.fullmatch(r"(\w+):", line)
        if title and title[1] in TITLES:
            section = title[1]
            lines += ["", f"**{TITLES[section]}**", ""]
        elif line.startswith("```") or code:
            code = line != "```"
            lines.append(line)
        elif re.fullmatch(r"-{4,}", line) and lines:
            lines[-1:] = ["", f"**{lines[-1]}**", ""]
        elif section and (line.startswith("    ") or not line):
            lines.append(_of_section(plain(line[4:]), section))
        elif line.startswith("    "):  # code
            lines.append(line)
        else:
            section = ""
            lines += _of_text(line, lines[-1] if lines else "", names)
    return "\n".join(lines)


def _of_section(line: str, section: str) -> str:
    """A line of Args or Raises as an item of a list, or the rest of one; of Returns as it is."""
    item = re.match(r"([\w*]+): ", line) if section in ("Args", "Raises") else None
    return f"- `{item[1]}`: {line[item.end() :]}" if item else line.strip()


def _of_text(line: str, before: str, names: list[str]) -> list[str]:
    """A line outside of sections, with an empty one before it where it begins something."""
    if numpy := NUMPY_FIELD.match(line):
        return [f"- `{numpy[1]}`: {plain(line[numpy.end() :])}"]
    item = ITEM.match(line) and not ITEM.match(before) and not before.startswith("  ")
    named = re.match(r"(\w+): ", line)
    begins = item or FIELD.match(line) or (named and named[1] in names)
    return ["", plain(line)] if begins and before else [plain(line)]


def plain(line: str) -> str:
    """Let Markdown read the signs of formulas as they are, outside of code."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"\*|(?<!\w)_|_(?!\w)|<(?=\w)", r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts)
