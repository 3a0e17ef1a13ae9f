"""Values as text and text as values: errors in one clear line, docstrings of arguments, options,
JSON, YAML, stdout.

Messages and docstrings name a parameter as `limit`, `limit=3` or `by='near'`, and a call as
`nearfar.resume('runs/photos')`: Python in backticks. That is what a Python caller reads; the
command line reads `worded(text)`, which has options and commands in their place.
"""

from __future__ import annotations

import ast
import difflib
import errno
import json
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any

LARGEST_SEED = 2**32 - 1  # that scikit-learn takes
LONGEST_NAMES = 500  # characters of names from a file in a message
LONGEST_LINE = 1000  # characters of an error's message that are passed on
OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "unable to allocate",
    "not enough memory",
    "bad_alloc",
)
OF_THREADS = ("can't start new thread", "cannot start new thread", "thread creation failed")
_told: set[str] = set()


class CommandFailed(RuntimeError):
    """A command could not do all of its work; the command line ends with the exit code 1."""


def did_you_mean(
    word: str, known: Iterable[str], otherwise: str = "", most: int = 1, cutoff: float = 0.4
) -> str:
    """Return "did you mean 'NAME'?" with the names of `known` nearest to a word, or `otherwise` if
    none is near.
    """
    near = difflib.get_close_matches(word, list(known), most, cutoff)
    return f"did you mean {' or '.join(repr(name) for name in near)}?" if near else otherwise


def check_range(name: str, value: float | None, least: float, most: float = math.inf) -> None:
    """Raise ValueError for a parameter that is given and not in least..most, or not finite."""
    if value is not None and not (least <= value <= most and abs(value) != math.inf):
        bounds = f"at least {least}" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"`{name}` must be {bounds}, not {value}")


def check_number(
    name: str, value: Any, least: float, most: float = math.inf, is_whole: bool = False
) -> None:
    """Raise ValueError as `check_range` does, and for what is no number, or no whole one."""
    words = f"`{name}` must be {'a whole number' if is_whole else 'a number'}, not {value!r}"
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(words)
    check_range(name, value, least, most)  # type: ignore[arg-type]  # also of NumPy's types
    if is_whole and not isinstance(value, Integral):
        raise ValueError(words)


def check_seed(seed: int) -> None:
    """Raise ValueError for a random seed that scikit-learn does not take."""
    check_range("seed", seed, 0, LARGEST_SEED)


def check_known(kind: str, name: Any, known: Iterable[str], otherwise: str = "") -> None:
    """Raise ValueError for a name that is not known, with the nearest known ones.

    otherwise: said where none is near. Default: all known ones, which are then said in any case.
    """
    known = list(known)
    if name in known:
        return
    near = did_you_mean(str(name), known, otherwise)
    every = "" if otherwise else f"{' T' if near else 't'}here are {', '.join(known)}"
    raise ValueError(f"there is no {kind} {name!r}: {near}{every}")


def check_column(
    source: str, column: str, columns: Iterable[str], purpose: str = " for labels"
) -> None:
    """Raise ValueError for a column that a table does not have, with those that it has."""
    columns = list(columns)
    if column not in columns:
        every = listed_names(columns)
        raise ValueError(f"{source} has no column '{column}'{purpose}; its columns: {every}")


def listed_names(names: Iterable[str]) -> str:
    """Join names from a file, such as those of columns, for one line; "none" without any.

    >>> listed_names(["path", "label"])
    'path, label'
    """
    whole = ", ".join(names)
    shown = " ".join("".join(c if c.isprintable() else " " for c in whole).split()) or "none"
    return shown if len(shown) <= LONGEST_NAMES else f"{shown[: LONGEST_NAMES - 3]}..."


def listed(words: Sequence[str]) -> str:
    """Join words for a sentence: "a, b and c"; "" for none."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def say_once(message: str) -> None:
    """Log a line, the first time that this process has it to say."""
    if message not in _told:
        _told.add(message)
        logging.getLogger("nearfar").info("%s", message)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none.

    Of a very long line, as where a library says what a file holds, the beginning.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."


def lacking(error: BaseException | None) -> str:
    """Return what the machine lacked when an error was raised, "memory", "threads" or "open files";
    "" for other errors.

    The causes of an error count too: libraries raise errors of their own on top of that of the
    system.
    """
    while error is not None:
        text = str(error).lower()
        number = error.errno if isinstance(error, OSError) else None
        if (
            isinstance(error, MemoryError)
            or number == errno.ENOMEM
            or any(map(text.__contains__, OF_MEMORY))
        ):
            return "memory"
        if number in (errno.EMFILE, errno.ENFILE) or "too many open files" in text:
            return "open files"
        if isinstance(error, BlockingIOError) or any(map(text.__contains__, OF_THREADS)):
            return "threads"
        error = error.__cause__ or error.__context__
    return ""


@contextmanager
def raise_as_value_error(prefix: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Turn errors of these kinds into a ValueError of one line that begins with `prefix`.

    kinds: default: any, for decoders, networks and code of the user's, which raise anything. Errors
    of a machine that lacks memory, threads or open files stay as they are, unless the kinds name
    MemoryError: they say nothing of it.
    """
    caught = kinds or (Exception,)
    try:
        yield
    except caught as error:
        if lacking(error) and MemoryError not in kinds:
            raise
        raise ValueError(f"{prefix}: {first_line(error)}") from error


