"""The command line: one verb for each file of `nearfar.commands`, with the options of its function's signature."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import logging
import re
import sys
import tempfile
import traceback
import warnings
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nearfar import __version__
from nearfar.allocator import reuse_memory
from nearfar.atomic import NotWrittenError
from nearfar.commands.declared import LISTING, OBJECTS, VERBS, read_verb
from nearfar.commands.help import FULL, SHORT, help_page, numbers_of, overview
from nearfar.commands.machine_readable import as_json, stdout_to_stderr
from nearfar.commands.words import (
    PLACE,
    ahead,
    chosen_ahead,
    data_joined,
    lists_joined,
    nearest,
    places_first,
    plain_words,
)
from nearfar.messages import RunsFailed, first_line

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser
    from rich.console import Console

ALONE: dict[str, Any] = {"type": bool, "nargs": "?", "const": True}  # --private is --private true


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, 1 for a run that failed, 2 for a mistake or 130 for one that was stopped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = ahead(words)
    with warnings.catch_warnings():
        warnings.showwarning = _warn  # type: ignore[assignment]
        if "--json" not in options or {*SHORT, FULL} & {*options}:
            return _carry_out(words)[0]
        with stdout_to_stderr():
            others = [word for word in options if word != "--json"]
            code, result = _carry_out([*others, *words[len(options) :]], machine=True)
    training = sys.modules.get("nearfar.training")
    if training is None or not training.is_follower():  # else the first process tells it
        print(as_json(result))
    return code


def _carry_out(words: list[str], machine: bool = False) -> tuple[int, Any]:
    """Return the exit code, and what the verb returned or {"error": ...}. machine: paths do not go to stdout."""
    if not words or words[0] in (*SHORT, FULL):
        print(overview())
        return 0, None
    if words[0] == "--version":
        print(__version__)
        return 0, __version__
    if words[0] not in VERBS:
        return _complain(f"there is no command {words[0]!r}: {nearest(words[0], VERBS, 'see nearfar --help')}", 2)
    if {*SHORT} & {*ahead(words)}:
        print(help_page(read_verb(words[0])))
        return 0, None

    try:
        reuse_memory()  # before anything is imported that might make a tensor
        from rich.console import Console

        from nearfar.training import ProcessLost, TrainingDiverged, TrainingStopped, is_follower
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: a torchvision of another torch
        how = "a package is missing or broken: pip install --force-reinstall nearfar"
        return _complain(f"{first_line(error)}; {how}", 1)

    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # for names that are not text
    piped = words[0] in LISTING and not machine and not sys.stdout.isatty()  # then paths alone go to stdout
    console = Console(soft_wrap=True, quiet=is_follower(), stderr=piped or machine)
    logging.getLogger("nearfar").handlers = [logging.StreamHandler(console.file)]
    logging.getLogger("nearfar").setLevel(logging.WARNING if is_follower() else logging.INFO)
    try:
        result = _run(words[0], words[1:], console, piped)
        return int(words[0] == "doctor" and bool(result["problems"])), result
    except (NotWrittenError, TrainingDiverged, ProcessLost, RunsFailed) as error:
        return _complain(error, 1)
    except (ValueError, OSError, ArgumentError) as error:
        return _complain(error, 2)
    except TrainingStopped as error:  # all processes stop together; the first one says so
        return (130, None) if is_follower() else _complain(error, 130)
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    except Exception as error:
        return _complain(_defect(words, error), 1)


def _run(verb: str, words: list[str], console: Console, piped: bool) -> Any:
    options = ahead(words)
    behind = words[len(options) + 1 :]
    words = [re.sub(r"^--[\w-]+", lambda match: "--" + match[0][2:].replace("-", "_"), word) for word in options]
    words = data_joined(lists_joined(words))
    chosen = chosen_ahead(words)
    if "--help_all" in words:
        numbers = numbers_of(chosen["method"], chosen["recipe"]) if verb == "pretrain" else ()
        return print(help_page(read_verb(verb), numbers))
    parser = build_parser(verb, chosen["method"], chosen["recipe"], chosen["data"])
    null = verb in LISTING and "--null" in words
    words = [word for word in words if not (null and word == "--null")]
    flags = {option for action in parser._actions if action.nargs == "?" for option in action.option_strings}
    try:
        values = parser.parse_args(places_first(words, behind, flags)).as_dict()
    except ArgumentError as error:
        raise ValueError(plain_words(str(error), verb, parser)) from error
    for name in (place.rstrip(".") for place in VERBS[verb][1]):
        if isinstance(given := values[name], str | list):
            plain = [word.removeprefix(PLACE) for word in ([given] if isinstance(given, str) else given)]
            values[name] = plain[0] if isinstance(given, str) else plain
    values.pop("config", None)
    if "data..." in VERBS[verb][1] and isinstance(values["data"], list) and len(values["data"]) < 2:
        values["data"] = (values["data"] or [None])[0]
    if verb == "pretrain" and values["resume"] is not None:
        return _resume(words, values, console)
    if values.pop("data_changed", False):
        raise ValueError("--data-changed goes with --resume")
    values.pop("resume", None)
    values.pop("null", None)
    given = [values.pop(name.rstrip(".")) for name in VERBS[verb][1]]
    if VERBS[verb][1][:1] == ("run",) and given[0] is None:
        raise ValueError(f"name the run folder: nearfar {verb} RUN")
    result = function_of(verb)(*given, **values, console=console)
    if piped:
        from nearfar.commands.listing import for_pipes

        sys.stdout.flush()
        sys.stdout.buffer.write(for_pipes(result, "\0" if null else "\n"))
    return result


def _resume(words: list[str], values: dict[str, Any], console: Console) -> Any:
    from nearfar.commands.pretrain import resume

    options = {word.split("=")[0] for word in words if word.startswith("--")}
    if options - {"--resume", "--devices", "--threads", "--data_changed"}:
        its = "DATA, --devices, --threads and --data-changed"
        raise ValueError(f"--resume takes everything but {its} from the run folder")
    own = {name: values[name] for name in ("data", "devices", "threads", "data_changed")}
    return resume(values["resume"], **own, console=console)


def function_of(verb: str) -> Callable[..., Any]:
    """Import the function behind a verb."""
    return getattr(importlib.import_module(f"nearfar.commands.{verb}"), VERBS[verb][0])


def build_parser(
    verb: str, method: str | None = None, recipe: str | None = None, data: str | list[str] | None = None
) -> ArgumentParser:
    """Build the parser of a verb; that of `pretrain` also has the numbers of the method, as the recipe sets them."""
    from jsonargparse import ArgumentParser

    function, positionals = function_of(verb), VERBS[verb][1]
    parameters = inspect.signature(function).parameters
    parser = ArgumentParser(prog=f"nearfar {verb}", exit_on_error=False, allow_abbrev=False)
    for placed in positionals:
        name = placed.rstrip(".")
        usual = parameters[name].default
        default = data if verb == "pretrain" else None if usual is inspect.Parameter.empty else usual
        parser.add_argument(name, nargs="*" if placed != name else "?", default=default)
    if verb in LISTING:
        parser.add_argument("--null", action="store_true")
    if verb == "pretrain":
        from nearfar.commands.signature import add_settings
        from nearfar.training import Settings

        parser.add_argument("--config", action="config")
        parser.add_argument("--resume", type=str | None)
        parser.add_argument("--data_changed", **ALONE, default=False)
        add_settings(parser, method or Settings.method, recipe or Settings.recipe)
        return parser
    flags = {name: one.default for name, one in parameters.items() if one.annotation in ("bool", bool)}
    for name, default in flags.items():
        parser.add_argument(f"--{name}", **ALONE, default=default)
    skipped: set[str | int] = {*(name.rstrip(".") for name in positionals), *(OBJECTS - {verb}), *flags}
    for name, one in parameters.items():
        if one.annotation in ("Any", Any) and name not in skipped:  # words: 007 is a name, and no number
            parser.add_argument(f"--{name}", type=list[str] | str, default=one.default)
            skipped.add(name)
    parser.add_function_arguments(function, skip=skipped, fail_untyped=False)
    return parser


def _defect(words: list[str], error: Exception) -> str:
    """Say what nobody foresaw, in one line, and where the rest is."""
    told = f"{type(error).__name__}: {first_line(error)[:200]}"
    if isinstance(error, MemoryError) or "out of memory" in told or "can't allocate memory" in told:
        return f"out of memory ({told}); try --micro-batch auto, or a smaller --batch-size or --image-size"
    try:
        number, name = tempfile.mkstemp(prefix="nearfar-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"nearfar {__version__}, Python {sys.version}, {sys.platform}\n{words}\n")
            traceback.print_exception(error, file=file)
        rest = f"with {name}, which holds the traceback"
    except OSError as unwritten:
        rest = f"and how to get there (the traceback could not be written: {unwritten})"
    return f"{told}. This is a defect of nearfar; please report it {rest}"


def _complain(error: object, code: int) -> tuple[int, dict[str, str]]:
    """Print one line, without the number of an OSError."""
    line = _one_line(re.sub(r"^\[Errno \d+\] ", "", str(error)) or type(error).__name__)
    print(f"nearfar: {line}", file=sys.stderr)
    return code, {"error": line}


def _warn(message: Warning | str, *_: object) -> None:
    """Show a warning of a library as one line, without its source."""
    print(f"nearfar: warning: {_one_line(str(message))}", file=sys.stderr)


def _one_line(words: str) -> str:
    """Write text as a terminal can show it in one line: no line breaks, no control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(words.split()))
