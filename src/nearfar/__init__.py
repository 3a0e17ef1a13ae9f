"""Contrastive representation learning for images on small hardware.

Names are imported when they are first used: `import nearfar` and `import nearfar.losses` cost next
to nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from nearfar.commands.check import check as check
    from nearfar.commands.doctor import doctor as doctor
    from nearfar.commands.embed import embed as embed
    from nearfar.commands.evaluate import evaluate as evaluate
    from nearfar.commands.export import export as export
    from nearfar.commands.export import push as push
    from nearfar.commands.listing import cluster_images as cluster_images
    from nearfar.commands.listing import find_duplicates as find_duplicates
    from nearfar.commands.listing import search_images as search_images
    from nearfar.commands.listing import select_images as select_images
    from nearfar.commands.map import map_images as map_images
    from nearfar.commands.pretrain import pretrain as pretrain
    from nearfar.commands.pretrain import resume as resume
    from nearfar.commands.starting import list_methods as list_methods
    from nearfar.commands.starting import run_demo as run_demo
    from nearfar.commands.views import show_views as show_views
    from nearfar.methods import register_method as register_method
    from nearfar.rendering import show_progress as show_progress
    from nearfar.run import Run as Run
    from nearfar.run import join as join
    from nearfar.run import load as load
    from nearfar.training.loop import TrainingDiverged as TrainingDiverged
    from nearfar.training.loop import TrainingStopped as TrainingStopped
    from nearfar.training.processes import ProcessLost as ProcessLost

_NAMES = {
    "commands.check": ["check"],
    "commands.doctor": ["doctor"],
    "commands.embed": ["embed"],
    "commands.evaluate": ["evaluate"],
    "commands.export": ["export", "push"],
    "commands.listing": ["cluster_images", "find_duplicates", "search_images", "select_images"],
    "commands.map": ["map_images"],
    "commands.pretrain": ["pretrain", "resume"],
    "commands.starting": ["completion_script", "list_methods", "run_demo"],
    "commands.views": ["show_views"],
    "methods": ["register_method"],
    "pages.report": ["in_notebook"],
    "rendering": ["show_progress"],
    "run": ["Run", "join", "load"],
    "training.loop": ["TrainingDiverged", "TrainingStopped"],
    "training.processes": ["ProcessLost"],
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_INTERNAL = {"completion_script", "in_notebook"}  # for the command line, and for `Run`
__all__ = sorted({"__version__", *_HOMES} - _INTERNAL)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nearfar' has no attribute {name!r}")
    import random

    state = random.getstate()  # rich moves it when it is imported
    value = getattr(importlib.import_module(f"nearfar.{_HOMES[name]}"), name)
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
    return sorted({*globals(), *__all__})
