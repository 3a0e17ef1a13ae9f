"""Training: one loop on Lightning Fabric, its optimisers, checkpoints and the health of what it trains."""

from nearfar.training.config import Config
from nearfar.training.health import Health, Verdict, measure_health, verdict
from nearfar.training.launch import build_method, initial_backbone, launch
from nearfar.training.loop import TrainingDiverged, TrainingStopped
from nearfar.training.metrics import read_metrics

__all__ = [
    "Config",
    "Health",
    "TrainingDiverged",
    "TrainingStopped",
    "Verdict",
    "build_method",
    "initial_backbone",
    "launch",
    "measure_health",
    "read_metrics",
    "verdict",
]
