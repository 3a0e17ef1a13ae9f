"""Checkpoints: written whole or not at all, read without running code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from nearfar.atomic import replacing


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.stem}.*.partial{path.suffix}"):
        left.unlink()  # of a process that was killed
    with replacing(path) as unfinished, unfinished.open("wb") as file:  # our file: torch's own tells no reason
        torch.save(state, file)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are accepted. Raises ValueError for a damaged file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}; nothing to resume from")
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ValueError(f"the checkpoint {path} is damaged or not a checkpoint of nearfar") from error
