"""A tool: a function of embeddings, from which its command, its method and its place are made.

    @tool(page="brightest")
    def brightest(photos: Embeddings, *, n: int = 10) -> Result:
        ...

is `photos.brightest(n=5)` for `Embeddings` and for a `Run`, and `nearfar.brightest("photos/", n=5)`
and `nearfar brightest photos/ --n 5` for a run, a folder or a file of vectors.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import EntryPoint
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from nearfar import plugins
from nearfar.isolation import isolated
from nearfar.messages import LARGEST_SEED, check_number, to_argv

COMMON = {
    "target": "run folder; or, without one, the data itself, or a file of vectors made elsewhere "
    "(docs/neighbours.md). In Python also `Embeddings`.",
    "out": "page to write, .html, with {beside} beside it; none may exist. Default: {default}.",
    "encoder": "for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar "
    "or a folder. Default: {features}. In Python also the trained module of a run, if it was an "
    "object of your own.",
    "label_column": "column of the data with the labels. Default: one of a usual name, such as "
    "label.",
    "engine": '"ray" divides the work among processes, of this machine or of a cluster, and goes '
    "on from where a job died (docs/scaling.md). Default: this process does it all.",
    "workers": "processes of the engine. Default: one for each core.",
}
KINDS = {
    "target": (Any, Parameter.empty),
    "data": (Any, None),
    "split": (str | None, None),
    "label_column": (str | None, None),
    "encoder": ("str | nn.Module | None", None),
    "out": (str | Path | None, None),
    "engine": (str | None, None),
    "workers": (int | None, None),
}


class Between(NamedTuple):
    """The range of an option, in its annotation: `k: Annotated[int | None, Between(1)] = None`."""

    least: float
    most: float = math.inf


Seed = Annotated[int, Between(0, LARGEST_SEED)]


class Tool:
    """A function of embeddings, as a command on any target."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        page: str | None = None,
        beside: Sequence[str] = (".csv",),
        folder: bool = False,
        data: str = "images",
        split: str | tuple[str, ...] | None = None,
        labels: bool = False,
        copies: bool = False,
        fewest: int = 2,
        lists: bool = False,
        saves: bool = False,
        engine: bool = False,
        before: Callable[[Any, Mapping[str, Any]], None] | None = None,
    ) -> None:
        """Args:
        page: name of the page that a run folder takes; None: no page unless `out` says where.
        beside: endings of the files beside the page.
        folder: whether the page may be a folder.
        data: what the argument `data` is, in words.
        split: the part of the data that is opened by default; several: always, where the data has
            them (the tool has no option `split` then).
        labels: whether the tool takes `label_column`.
        copies: whether it wants the features that find copies.
        fewest: images that it needs.
        lists: whether paths go to a pipe.
        saves: whether the function itself logs what it found and saves it in the run, in place of a
            `Result` with a page (there is no option `out` then).
        engine: whether an engine can divide its work.
        before: called with the target and the arguments before anything is opened, to raise
            ValueError for options that do not go together.
        """
        self.function, self.name = function, function.__name__
        self.default_page, self.beside, self.folder, self.data = page, tuple(beside), folder, data
        self.split, self.labels, self.copies = split, labels, copies
        self.fewest, self.lists, self.saves, self.before = fewest, lists, saves, before
        self.has_engine = engine
        self.ranges: dict[str, Between] = {}
        self.whole: set[str] = set()  # those of them that are whole numbers
        self.optional: set[str] = set()  # those that may be None
        self.command = self._command()

    @property
    def named(self) -> list[str]:
        """The names of the arguments of the function, without the embeddings."""
        return list(inspect.signature(self.function).parameters)[1:]

    def place(self, source: Any, out: str | Path | None) -> Path | None:
        """Return the page to write, None for none; raises ValueError where one of its files exists
        that the user named, OSError where nothing can be written.
        """
        from nearfar.atomic import PAGES, check_folder, check_output

        if out is not None:
            endings = ("",) if self.folder and not Path(out).suffix else PAGES
            check_output(Path(out), endings, beside=self.beside)
            return Path(out)
        page = None if self.default_page is None else source.page(self.default_page)
        if page is not None:
            check_folder(page.parent)
        return page

    def call(self, target: Any, given: dict[str, Any]) -> Any:
        """Open a target, compute the result, log it, and write it where it belongs."""
        from nearfar.embeddings.sources import OfRun, Opening, folders_apart, resolve
        from nearfar.progress import log
        from nearfar.ray import engine_named

        self.check(given)
        source = resolve(target)
        if "images" in self.named and not isinstance(source, OfRun) and given["data"] is None:
            given["images"], given["data"] = folders_apart(given["images"])
        if self.before is not None:
            self.before(source, given)
        out = given.get("out")
        page = self.place(source, out)
        options = {name: given[name] for name in self.named}
        opening = Opening(
            data=given["data"],
            split=given.get("split"),
            encoder=given["encoder"],
            label_column=given.get("label_column"),
            usual=self.split,
            copies=self.copies,
            fewest=self.fewest,
        )
        with engine_named(given.get("engine"), given.get("workers")):
            result = self.function(source.open(opening), **options)
        if self.saves:
            return result
        result.again = functools.partial(self._again, source.name, given, page)
        for line in result.lines:
            log.info(line)
        if page is not None:
            result.write(page if out is not None else result.default_page(page))
        return result

    def _command(self) -> Callable[..., Any]:
        """Return the function behind the command and the public name."""
        lacking = {
            "label_column": not self.labels,
            "split": isinstance(self.split, tuple),
            "out": self.saves,
            "engine": not self.has_engine,
            "workers": not self.has_engine,
        }
        names = [name for name in KINDS if not lacking.get(name)]
        own = list(self._options())
        placed = [
            parameter for parameter in own if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
        ]
        options = [parameter for parameter in own if parameter.kind is Parameter.KEYWORD_ONLY]
        taken = {parameter.name for parameter in (*placed, *options)}
        shared = [self._shared(name, bool(placed)) for name in names if name not in taken]
        ordered = sorted(
            [*shared[:1], *placed, *shared[1:], *options], key=lambda parameter: parameter.kind
        )
        signature = inspect.Signature(ordered)

        @functools.wraps(self.function)
        def command(*given: Any, **named: Any) -> Any:
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            return self.call(bound.arguments.pop("target"), dict(bound.arguments))

        del command.__wrapped__
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__doc__ = self._documentation([parameter.name for parameter in shared])
        return isolated()(command)

    def _options(self) -> Iterator[Parameter]:
        """Yield the arguments of the function with their types, and note their ranges."""
        known = inspect.unwrap(self.function).__globals__
        for parameter in list(inspect.signature(self.function).parameters.values())[1:]:
            kind = parameter.annotation
            if isinstance(kind, str):
                with suppress(NameError):  # of an object, whose class is imported for type checkers
                    kind = eval(kind, known)
            if get_origin(kind) is Annotated:
                kind, *further = get_args(kind)
                for between in further:
                    if isinstance(between, Between):
                        self.ranges[parameter.name] = between
                if int in (kind, *get_args(kind)):
                    self.whole.add(parameter.name)
                if NoneType in get_args(kind):
                    self.optional.add(parameter.name)
            yield parameter.replace(annotation=kind)

    def check(self, given: dict[str, Any]) -> None:
        """Raise ValueError for an option beyond its range or of another type, before anything is
        opened; whole numbers of NumPy become Python's.
        """
        for name, (least, most) in self.ranges.items():
            value, is_whole = given[name], name in self.whole
            if value is None and name not in self.optional:
                raise ValueError(f"`{name}` must be a number, not None")
            check_number(name, value, least, most, is_whole)
            given[name] = int(value) if is_whole and value is not None else value

    def _shared(self, name: str, placed: bool) -> Parameter:
        annotation, default = KINDS[name]
        by_place = name == "target" or (name == "data" and not placed)
        kind = Parameter.POSITIONAL_OR_KEYWORD if by_place else Parameter.KEYWORD_ONLY
        return Parameter(name, kind, default=default, annotation=annotation)

    def _documentation(self, shared: Sequence[str]) -> str:
        """Return the docstring of the function, with the arguments that all tools have."""
        written = inspect.getdoc(self.function) or ""
        meanings = {
            name: COMMON[name].format(
                beside=" and ".join(f"a {ending}" for ending in self.beside),
                default="none"
                if self.default_page is None
                else f"{self.default_page}.html in the run folder, which is replaced",
                features="colours and edges for copies, the best features at hand for the rest"
                if self.copies
                else "the best features at hand",
            )
            for name in shared
            if name in COMMON
        }
        meanings["data"] = f"{self.data}. Default: the data of the run."
        meanings["split"] = (
            'part of the data; "all" for everything. Default: that of the run, of other data its '
            "training split."
            if self.split is None
            else "part of the data. Default: all, since images of one split can be copies of those "
            "of another."
        )
        first = f"    target: {meanings['target']}"
        others = [f"    {name}: {meanings[name]}" for name in shared if name != "target"]
        head, args, tail = _parts(written)
        lines = ["Args:", first, *args, *others]
        return "\n\n".join(filter(None, [head, "\n".join(lines), tail]))

    def _again(
        self, source: str, given: Mapping[str, Any], page: Path | None, *without: str
    ) -> str:
        """Return the command that makes the same again, as a shell takes it, without some options;
        what only a program can give is left out.
        """
        placed: list[Any] = []
        options: dict[str, Any] = {}
        for name, parameter in inspect.signature(self.command).parameters.items():
            value = given.get(name)
            if name in ("target", "out", *without) or _same(value, parameter.default):
                continue
            if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
                placed += [word for word in _listed(value) if _on_command_line(word)]
            elif all(map(_on_command_line, _listed(value))):
                options[name] = value
        if given.get("out") is not None and page is not None:
            options["out"] = page.with_stem(f"{page.stem}-new")
        return shlex.join(map(str, ["nearfar", self.name, source, *placed, *to_argv(options)]))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _on_command_line(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike, bool, int, float))


