"""The real training loop with a clock: where each moment of a step goes."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearfar.data import Images
from nearfar.methods import Embeddings, Model, method_class
from nearfar.networks import build_backbone
from nearfar.training import loop
from nearfar.training.processes import Process
from nearfar.training.settings import Settings
from nearfar.views import plan

PARTS = (
    "data",
    "views",
    "forward",
    "momentum encoder",
    "loss",
    "backward",
    "optimiser",
    "logging",
    "rest",
)
Between = Callable[[], dict[str, dict[str, float]]]


class Clock:
    """Gives the time since the last mark to the part that the mark names."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.cpu, self.last = time.process_time(), time.perf_counter()

    def mark(self, part: str) -> None:
        now = time.perf_counter()
        self.parts[part] += now - self.last
        self.last = now


class TimedModel(Model):
    """A method's model that marks where its forward, its momentum encoder, the loss and the way
    back begin and end.
    """

    def __init__(self, clock: Clock, *args: Any) -> None:
        super().__init__(*args)
        self.clock = clock
        if self.momentum_encoder is not None:
            self.momentum_encoder.register_forward_pre_hook(lambda *_: clock.mark("forward"))
            self.momentum_encoder.register_forward_hook(lambda *_: clock.mark("momentum encoder"))

    def forward(self, views: list[Tensor], with_keys: bool = True) -> Embeddings:
        embeddings = super().forward(views, with_keys)
        self.clock.mark("forward")
        last = embeddings.get("prediction", embeddings["projection"])
        last.register_hook(
            lambda gradient: self.clock.mark("loss")
        )  # called as the way back through the nets begins
        return embeddings

    def after_step(self, *args: Any) -> None:
        super().after_step(*args)
        self.clock.mark("momentum encoder")


def timed_model(
    method: str, encoder: str, image_size: int, images: int, clock: Clock
) -> TimedModel:
    torch.manual_seed(0)
    return TimedModel(
        clock,
        method_class(method)(),
        build_backbone(encoder, image_size=image_size, channels=3),
        images,
    )


def run(images: Images, model: TimedModel, case: Any, views: str, between: Between) -> list[dict]:
    """Train with `nearfar.training.loop.fit`; after each round of steps the loop waits while
    `between` is timed.

    The first step of a round is not timed: it gets its memory after others have given back theirs
    in small pieces. Returns for each round the seconds of its steps by part, wall and CPU, and what
    `between` returned.
    """
    clock, rounds, in_round = model.clock, [], case.steps + 1
    make_views, batches_from, build = loop.make_views, loop._batches_from, loop.build_optimizer

    def timed_views(*args: Any) -> list[Tensor]:
        clock.mark("rest")
        made = make_views(*args)
        clock.mark("views")
        return made

    def timed_batches(*args: Any) -> Iterator[tuple[Any, Tensor]]:
        source = batches_from(*args)
        for step in itertools.count(-case.warm):
            clock.mark("logging")
            if step > 0 and step % in_round == 0:
                wall, cpu = sum(clock.parts.values()), time.process_time() - clock.cpu
                rounds.append({"parts": dict(clock.parts), "wall": wall, "cpu": cpu, **between()})
            if step % in_round == 1:
                clock.start()
            batch = next(source)
            clock.mark("data")
            yield batch

    def timed_optimizer(*args: Any, **settings: Any) -> torch.optim.Optimizer:
        optimizer = build(*args, **settings)
        optimizer.register_step_pre_hook(lambda *_: clock.mark("backward"))
        optimizer.register_step_post_hook(lambda *_: clock.mark("optimiser"))
        return optimizer

    steps = case.warm + case.rounds * in_round + 1  # the last step ends the run and is not timed
    if len(images) < case.batch * steps:
        raise ValueError(
            f"{steps} steps need {case.batch * steps} images, there are {len(images)}: "
            f"fewer --rounds"
        )
    images = images.subset(range(case.batch * steps))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            "",
            out=folder,
            method=case.method,
            encoder=case.encoder,
            image_size=images.image_size,
            channels=3,
            views=views,
            held_out=0,
            epochs=1,
            batch_size=case.batch,
            optimizer="sgd",
            lr=0.06,
            weight_decay=5e-4,
            warmup_epochs=0.1,
            final_lr=0.0,
            devices=1,
            accelerator="cpu",
        )
        loop.make_views, loop._batches_from, loop.build_optimizer = (
            timed_views,
            timed_batches,
            timed_optimizer,
        )
        try:
            Path(folder, "checkpoints").mkdir()
            made = plan(views, images.image_size, 3)
            loop.fit(
                Process(torch.device("cpu")),
                model,
                images,
                None,
                made,
                settings,
                model.method.recipe("small"),
            )
        finally:
            loop.make_views, loop._batches_from, loop.build_optimizer = (
                make_views,
                batches_from,
                build,
            )
    return rounds
