"""Contrastive representation learning for images on small hardware.

Names are imported when they are first used: `import nearfar` and `import nearfar.losses` cost next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nearfar.commands.cluster import cluster_images
    from nearfar.commands.demo import run_demo
    from nearfar.commands.doctor import doctor
    from nearfar.commands.duplicates import find_duplicates
    from nearfar.commands.embed import embed
    from nearfar.commands.evaluate import evaluate
    from nearfar.commands.export import export
    from nearfar.commands.map import map_images
    from nearfar.commands.methods import list_methods
    from nearfar.commands.pretrain import pretrain, resume
    from nearfar.commands.push import push
    from nearfar.commands.search import search_images
    from nearfar.commands.select import select_images
    from nearfar.commands.views import show_views
    from nearfar.methods import register_method
    from nearfar.papers.reproduce import reproduce
    from nearfar.papers.transfer import transfer
    from nearfar.run import Run, load
    from nearfar.training.loop import TrainingDiverged, TrainingStopped
    from nearfar.training.processes import ProcessLost

_HOMES = {
    "ProcessLost": "training.processes",
    "Run": "run",
    "TrainingDiverged": "training.loop",
    "TrainingStopped": "training.loop",
    "cluster_images": "commands.cluster",
    "completion_script": "commands.completion",  # for the command line only
    "doctor": "commands.doctor",
    "embed": "commands.embed",
    "evaluate": "commands.evaluate",
    "find_duplicates": "commands.duplicates",
    "export": "commands.export",
    "list_methods": "commands.methods",
    "load": "run",
    "map_images": "commands.map",
    "pretrain": "commands.pretrain",
    "push": "commands.push",
    "register_method": "methods",
    "reproduce": "papers.reproduce",
    "resume": "commands.pretrain",
    "run_demo": "commands.demo",
    "search_images": "commands.search",
    "select_images": "commands.select",
    "show_views": "commands.views",
    "transfer": "papers.transfer",
}

__all__ = [
    "ProcessLost",
    "Run",
    "TrainingDiverged",
    "TrainingStopped",
    "__version__",
    "cluster_images",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "find_duplicates",
    "list_methods",
    "load",
    "map_images",
    "pretrain",
    "push",
    "register_method",
    "reproduce",
    "resume",
    "run_demo",
    "search_images",
    "select_images",
    "show_views",
    "transfer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nearfar' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nearfar.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
