"""Training: settings, the plan of a run, the one loop on Lightning Fabric, optimisers, checkpoints, and health.

Names are imported when they are first used, so that settings can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearfar.training.health import Health, Verdict, measure_health, verdict
    from nearfar.training.job import Job, check_machine, follow, initial_backbone, launch
    from nearfar.training.loop import TrainingDiverged, TrainingStopped
    from nearfar.training.processes import (
        ProcessLost,
        by_torchrun,
        check_processes,
        is_follower,
        told_to_stop,
        world_size,
    )
    from nearfar.training.run_folder import read_metrics
    from nearfar.training.settings import Described, Settings

_NAMES = {
    "health": ["Health", "Verdict", "measure_health", "verdict"],
    "job": ["Job", "check_machine", "follow", "initial_backbone", "launch"],
    "loop": ["TrainingDiverged", "TrainingStopped"],
    "run_folder": ["read_metrics"],
    "processes": ["ProcessLost", "by_torchrun", "check_processes", "is_follower", "told_to_stop", "world_size"],
    "settings": ["Described", "Settings"],
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nearfar.training' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nearfar.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
