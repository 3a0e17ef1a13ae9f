"""Contrastive representation learning for images on small hardware."""

__version__ = "0.1.0"

from nearfar.commands.api import embed, evaluate, load, map, methods, pretrain
from nearfar.commands.demo import demo
from nearfar.commands.run import Run
from nearfar.training import ProcessLost, TrainingDiverged, TrainingStopped

__all__ = [
    "ProcessLost",
    "Run",
    "TrainingDiverged",
    "TrainingStopped",
    "__version__",
    "demo",
    "embed",
    "evaluate",
    "load",
    "map",
    "methods",
    "pretrain",
]
