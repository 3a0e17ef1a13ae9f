"""The command line: one verb for each function of `nearfar.commands.api`, with the options of its signature."""

from __future__ import annotations

import difflib
import logging
import re
import sys
from argparse import ArgumentError, HelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from rich.console import Console

from nearfar import __version__
from nearfar.commands import api
from nearfar.commands.demo import demo
from nearfar.methods import Method, method_class
from nearfar.training import TrainingStopped, is_follower

VERBS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "pretrain": (api.pretrain, ("data",)),
    "evaluate": (api.evaluate, ("run", "data")),
    "embed": (api.embed, ("run", "data")),
    "map": (api.map, ("run", "data")),
    "methods": (api.methods, ()),
    "demo": (demo, ()),
}


LISTS = ("--protocol", "--projector", "--predictor")


class _Parser(ArgumentParser):
    """Shows options with dashes, as they are written on the command line."""

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        return re.sub(r"--[a-z][\w]*", lambda match: match[0].replace("_", "-"), super().format_help(formatter))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, 1 for a run that failed, 2 for a mistake or 130 for one that was stopped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(soft_wrap=True, quiet=is_follower())
    handler = logging.StreamHandler(console.file)
    logging.getLogger("nearfar").handlers = [handler]
    logging.getLogger("nearfar").setLevel(logging.WARNING if is_follower() else logging.INFO)
    try:
        if not words or words[0] in ("-h", "--help"):
            console.print(_overview(), highlight=False)
        elif words[0] == "--version":
            print(__version__)
        else:
            _run(words[0], words[1:], console)
        return 0
    except (ValueError, OSError, ArgumentError) as error:
        return _complain(error, 2)
    except TrainingStopped as error:
        return 130 if is_follower() else _complain(error, 130)  # all processes stop together; the first one says so
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    except RuntimeError as error:
        return _complain(error, 1)


def _run(verb: str, words: list[str], console: Console) -> None:
    if verb not in VERBS:
        raise ValueError(f"there is no command {verb!r}{_nearest(verb, VERBS)}; see nearfar --help")
    function, positionals = VERBS[verb]
    words = [re.sub(r"^--[\w-]+", lambda match: "--" + match[0][2:].replace("-", "_"), word) for word in words]
    words = _lists_joined(words)
    chosen = _chosen(words)
    parser = build_parser(verb, chosen["method"], chosen["recipe"], chosen["data"])
    try:
        parsed = parser.parse_args(words)
    except ArgumentError as error:
        raise ValueError(_plain_words(str(error), verb, parser)) from error
    settings = parsed.as_dict()
    if settings.get("resume") is not None:
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        if options - {"--resume", "--devices"} or settings["data"] is not None:
            raise ValueError("--resume takes everything but --devices from the run folder; give it alone")
        settings = {"data": None, "resume": settings["resume"], "devices": settings["devices"]}
    settings.pop("config", None)
    given = [settings.pop(name) for name in positionals]
    if verb != "pretrain" and positionals and given[0] is None:
        raise ValueError(f"name the run folder: nearfar {verb} RUN")
    function(*given, **settings, console=console)


def build_parser(verb: str, method: str = "saclr", recipe: str = "small", data: str | None = None) -> ArgumentParser:
    """Build the parser of a verb; that of `pretrain` also has the numbers of the method, as the recipe sets them."""
    function, positionals = VERBS[verb]
    summary = (function.__doc__ or "").split("\n")[0]
    parser = _Parser(prog=f"nearfar {verb}", exit_on_error=False, description=summary)
    for name in positionals:
        parser.add_argument(name, nargs="?", default=data if name == "data" else None, help=_help_of(function, name))
    skipped: set[str | int] = {*positionals, "console", "hyperparameters"}
    parser.add_function_arguments(function, skip=skipped, fail_untyped=False)
    if verb == "pretrain":
        parser.add_argument("--config", action="config", help="YAML file with any of these settings")
        chosen: type[Method] = method_class(method)
        if recipe not in chosen.recipes:
            raise ValueError(f"{method} has no recipe {recipe!r}, it has: {', '.join(chosen.recipes)}")
        parser.add_class_arguments(chosen)
        parser.set_defaults({"method": method, "recipe": recipe, **chosen.recipes[recipe].hyperparameters})
    return parser


def _lists_joined(words: Sequence[str]) -> list[str]:
    """Join what follows an option that takes a list, `--protocol knn linear`, to the one word [knn, linear]."""
    joined: list[str] = []
    taken: list[str] | None = None
    for word in [*words, "--"]:
        if taken is not None and not word.startswith("--"):
            taken.append(word)
            continue
        if taken:
            joined.append(taken[0] if taken[0].startswith("[") else f"[{', '.join(taken)}]")
        taken = [] if word in LISTS else None
        joined.append(word)
    return joined[:-1]


def _chosen(words: Sequence[str]) -> dict[str, Any]:
    """Look for method and recipe ahead of parsing, since the options depend on them, and for the data of --config."""
    chosen: dict[str, Any] = {"method": "saclr", "recipe": "small", "data": None}
    options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    options |= {
        words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--") and "=" not in words[i]
    }
    if "--config" in options and Path(options["--config"]).is_file():
        settings = yaml.safe_load(Path(options["--config"]).read_text())
        chosen |= {name: settings[name] for name in chosen if isinstance(settings, dict) and name in settings}
    return chosen | {name: options[f"--{name}"] for name in chosen if f"--{name}" in options}


def _plain_words(message: str, verb: str, parser: ArgumentParser) -> str:
    """Turn a parser's complaint into one line."""
    unknown = re.search(r"unrecognized arguments: (\S+)", message)
    if unknown:
        options = [option for action in parser._actions for option in action.option_strings]
        return f"nearfar {verb} does not know {_dashes(unknown[1])}{_nearest(unknown[1], options)}"
    key = re.search(r'[Kk]ey "([\w.]+)"', message)
    value = re.search(r"(?:Given value|Got value): (.*)", message)
    if key and value:
        return f"--{_dashes(key[1])} cannot be {value[1]!r}; see nearfar {verb} --help"
    return " ".join(message.split())


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), 1, 0.5)
    return f": did you mean {_dashes(near[0])}?" if near else ""


def _dashes(option: str) -> str:
    return option.replace("_", "-")


def _help_of(function: Callable[..., Any], name: str) -> str:
    found = re.search(rf"^\s+{name}: (.*)$", function.__doc__ or "", re.MULTILINE)
    return found[1] if found else ""


def _overview() -> str:
    lines = [f"  {verb:10} {(function.__doc__ or '').splitlines()[0]}" for verb, (function, _) in VERBS.items()]
    return "\n".join(
        ["nearfar: contrastive representation learning for images", "", *lines, "", "nearfar VERB --help tells more."]
    )


def _complain(error: object, code: int) -> int:
    print(f"nearfar: {' '.join(str(error).split())}", file=sys.stderr)
    return code
