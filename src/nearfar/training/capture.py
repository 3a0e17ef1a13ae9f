"""A whole training step, from views to new weights: launch by launch, or captured as one CUDA graph
that is replayed.

A graph holds launches, addresses and numbers of Python as they were when it was captured, and runs
no Python. So rates and momentum are tensors (`set_rates`, `Model.momentum`), views and numbers of
images lie in fixed memory, and samples that the CPU draws are sent there before each replay
(`Draws`). The first steps are plain and warm the device up. Where shapes or a number of the loss
change (SwAV's prototypes, JCL's lambda, a queue that fills), the graph is dropped, and captured
anew after as many plain steps without a change.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from nearfar.device import Draws, Graph, SideStream, setup_of
from nearfar.methods import Model
from nearfar.progress import log
from nearfar.training.processes import Process
from nearfar.training.step import GradientStep, MakeViews

WARM_UP = 3
"""Plain steps before a capture: kernels are compiled, and the optimiser makes its state."""
SWITCH = "NEARFAR_STEP"
"""Environment variable: "plain" captures no step."""
KNOWN = ("nearfar", "timm", "torch", "torchvision")
"""Packages whose modules keep nothing in Python from step to step but what `_numbers` sees."""


class TrainingStep:
    """Takes steps of a model: from views to new weights.

    batch_size: images of all processes together. micro_batch, clip: see `GradientStep` and
    `Process.update`. `plain_because` is why steps are not captured, empty where they are.
    """

    def __init__(
        self,
        process: Process,
        model: Model,
        optimizer: torch.optim.Optimizer,
        batch_size: int,
        micro_batch: int | str | None = None,
        clip: float | None = None,
    ) -> None:
        self.process, self.model, self.optimizer = process, model, optimizer
        self.batch_size, self.clip = batch_size, clip
        self.gradient_of = GradientStep(process, model, micro_batch)  # type: ignore[arg-type]
        self.plain_because = why_plain(process, model, optimizer, micro_batch)
        self._graph: Graph | None = None
        self._key: object = None  # what a graph would keep
        self._steps = 0  # plain ones since this is the key
        if not self.plain_because:
            self._side = SideStream(process.device)

    @property
    def is_captured(self) -> bool:
        """Return whether steps are replayed now."""
        return self._graph is not None

    def __call__(
        self, make_views: MakeViews, index: Tensor, seed: int, epoch: float, epochs: float
    ) -> Tensor:
        """Take the step of a batch and return its loss; `set_rates` and `set_schedules` come first.

        make_views, index, seed: see `GradientStep`. epoch, epochs: the moment of training.
        """
        if self.plain_because:
            return self._plain(make_views, index, seed, epoch, epochs)
        views = make_views(slice(0, len(index)))
        key = ([(part.shape, part.stride(), part.dtype) for part in [*views, index]], self._numbers)
        if key != self._key:
            self._graph, self._steps, self._key = None, 0, key
        if self._graph is None and self._steps == WARM_UP:
            self._capture(views, index, seed, epoch, epochs)
        if self._graph is None:
            self._steps += 1
            with self._side.used():
                return self._plain(lambda rows: views, index, seed, epoch, epochs)
        torch._foreach_copy_(self._inputs, [*views, index])
        self._draws.again(seed)
        self._graph.replay()
        return self._loss.clone()

    def _plain(
        self, make_views: MakeViews, index: Tensor, seed: int, epoch: float, epochs: float
    ) -> Tensor:
        self.optimizer.zero_grad()
        loss, embeddings = self.gradient_of(make_views, index, self.batch_size, seed)
        self.process.update(self.optimizer, self.clip)
        self.model.after_step(embeddings, epoch, epochs)
        return loss

    def _capture(
        self, views: list[Tensor], index: Tensor, seed: int, epoch: float, epochs: float
    ) -> None:
        """Capture a step, without taking it; where that fails, all steps are plain from now on."""
        self._inputs = [part.clone() for part in [*views, index]]
        self._draws = Draws(seed)
        for group in self.optimizer.param_groups:
            if "capturable" in group:  # torch asks for it, and warns where it is set earlier
                group["capturable"] = True

        def step() -> None:
            *fixed, numbers = self._inputs
            self._loss = self._plain(lambda rows: fixed, numbers, seed, epoch, epochs)

        try:
            with self._draws.noted():
                self._graph = self._side.capture(step)
        except Exception as error:  # whatever a network does that no graph can hold
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            self.plain_because = f"{type(error).__name__}: {reason}"
            log.warning("steps are not captured from here on: %s", self.plain_because)

    @property
    def _numbers(self) -> list[object]:
        """The numbers of Python that the losses hold now, which a graph would keep."""
        return [
            value
            for loss in (self.model.loss, self.model.setup.beside)
            if loss is not None
            for module in loss.modules()
            for value in vars(module).values()
            if isinstance(value, (bool, int, float, str))
        ]


def why_plain(
    process: Process,
    model: Model,
    optimizer: torch.optim.Optimizer,
    micro_batch: int | str | None = None,
) -> str:
    """Return why the steps of a run are not captured; empty where they are."""
    rates = [group["lr"] for group in optimizer.param_groups]
    beside = model.setup.beside or nn.Identity()
    parts = [model.method, *model.modules(), *beside.modules()]
    packages = {type(part).__module__.split(".")[0] for part in parts}
    setup = setup_of(process.device, process.precision)
    reasons = {
        setup.captured.reason: not setup.captured.value,
        f"{SWITCH}=plain": os.environ.get(SWITCH) == "plain",
        "several processes share them": process.world_size > 1,
        "micro-batches are there to save memory": micro_batch is not None,
        "the networks are compiled": model.is_compiled,
        "the optimiser's rate is a number of Python": not all(isinstance(r, Tensor) for r in rates),
        f"no knowing what {' and '.join(sorted(packages - {*KNOWN}))} keeps": not packages
        <= {*KNOWN},
        getattr(model.loss, "waits", ""): getattr(model.loss, "waits", "") != "",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
