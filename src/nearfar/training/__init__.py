"""Training: one loop on Lightning Fabric, its optimisers, checkpoints and the health of what it trains."""

from nearfar.training.config import Config
from nearfar.training.health import Health, Verdict, measure_health, verdict
from nearfar.training.launch import build_method, check_machine, follow, initial_backbone, launch
from nearfar.training.loop import TrainingDiverged, TrainingStopped
from nearfar.training.metrics import read_metrics
from nearfar.training.processes import ProcessLost, by_torchrun, check_processes, is_follower, world_size

__all__ = [
    "Config",
    "Health",
    "ProcessLost",
    "TrainingDiverged",
    "TrainingStopped",
    "Verdict",
    "build_method",
    "by_torchrun",
    "check_machine",
    "check_processes",
    "follow",
    "initial_backbone",
    "is_follower",
    "launch",
    "measure_health",
    "read_metrics",
    "verdict",
    "world_size",
]
