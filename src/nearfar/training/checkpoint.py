"""Checkpoints: written whole or not at all, read without running code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nearfar.atomic import replacing

PARTS: dict[str, type] = {"model": dict, "optimizer": dict, "precision": dict, "pace": dict}
PARTS |= {"step": int, "loss_sum": torch.Tensor, "loss_count": int}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.stem}.*.partial{path.suffix}"):
        left.unlink()  # of a process that was killed
    with replacing(path) as unfinished, unfinished.open("wb") as file:  # our file: torch's own tells no reason
        torch.save(state, file)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are accepted. Raises ValueError for any other file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}; nothing to resume from")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # anything, for what is no such file
        raise ValueError(f"the checkpoint {path} is damaged or not a checkpoint of nearfar") from error
    ours = isinstance(state, dict) and all(isinstance(state.get(name), kind) for name, kind in PARTS.items())
    if not ours or state["loss_sum"].ndim or min(state["step"], state["loss_count"]) < 0:
        raise ValueError(f"{path} is not a checkpoint of nearfar")
    return state


@contextmanager
def of_this_run(path: Path) -> Iterator[None]:
    """Turn the errors of a state that does not fit into one line."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise ValueError(f"the checkpoint {path} is of another run: {' '.join(str(error).split())[:200]}") from error


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, torch.Tensor]]) -> None:
    """Load the state of each parameter, as a checkpoint holds it; all else of the optimiser comes from the settings.

    Raises ValueError where a state does not fit its parameter.
    """
    own = optimizer.state_dict()
    optimizer.load_state_dict(own | {"state": state})
    for weights, values in optimizer.state.items():
        if not all(isinstance(one, torch.Tensor) and one.shape in (weights.shape, ()) for one in values.values()):
            raise ValueError("the state of the optimiser does not fit the weights")
