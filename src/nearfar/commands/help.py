"""The pages of --help: options in groups, in the order in which people need them, the methods' own numbers last."""

from __future__ import annotations

import ast
import re
from argparse import SUPPRESS, ArgumentParser, HelpFormatter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nearfar.commands.declared import PACKAGE, VERBS, Option, Verb

SHORT, FULL = ("-h", "--help"), "--help-all"
GROUPS: dict[str, tuple[str, str]] = {
    "Data": (
        "data limit split image_size",
        "channels value_range show_channels stream steps_per_epoch stream_buffer mean std held_out cache workers",
    ),
    "Budget and hardware": (
        "minutes epochs batch_size micro_batch devices",
        "precision accelerator threads sync_batch_norm",
    ),
    "Method and encoder": ("method encoder init adapt", "recipe small_stem whiten layer_decay frozen"),
    "Views": ("views crop_size", ""),
    "Optimisation": (
        "lr",
        "optimizer final_lr lr_drops lr_drop vector_lr weight_decay decay_all warmup_epochs warmup_start clip_gradient",
    ),
    "Checkpoint and output": ("out resume config seed", "data_changed log_every health_every tensorboard"),
}
"""Settings of `pretrain` by group: those on the short page, then the others. What is in none joins the last."""
LAST = "Checkpoint and output"
JSON = Option("json", "print one JSON object on stdout, and all else on stderr", "bool", False)
ALL = Option("help_all", "all settings, and the numbers of every method; with --method NAME of that one", "bool", False)


def overview() -> str:
    """List the verbs by the first lines of their files."""
    lines = []
    for verb in VERBS:
        source = (PACKAGE / "commands" / f"{verb}.py").read_text(encoding="utf-8")
        lines.append(f"  {verb:10} {(ast.get_docstring(ast.parse(source)) or '').splitlines()[0]}")
    return "\n".join(
        [
            "nearfar: contrastive representation learning for images",
            "",
            *lines,
            "",
            "nearfar VERB --help tells more. With --json a verb prints one JSON object for other programs.",
            "A flag such as --adapt stands alone or before true or false; what follows -- is no option.",
        ]
    )


def help_page(verb: Verb, numbers: Iterable[tuple[str, Sequence[Option]]] = ()) -> str:
    """Return the page of a verb; with the numbers of methods, by title, the full one of `pretrain`."""
    numbers = list(numbers)
    if verb.name == "pretrain":
        groups = _groups(verb.options, full=bool(numbers))
        groups[LAST] += [JSON] if numbers else [JSON, ALL]
    else:
        groups = {"Options": [*sorted(verb.options, key=lambda option: option.name not in verb.places), JSON]}
    pages: list[Mapping[str, Iterable[Option]]] = [groups, *({title: options} for title, options in numbers)]
    examples = "\n".join(f"  {line}" for line in verb.examples)
    parts = [_usage(verb), verb.summary, examples, *(_sections(page, verb.places) for page in pages)]
    return "\n\n".join(filter(None, parts))


def _usage(verb: Verb) -> str:
    words = [f"nearfar {verb.name}"]
    for option in verb.options:
        word, place = option.name.upper(), verb.places.get(option.name)
        if place is not None:
            words.append(f"[{word} ...]" if place.endswith(".") else word if option.required else f"[{word}]")
        elif option.required:
            words.append(f"--{option.name} {_metavar(option)}")
    return " ".join([*words, "[options]"])


def numbers_of(method: str | None, recipe: str | None) -> Iterator[tuple[str, list[Option]]]:
    """Yield the numbers of a method, or of all, with their defaults in a recipe, by a title for a page.

    Raises ValueError for an unknown method or recipe.
    """
    from nearfar.methods import describe, method_class, method_names

    for name in [method] if method else method_names():
        kind, of = method_class(name), recipe if method and recipe else "small"
        meanings = describe(kind)["meanings"]
        chosen = vars(kind.from_recipe(of))
        options = [
            Option(key, meanings.get(key, ""), "list" if isinstance(value, tuple) else type(value).__name__, value)
            for key, value in chosen.items()
        ]
        yield f"--method {name}" + (f" --recipe {of}" if of != "small" else ""), options


def add_option(parser: Any, option: Option, place: str = "") -> Any:
    """Add an option, or what is given by a place, to a parser of argparse or a group of one; returns the action."""
    flag, said = f"--{option.name.replace('_', '-')}", _meaning(option).replace("%", "%%")
    if place:
        nargs = "*" if place.endswith(".") else "?"
        return parser.add_argument(option.name, nargs=nargs, metavar=option.name.upper(), help=said)
    if "bool" in option.annotation and option.default is False:
        return parser.add_argument(flag, action="store_true", help=said)
    several = any(word in option.annotation for word in ("list", "Sequence"))
    return parser.add_argument(flag, nargs="+" if several else None, metavar=_metavar(option), help=said)


def _groups(options: Iterable[Option], full: bool) -> dict[str, list[Option]]:
    left = {option.name: option for option in options}
    groups = {}
    for title, (usual, others) in GROUPS.items():
        wanted = [left.pop(name) for name in f"{usual} {others}".split()]
        groups[title] = wanted if full else wanted[: len(usual.split())]
    groups[LAST] += left.values() if full else []
    return groups


def _sections(groups: Mapping[str, Iterable[Option]], places: Mapping[str, str]) -> str:
    parser = ArgumentParser(usage=SUPPRESS, add_help=False, formatter_class=_formatter)
    for title, options in groups.items():
        group = parser.add_argument_group(title)
        for option in options:
            add_option(group, option, places.get(option.name, ""))
    return parser.format_help().strip()


def _formatter(prog: str) -> HelpFormatter:
    return HelpFormatter(prog, max_help_position=24)


def _metavar(option: Option) -> str:
    if "bool" in option.annotation:
        return "{true,false}"
    kinds = {"int": "N", "float": "X"}
    number = next((kinds[word] for word in re.findall(r"\w+", option.annotation) if word in kinds), None)
    words = "{" + ",".join(option.choices) + "}" if option.choices else option.name.split("_")[-1].upper()
    return number or words


def _meaning(option: Option) -> str:
    """What an option means to who cannot give an object, and its default."""
    said = re.sub(r"[;.] [iI]n Python also .*?(?=\. |\.?$)", "", option.meaning).rstrip(".")
    given = option.default is not None and option.default is not False and option.default not in ("", ())
    if not given or "Default:" in said:
        return said
    value = " ".join(map(str, option.default)) if isinstance(option.default, tuple) else str(option.default)
    return f"{said}. Default: {value.lower() if isinstance(option.default, bool) else value}"
