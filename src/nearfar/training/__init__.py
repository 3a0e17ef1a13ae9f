"""Training: settings, the one loop on Lightning Fabric, optimisers, checkpoints, and the health of what it trains."""

from nearfar.training.config import Described
from nearfar.training.health import Health, Verdict, measure_health, verdict
from nearfar.training.job import Job, check_machine, follow, initial_backbone, launch
from nearfar.training.loop import TrainingDiverged, TrainingStopped
from nearfar.training.metrics import read_metrics
from nearfar.training.processes import ProcessLost, by_torchrun, check_processes, is_follower, told_to_stop, world_size
from nearfar.training.settings import Settings

__all__ = [
    "Described",
    "Health",
    "Job",
    "ProcessLost",
    "Settings",
    "TrainingDiverged",
    "TrainingStopped",
    "Verdict",
    "by_torchrun",
    "check_machine",
    "check_processes",
    "follow",
    "initial_backbone",
    "is_follower",
    "launch",
    "measure_health",
    "read_metrics",
    "told_to_stop",
    "verdict",
    "world_size",
]
