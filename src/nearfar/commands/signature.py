"""One signature from the settings: of a Python function, for editors and documentation, and of the command line."""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

from rich.console import Console

from nearfar.training.settings import Settings, settings_fields

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


@runtime_checkable
class WithSettings(Protocol[P, R]):
    """A function of the settings, a console, and the method's own numbers by name."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, data: Any = None, **settings: Any) -> R: ...


def arguments_of(
    settings: Callable[P, Settings],
) -> Callable[[Callable[[Settings, Console], R]], WithSettings[P, R]]:
    """Let a function of `Settings` be called with the settings themselves: `pretrain("photos/", epochs=20)`.

    Arguments that are no settings are numbers of the method. The signature and the section "Args" of the docstring are
    those of `settings`, the class; for type checkers and editors as well.
    """
    names = [one.name for one in settings_fields()]

    def decorate(function: Callable[[Settings, Console], R]) -> WithSettings[P, R]:
        @functools.wraps(function)
        def call(data: Any = None, *, console: Console | None = None, **given: Any) -> R:
            given = {"data": data, **given}
            own = {name: _text_of_path(given.pop(name)) for name in names if name in given}
            numbers = {**own.pop("hyperparameters", {}), **given}
            return function(Settings(**own, hyperparameters=numbers), console or Console())

        call.__doc__ = _documented(function.__doc__ or "")
        call.__signature__ = _signature()  # type: ignore[attr-defined]
        return cast("WithSettings[P, R]", call)

    return decorate


def _text_of_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _signature() -> inspect.Signature:
    own = [p for p in inspect.signature(Settings).parameters.values() if p.name != "hyperparameters"]
    console = inspect.Parameter("console", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Console | None")
    numbers = inspect.Parameter("hyperparameters", inspect.Parameter.VAR_KEYWORD, annotation=Any)
    return inspect.Signature([*own, console, numbers])


def _documented(docstring: str) -> str:
    """Put what every setting means into a docstring, before what is returned."""
    lines = []
    for one in settings_fields():
        said = "" if one.default in (None, MISSING) else f" Default: {one.default!r}."
        entry = f"{one.name}: {one.metadata['meaning']}.{said}"
        lines += textwrap.wrap(entry, 116, initial_indent=" " * 4, subsequent_indent=" " * 8)
    lines.append("    console: where progress is shown.")
    before, after = inspect.cleandoc(docstring).split("Returns:\n", 1)  # indented in the source below Python 3.13 only
    return before + "Args:\n" + "\n".join(lines) + "\n\nReturns:\n" + after
