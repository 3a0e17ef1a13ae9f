"""The command line: from words to the call of a verb, and from its result or error to lines and an
exit code.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError
from cyclopts.config import Dict

import nearfar
from nearfar.allocator import reuse_memory
from nearfar.app import (
    command_line,
    command_paths,
    function_of,
    lists_paths,
    offered_by,
    opens_images,
    parameters_in_messages,
    pretrain_app,
)
from nearfar.atomic import NotWrittenError
from nearfar.messages import (
    CommandFailed,
    Outlet,
    as_json,
    did_you_mean,
    first_line,
    lacking,
    lasting_streams,
    named_as_options,
    worded,
)
from nearfar.progress import READ

SHORT_OF = {
    "memory": "out of memory: try --micro-batch auto, or a smaller --batch-size or "
    "--image-size, or end other programs",
    "threads": "the machine gives no more threads or processes: raise its limit (ulimit "
    "-u), or end other programs",
    "open files": "the machine opens no more files: raise its limit (ulimit -n), or end "
    "other programs",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, 1 for a failed run, 2 for a mistake or 130 for one that was
    stopped.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with lasting_streams() as out:
        code = _answered(words)
    return _ended(code, out)


def _answered(words: list[str]) -> int:
    """Carry out a command, and with --json print its one object."""

    def ahead(*, json: bool = False, help: bool = False, help_all: bool = False) -> None: ...

    given = _ahead(ahead, words)
    with warnings.catch_warnings():
        warnings.showwarning = _warn  # type: ignore[assignment]
        if not given.pop("json", False) or given:
            return _carry_out(words)[0]
        before = READ.set([])
        with _stdout_to_stderr():
            code, result = _carry_out(words, machine=True)
        read = READ.get()
        READ.reset(before)
    processes = sys.modules.get("nearfar.training.processes")
    if processes is None or not processes.is_follower():  # else the first process prints it
        print(as_json(result, **({"read": read} if read else {})))
    return code


def _ended(code: int, out: Outlet) -> int:
    """Return the exit code of a command whose files are all written, where stdout may have
    failed.
    """
    if out.error is None:
        return code
    with contextlib.suppress(
        OSError, ValueError, AttributeError
    ):  # else Python tries again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.stream.fileno())
    if isinstance(
        out.error, BrokenPipeError
    ):  # of `| head`: nobody reads on, so that nothing is said either
        return code or 141
    why = getattr(out.error, "strerror", None) or first_line(out.error)
    return code or _complain(f"cannot write to stdout: {why}", 1)[0]


def _ahead(options: Callable[..., None], words: Sequence[str]) -> dict[str, Any]:
    """Parse the options of a function alone, on which depends how the others are parsed; returns
    those that are given.
    """
    app = App(default_command=options, help_flags=(), version_flags=())
    with contextlib.suppress(CycloptsError):  # the command's parser reports the same error
        return dict(app.parse_known_args(words)[1].arguments)
    return {}


def _carry_out(words: list[str], machine: bool = False) -> tuple[int, Any]:
    """Return the exit code, and what the verb returned or {"error": ...}. machine: paths do not go
    to stdout.
    """
    verb = words[0] if words else "--help"
    if verb in ("--help", "-h", "--version"):
        return 0, command_line(summaries=verb != "--version")([verb])
    if verb not in (known := command_paths()):
        return _complain(
            f"there is no command {verb!r}: {did_you_mean(verb, known, 'see nearfar --help')}", 2
        )
    with contextlib.suppress(AttributeError):
        # for names that are not text
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with named_as_options(partial(parameters_in_messages, verb), partial(offered_by, verb)):
        return _run(verb, words[1:], machine)


def _run(verb: str, words: list[str], machine: bool) -> tuple[int, Any]:
    """Run a verb; returns as `_carry_out` does."""
    try:
        reuse_memory()  # before anything is imported that might make a tensor
        call = _parsed(verb, words)
        if call is None:  # the help was printed
            return 0, None
        result = _called(verb, call, machine)
        return int(verb == "doctor" and bool(result) and bool(result["problems"])), result
    except CycloptsError as error:
        error.verbose = False
        return _complain(f"{error} See nearfar {verb} --help", 2)
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> tuple[int, Any]:
    """Report an error of a verb in one line, with its exit code; what nobody foresaw below its
    traceback.
    """
    try:
        from nearfar.training.loop import TrainingDiverged, TrainingStopped
        from nearfar.training.processes import ProcessLost, is_follower
    except (
        ImportError,
        RuntimeError,
        OSError,
    ) as broken:  # RuntimeError: a torchvision of another torch
        remedy = "a package is missing or broken: pip install --force-reinstall nearfar"
        return _complain(f"{first_line(broken)}; {remedy}", 1)
    if isinstance(error, NotWrittenError | TrainingDiverged | ProcessLost | CommandFailed):
        return _complain(error, 1)
    if not isinstance(error, ValueError) and (resource := lacking(error)):
        return _complain(f"{SHORT_OF[resource]} ({first_line(error)[:200]})", 1)
    if isinstance(error, ValueError | OSError):
        return _complain(error, 2)
    if isinstance(error, TrainingStopped):  # all processes stop together; the first one says so
        return (130, None) if is_follower() else _complain(error, 130)
    traceback.print_exception(error)
    description = f"{type(error).__name__}: {first_line(error)[:200]}"
    return _complain(
        f"{description}. This is a defect of nearfar {nearfar.__version__}; please report it with "
        f"the above",
        1,
    )


def _parsed(verb: str, words: list[str]) -> dict[str, Any] | None:
    """Return the arguments that words give to a verb; None after printing its help."""
    values: dict[str, Any] = {}
    apps = []
    if verb == "pretrain":
        values, app = _pretrain(words)
        apps = [app]
    command, bound, _ = command_line(*apps).parse_args(
        [verb, *words], exit_on_error=False, print_error=False
    )
    if getattr(command, "__func__", None) is App.help_print:
        command(*bound.args, **bound.kwargs)
        return None
    values |= bound.arguments
    values |= values.pop("settings", {}) | values.pop("hyperparameters", {})
    if isinstance(values.get("images"), tuple):
        values["images"] = list(values["images"])
    if isinstance(values.get("data"), list | tuple):
        values["data"] = values["data"][0] if len(values["data"]) == 1 else list(values["data"])
    return values


def _pretrain(words: list[str]) -> tuple[dict[str, Any], App]:
    """Return what --config holds that no word can give, and `pretrain` with the hyperparameters of
    the method.
    """

    def ahead(
        *,
        method: str | None = None,
        recipe: str | None = None,
        config: str | None = None,
        help: bool = False,
        help_all: bool = False,
    ) -> None: ...

    given = _ahead(ahead, words)
    values, others = _configured(given.get("config"))
    method, recipe = (
        given.get(name) or (values | others).get(name) for name in ("method", "recipe")
    )
    # the short page needs none
    methods = [str(method)] if method else [] if "help" in given else None
    app = pretrain_app(methods, recipe and str(recipe), "help_all" in given)
    app.config = (Dict(others, source=given.get("config"), use_commands_as_keys=False),)
    return values, app


def _called(verb: str, values: dict[str, Any], machine: bool) -> Any:
    """Call the function of a verb, and print its list of files where the output is piped."""
    from rich.console import Console

    from nearfar.rendering import shown_on
    from nearfar.training.processes import is_follower

    values.pop("json", None)
    values.pop("config", None)
    if opens_images(verb) and (most := values.pop("max_pixels", None)) is not None:
        from nearfar.data.decoding import raise_pixel_limit

        raise_pixel_limit(most)
    end = "\0" if values.pop("null", False) else "\n"
    # then paths alone go to stdout
    piped = lists_paths(verb) and not machine and not sys.stdout.isatty()
    console = Console(soft_wrap=True, quiet=is_follower(), stderr=piped or machine)
    with shown_on(console):
        result = _result_of(verb, values)
    if piped:
        from nearfar.tools.result import paths_for_stdout

        outlet: Any = sys.stdout  # an `Outlet`
        outlet.write_bytes(paths_for_stdout(result.piped(), end))
    return result


def _result_of(verb: str, values: dict[str, Any]) -> Any:
    """Call the function of a verb; that of `pretrain --resume` is `resume`."""
    run, data_changed = values.pop("resume", None), values.pop("data_changed", False)
    if run is not None:
        if values.keys() - {"data", "accelerator", "devices", "threads", "epochs"}:
            its = "DATA, --epochs, --accelerator, --devices, --threads and --data-changed"
            raise ValueError(f"--resume takes everything but {its} from the run folder")
        return nearfar.resume(run, **values, data_changed=data_changed)
    if data_changed:
        raise ValueError("--data-changed goes with --resume")
    return function_of(verb)(**values)


def _configured(file: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the settings of a YAML file: what can be an object as it is, and the rest to be
    parsed.
    """
    from nearfar.training.settings import OBJECTS, Described, read_value, read_yaml

    given = read_yaml(Path(file)) if file is not None else {}
    values = {
        name: read_value(name, value)
        for name, value in given.items()
        if name in OBJECTS or value is None
    }
    for name, value in values.items():
        if isinstance(value, Described):
            raise ValueError(
                f"the {name} of {file} was an object ({value.words}): run it in Python"
            )
    return values, {name: value for name, value in given.items() if name not in values}


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send to stderr what is written to stdout meanwhile, by C++ and by processes that are started
    as well.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _complain(error: object, code: int) -> tuple[int, dict[str, str]]:
    """Print one line, without the number of an OSError."""
    message = worded(re.sub(r"^\[Errno \d+\] ", "", str(error)))
    line = _one_line(message or type(error).__name__)
    print(f"nearfar: {line}", file=sys.stderr)
    return code, {"error": line}


def _warn(message: Warning | str, *_: object) -> None:
    """Show a warning of a library as one line, without its source."""
    print(f"nearfar: warning: {_one_line(worded(str(message)))}", file=sys.stderr)


def _one_line(words: str) -> str:
    """Write text as a terminal can show it in one line: no line breaks, no control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(words.split()))