def _same(value: Any, default: Any) -> bool:
    return value is default or (_on_command_line(value) and value == default)


def _parts(written: str) -> tuple[str, list[str], str]:
    """Return a docstring before its "Args:", the lines of these, and what follows."""
    section = re.search(r"\n\nArgs:\n((?:    .*\n?)+)", written + "\n")
    if section is None:
        head, _, tail = written.partition("\n\nReturns:")
        return head, [], f"Returns:{tail}" if tail else ""
    return (
        written[: section.start()],
        section[1].rstrip().split("\n"),
        written[section.end() :].strip(),
    )


_MODULES = {  # of the tools that come with nearfar, in the order of the overview
    "map": "nearfar.tools.map",
    "search": "nearfar.tools.search",
    "duplicates": "nearfar.tools.duplicates",
    "select": "nearfar.tools.select",
    "cluster": "nearfar.tools.cluster",
    "check": "nearfar.tools.check",
    "evaluate": "nearfar.tools.evaluate",
}
_TOOLS: dict[str, Tool] = {}


def tool(**about: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of `Embeddings` a tool, with a command of its name; see `Tool` for the
    arguments.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _TOOLS[function.__name__] = Tool(function, **about)
        return function

    return register


def tool_names() -> list[str]:
    """Return the names of all tools: those of nearfar, then those that other packages declare as
    entry points of the group "nearfar.tools", then those of this program.
    """
    return list(dict.fromkeys([*_MODULES, *_of_packages(), *_TOOLS]))


def find_tool(name: str) -> Tool:
    """Return a tool by its name; KeyError for others."""
    if name not in _TOOLS and name in _MODULES:
        import_module(_MODULES[name])
    elif name not in _TOOLS and name in _of_packages():
        _of_packages()[name].load()
    return _TOOLS[name]


def _of_packages() -> dict[str, EntryPoint]:
    """Return what other packages declare; a name of nearfar's own stays its own."""
    return {name: point for name, point in plugins.tools().items() if name not in _MODULES}
