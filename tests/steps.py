"""Something that happens in the middle of a run, runs that are compared, and steps without a
run.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import nearfar
from nearfar.data import rank_rows
from nearfar.methods import Model
from nearfar.training import loop
from nearfar.training.processes import Process
from nearfar.training.step import GradientStep


def interrupt() -> None:
    """Ask this process to stop, as Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def at_step(*numbers: int, do: Callable[[], object] = interrupt) -> Iterator[None]:
    """Do something in the `with` block once a run has taken each of these numbers of steps."""
    advance = loop.TrainingProgress.advance

    def watched(self: loop.TrainingProgress, step: int) -> None:
        advance(self, step)
        if step in numbers:
            do()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.TrainingProgress, "advance", watched)
        yield


def logged(run: nearfar.Run) -> list[dict[str, Any]]:
    """All that a run logged but its speed."""
    clocks = ("images_per_second", "data_wait")
    return [
        {name: value for name, value in line.items() if name not in clocks} for line in run.metrics
    ]


def same_runs(first: nearfar.Run, second: nearfar.Run) -> None:
    """Assert that two runs logged the same, once, and end with the same weights, to the last
    bit.
    """
    assert json.dumps(logged(first)) == json.dumps(logged(second))
    weights, others = (load_file(run.path / "encoder.safetensors") for run in (first, second))
    assert weights.keys() == others.keys() and all(
        torch.equal(value, others[name]) for name, value in weights.items()
    )


def descend(
    model: Model,
    micro: int | str | None,
    batch: int,
    images: int,
    steps: int,
    rank: int = 0,
    world: int = 1,
    begun=0,
) -> tuple[GradientStep, dict[str, torch.Tensor]]:
    """Take steps of SGD on random views; returns what computed the gradients, and the losses with
    the last state.

    begun: epochs of schedules that have passed.
    """
    process = Process(torch.device("cpu"), rank=rank, world_size=world)
    gradient_of, own = GradientStep(process, model, micro), rank_rows(batch, rank, world)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    made, losses = torch.Generator().manual_seed(1), []
    for step in range(steps):
        views = torch.randn(
            len(model.method.views), batch, 1, 4, 4, generator=made, dtype=torch.float64
        )
        index = torch.randperm(images, generator=made)[:batch]
        model.set_schedules(step + begun, steps + begun)
        optimizer.zero_grad()
        loss, embeddings = gradient_of(
            lambda rows, v=views[:, own]: list(v[:, rows]), index[own], batch, seed=step
        )
        optimizer.step()
        model.after_step(embeddings, step, steps)
        losses.append(loss)
    return gradient_of, {"losses": torch.stack(losses), **model.state_dict()}
