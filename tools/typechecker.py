"""The check of types and shapes that tests/conftest.py puts around the functions of the rooms that
compute with arrays. Types elsewhere are mypy's work: checking them at each call as well makes tests
slower.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True,  # an int will do for a float
        violation_type=jaxtyping.TypeCheckError,
    )
)
ROOMS = (
    "losses",
    "pairs",
    "views",
    "networks",
    "methods",
    "neighbours",
    "maps",
    "evaluation",
    "embeddings",
)
SHAPES = jaxtyping.jaxtyped("context")  # each `with` has sizes of its own for the names of axes
_checked_in_full = jaxtyping.jaxtyped


def install() -> None:
    """Have the modules of these rooms checked when they are imported.

    Their functions are decorated by `checked_once` in place of `jaxtyping.jaxtyped`, which checks
    the arguments twice, and binds them to their names for its messages.
    """
    jaxtyping.jaxtyped = checked_once
    jaxtyping.install_import_hook([f"nearfar.{room}" for room in ROOMS], f"{__name__}.checked")


def checked_once(kind: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Check the arguments and the result of a function, or of a dataclass's `__init__`, together.

    Raises jaxtyping.TypeCheckError for wrong types, and for axes of one name and two sizes.
    """
    if kind is None:
        return functools.partial(checked_once, typechecker=typechecker)
    if inspect.isclass(kind):
        if dataclasses.is_dataclass(kind) and "__init__" in vars(kind):
            kind.__init__ = checked_once(kind.__init__, typechecker=typechecker)
        return kind
    of_arguments = any("{" in str(hint) for hint in kind.__annotations__.values())
    if of_arguments or inspect.isgeneratorfunction(kind) or not inspect.isfunction(kind):
        return _checked_in_full(kind, typechecker=typechecker)
    known: list[Callable[..., Any]] = []

    @functools.wraps(kind)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return kind(*args, **kwargs)
        if not known:
            known.append(checked(with_types(kind)))
        with SHAPES:
            return known[0](*args, **kwargs)

    return call


def with_types(function: FunctionType) -> FunctionType:
    """Return a copy of a function with types in place of their names; Any for those that are not
    known when it runs.
    """
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__, copy.__module__ = function.__kwdefaults__, function.__module__
    copy.__qualname__ = function.__qualname__
    for name, hint in function.__annotations__.items():
        try:
            alone = SimpleNamespace(__annotations__={name: hint})
            types = get_type_hints(alone, function.__globals__, include_extras=True)
        except NameError:
            types = {name: Any}
        copy.__annotations__ |= types
    return copy
