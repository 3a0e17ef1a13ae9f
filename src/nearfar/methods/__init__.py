"""Methods: one short file each, found by file name."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from nearfar.methods.description import describe
from nearfar.methods.method import Embeddings, Head, Method, Networks, fitted_views
from nearfar.methods.model import Model
from nearfar.methods.recipe import Recipe

__all__ = [
    "Embeddings",
    "Head",
    "Method",
    "Model",
    "Networks",
    "Recipe",
    "describe",
    "fitted_views",
    "method_class",
    "method_names",
]

_WIRING = {"description", "method", "model", "recipe", "schedules"}


def method_names() -> list[str]:
    """Return the names of all methods, which are those of the files in this folder with dashes."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in files if name not in _WIRING)


def method_class(name: str) -> type[Method]:
    """Return the class of a method by name; raises ValueError with the nearest name for an unknown one."""
    if name not in method_names():
        near = difflib.get_close_matches(name.lower().replace("_", "-"), method_names(), 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else "`nearfar methods` lists them all"
        raise ValueError(f"there is no method {name!r}: {hint}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return next(
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Method) and item.__module__ == module.__name__
    )