def summary_of(docs: str) -> str:
    """Return the first paragraph of a cleaned docstring, in one line."""
    return " ".join(docs.partition("\n\n")[0].split())


def parse_args_section(docs: str) -> dict[str, str]:
    """Read the section "Args:" of a cleaned docstring: the text after each name, in one line."""
    block = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", docs, re.DOTALL | re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", block[1] if block else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def to_argv(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as options of the command line."""
    words: list[str] = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [
                option,
                *(map(str, value or ["[]"]) if isinstance(value, list | tuple) else [str(value)]),
            ]
    return words


_QUOTED = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
_CODE = re.compile(rf"`(?! )((?:[^`'\"\n]|{_QUOTED})+)`")
_option_names: Callable[[], Collection[str]] | None = None
_offered: Callable[[], Collection[str]] | None = None


@contextmanager
def named_as_options(
    names: Callable[[], Collection[str]], offered: Callable[[], Collection[str]] | None = None
) -> Iterator[None]:
    """Let `worded` write the parameters of these names as options while the context is open.

    offered: those that the command has itself, for `if_offered`.
    """
    global _option_names, _offered
    before, _option_names, _offered = (_option_names, _offered), names, offered
    try:
        yield
    finally:
        _option_names, _offered = before


def if_offered(name: str, advice: str) -> str:
    """Return advice to give a parameter; "" on a command line whose command has no such option.

    >>> with named_as_options(lambda: {"k"}, lambda: {"k"}):
    ...     if_offered("k", "; `k` changes that"), if_offered("n", "; `n` changes that")
    ('; `k` changes that', '')
    """
    return advice if _offered is None or name in _offered() else ""


def worded(text: str) -> str:
    """Return a message as its reader gives parameters: as it is for a Python caller, with options
    and commands inside `named_as_options`.

    >>> with named_as_options(lambda: {"limit", "by"}):
    ...     worded("`limit=3` needs `by='near'`: `nearfar.export(RUN, to='onnx')`")
    '--limit 3 needs --by near: nearfar export RUN --to onnx'
    """
    return text if _option_names is None else as_options(text, _option_names)


def as_options(text: str, names: Callable[[], Collection[str]]) -> str:
    """Return a message with options in place of the parameters of these names, and with commands
    in place of calls of nearfar's functions.
    """
    if "`" not in text:
        return text
    options = names()
    return _CODE.sub(lambda code: _in_shell(code[1], options) or code[0], text)


def _in_shell(code: str, names: Collection[str]) -> str:
    """Return Python code as the command line has it; "" for what is no parameter or call of
    ours.
    """
    try:
        parsed = ast.parse(f"_({code})", mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    match parsed:
        case ast.Call(args=[ast.Name(name)], keywords=[]) if name in names:
            return to_argv({name: True})[0]
        case ast.Call(args=[], keywords=[ast.keyword(str(name), value)]) if name in names:
            return " ".join(to_argv({name: _value_of(value)}))
        case ast.Call(args=[ast.Call(ast.Attribute(ast.Name(package), name), placed, named)]):
            places = [str(_value_of(value)) for value in placed]
            given = {keyword.arg or "": _value_of(keyword.value) for keyword in named}
            command = [name, *places, *to_argv(given)]
            if name == "resume":  # a command of its own in Python alone
                data = [given["data"]] if "data" in given else []
                command = ["pretrain", "--resume", *places, *data]
            return shlex.join(["nearfar", *command]) if package.startswith("nearfar") else ""
    return ""


def _value_of(node: ast.expr) -> Any:
    """Return a literal's value; of a name such as RUN, the name."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def as_json(result: Any, **also: Any) -> str:
    """Return a JSON object in one line: of names with values those, of a path {"path": ...}, else
    {"result": ...}.

    also: further names with values. Numbers that are not finite, which JSON does not have, are
    null.
    """
    value = to_plain(result)
    if not isinstance(value, dict):
        value = {"path" if isinstance(result, PathLike) else "result": value}
    return json.dumps(value | to_plain(also), allow_nan=False)


def to_plain(value: Any) -> Any:
    """Return a value in lists, dictionaries, strings, numbers, booleans and None; what has a
    summary gives that.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, PathLike):
        return fspath(value)
    if hasattr(value, "summary"):
        return to_plain(value.summary())
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):  # of NumPy or torch
        return to_plain(value.tolist())
    return [to_plain(item) for item in value]


class Outlet:
    """A text stream, stdout or stderr, that never ends what writes to it.

    After an error, such as that of a pipe whose reader has gone, `error` holds it and all that
    follows is dropped.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        self._try(lambda: self.stream.write(text))
        return len(text)

    def write_bytes(self, content: bytes) -> None:
        """Write bytes after the text so far, or drop them."""
        self.flush()
        self._try(lambda: self.stream.buffer.write(content))
        self.flush()

    def flush(self) -> None:
        """Hand over what has been written."""
        self._try(self.stream.flush)

    def _try(self, act: Callable[[], object]) -> None:
        if self.error is None:
            try:
                act()
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self.error = error


@contextmanager
def lasting_streams() -> Iterator[Outlet]:
    """Let no error of stdout or stderr end a verb whose files are not written yet; yields stdout.

    Where a shell has closed one of the first three files (>&-), it is opened as nothing first: else
    the next file that is opened would take its number, and all that C writes to stdout would end up
    in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    streams = [
        Outlet(stream or open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr)
    ]
    out, err = streams
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield out
        finally:
            out.flush()
            err.flush()


def read_regular(path: Path) -> str:
    """Return the text of a file; ValueError for pipes and devices, which may never end, and for
    what is no text.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    return path.read_text(encoding="utf-8")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file; ValueError, one line that ends with the remedy, for
    anything else.
    """
    try:
        content = json.loads(read_regular(path))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {first_line(error)}; {remedy}") from error
    return content


def load_yaml(path: Path) -> Any:
    """Return what a YAML file holds.

    Raises yaml.YAMLError or ValueError for other files, for pipes and devices, which may never end,
    for aliases (*name) that make a small file large, and for a name that stands twice, of which
    parsers take the last.
    """
    return _parse_yaml(read_regular(path))


def _parse_yaml(text: str) -> Any:
    import yaml

    fast = _fast_yaml_loader()
    if fast is not None:
        with suppress(yaml.YAMLError):  # of which the parser in Python says more
            return _document(fast(text), len(text))
    return _document(yaml.SafeLoader(text), len(text))


@cache
def _fast_yaml_loader() -> Any:
    """Return PyYAML's safe loader on the parser of libyaml, None where that is missing.

    Nodes are composed in Python, as yaml.CSafeLoader does not: in deep nesting that raises
    RecursionError, and ends no process.
    """
    import yaml
    from yaml.composer import Composer
    from yaml.constructor import SafeConstructor
    from yaml.resolver import Resolver

    if not yaml.__with_libyaml__:
        return None
    from yaml.cyaml import CParser

    class Loader(Composer, CParser, SafeConstructor, Resolver):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    return Loader


def _document(loader: Any, length: int) -> Any:
    """Return what a loader of YAML gives for a text of so many characters."""
    most, known = 10_000 + 10 * length, dict[int, int]()

    def size(node: Any) -> int:
        """Characters and nodes of a document with its aliases written out."""
        if id(node) not in known:
            known[id(node)] = most  # where it holds itself
            _check_names_of(node)
            parts = [
                part
                for entry in node.value
                for part in (entry if isinstance(entry, tuple) else [entry])
            ]
            known[id(node)] = 1 + sum(1 if isinstance(part, str) else size(part) for part in parts)
            if known[id(node)] > most:
                raise ValueError(
                    "its aliases (*name) stand for far more than the file holds; write it "
                    "without them"
                )
        return known[id(node)]

    node = loader.get_single_node()
    if node is None:
        return None
    size(node)
    return loader.construct_document(node)


def _check_names_of(node: Any) -> None:
    """Check that no name stands twice in a part of a YAML file; of other parts than names with
    values nothing.
    """
    lines: dict[str, int] = {}
    for key, _ in node.value if node.id == "mapping" else ():
        if key.id == "scalar" and key.tag != "tag:yaml.org,2002:merge":
            name, line = f"{key.tag} {key.value}", key.start_mark.line + 1
            if name in lines:
                raise ValueError(
                    f"{key.value!r:.60} stands twice, in lines {lines[name]} and {line}"
                )
            lines[name] = line


def dump_yaml(values: Any) -> str:
    """Return plain values as YAML that `load_yaml` gives back as they are."""
    import yaml

    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    # PyYAML does not read back all that it writes of texts with U+0085 or U+2028
    same = text.isascii() or _parse_yaml(text) == values
    return text if same else yaml.safe_dump(values, sort_keys=False)
