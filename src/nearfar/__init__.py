"""Contrastive representation learning for images on small hardware.

Names are imported when they are first used: `import nearfar` and `import nearfar.losses` cost next
to nothing.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from nearfar.commands.demo import run_demo as run_demo
    from nearfar.commands.doctor import doctor as doctor
    from nearfar.commands.embed import embed as embed
    from nearfar.commands.explore import explore as explore
    from nearfar.commands.export import export as export
    from nearfar.commands.export import push as push
    from nearfar.commands.methods import list_methods as list_methods
    from nearfar.commands.pretrain import pretrain as pretrain
    from nearfar.commands.pretrain import resume as resume
    from nearfar.commands.views import show_views as show_views
    from nearfar.embeddings import Embeddings as Embeddings
    from nearfar.methods import register_method as register_method
    from nearfar.rendering import show_progress as show_progress
    from nearfar.run import Run as Run
    from nearfar.run import join as join
    from nearfar.run import load as load
    from nearfar.training.loop import TrainingDiverged as TrainingDiverged
    from nearfar.training.loop import TrainingStopped as TrainingStopped
    from nearfar.training.processes import ProcessLost as ProcessLost

_NAMES = {
    "commands.doctor": ["doctor"],
    "commands.embed": ["embed"],
    "commands.explore": ["explore"],
    "commands.export": ["export", "push"],
    "commands.pretrain": ["pretrain", "resume"],
    "commands.completion": ["completion_script"],
    "commands.demo": ["run_demo"],
    "commands.methods": ["list_methods"],
    "commands.views": ["show_views"],
    "embeddings": ["Embeddings"],
    "methods": ["register_method"],
    "pages.report": ["in_notebook"],
    "rendering": ["show_progress"],
    "run": ["Run", "join", "load"],
    "training.loop": ["TrainingDiverged", "TrainingStopped"],
    "training.processes": ["ProcessLost"],
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_TOOLS = ("check", "cluster", "duplicates", "evaluate", "map", "search", "select")
_ROOMS = (
    *("losses", "testing", "pairs", "views", "data", "networks", "methods", "neighbours"),
    *("evaluation", "maps", "embeddings", "pages", "sklearn"),
)
"""Modules with public names, imported when they are first used as attributes too."""
_INTERNAL = {"completion_script", "in_notebook"}  # for the command line, and for `Run`
_BUILT_IN = {"map"}  # which `from nearfar import *` must not hide
__all__ = sorted({"__version__", *_HOMES, *_TOOLS} - _INTERNAL - _BUILT_IN)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"nearfar.{name}")
    if name.startswith("_") or (name not in _HOMES and name not in tool_names()):
        raise AttributeError(f"module 'nearfar' has no attribute {name!r}")
    import random

    state = random.getstate()  # rich moves it when it is imported
    if name in _HOMES:
        value = getattr(importlib.import_module(f"nearfar.{_HOMES[name]}"), name)
    else:
        value = importlib.import_module("nearfar.tools").find_tool(name).command
    _show_in_notebooks()
    random.setstate(state)
    globals()[name] = value
    return value


def _show_in_notebooks() -> None:
    """Draw bars and lines where a person looks at cells; elsewhere nobody hears of anything unless
    they ask.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None and not _shown_once:
        from nearfar.rendering import show_progress

        _shown_once.append(True)
        show_progress()


_shown_once: list[bool] = []


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_TOOLS})


def tool_names() -> list[str]:
    """Return the names of all tools, those of other packages too; each is a function of nearfar and
    a method of `Run` and of `Embeddings`.
    """
    return importlib.import_module("nearfar.tools").tool_names()


def tool_method(owner: Any, name: str) -> Any:
    """Return a tool as a method of a target; AttributeError for what is no tool."""
    if name.startswith("_") or name not in tool_names():
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    return functools.partial(__getattr__(name), owner)
