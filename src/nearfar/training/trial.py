"""Trials of speed: steps of training on random pixels, timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from nearfar.device import is_out_of_memory
from nearfar.messages import raise_as_value_error
from nearfar.methods import Method, Model
from nearfar.networks import build_backbone
from nearfar.progress import log, waiting
from nearfar.training.batch_size import with_teacher_rows
from nearfar.training.capture import WARM_UP, TrainingStep
from nearfar.training.loop import to_device
from nearfar.training.model_size import Candidate, Way
from nearfar.training.optimizers import build_optimizer
from nearfar.training.processes import this_process
from nearfar.training.settings import Settings
from nearfar.training.teacher import teacher_of
from nearfar.training.view_choice import views_at
from nearfar.views import Views, make_views

TURNS = 3  # trials of each way to compute, in turn; the best counts, as machines are noisy
LONGEST = 10.0  # seconds of trials, about; of compiled ones three times as many
PIXELS, LEAST, MOST = 64 * 96**2, 64, 128
"""A trial step has about so many pixels a view, in so many images: few small images would flatter
float32.
"""
LARGER = 256  # images of a trial step where the usual number is too few
SECONDS = 0.3  # of steps, after one that sets everything up; at least two steps


class Trials:
    """Measures candidates for `choose_model`, for about ten seconds in all.

    The first candidate is always measured. Where torch.compile fails, with whatever error, compiled
    steps have no speed.
    """

    def __init__(self, given: Settings, method: Method) -> None:
        self.given, self.method = given, method
        self.began: float | None = None

    def __call__(
        self, candidate: Candidate, channels: int, ways: Sequence[Way]
    ) -> dict[Way, float] | None:
        """Return images per second by the way to compute; None where the time is over."""
        compiled = any(way.compiled for way in ways)
        if self.began is None:
            self.began = time.perf_counter()
        elif time.perf_counter() - self.began > LONGEST and not compiled:
            return None
        with waiting("measuring this machine"):
            if not compiled:
                return self._in_turn(candidate, channels, ways)
            with suppress(Exception):  # torch may lack a compiler, or fail with any error
                return self._in_turn(candidate, channels, ways)
        return None

    def _in_turn(
        self, candidate: Candidate, channels: int, ways: Sequence[Way]
    ) -> dict[Way, float]:
        """Measure the ways in turn, each `TURNS` times, and keep the best of each."""
        began, rates = time.perf_counter(), dict.fromkeys(ways, 0.0)
        for way in list(ways) * (TURNS if len(ways) > 1 else 1):
            if way.compiled and time.perf_counter() - began > 3 * LONGEST:  # on a busy machine
                break
            rates[way] = max(rates[way], self._rate(candidate, channels, way))
        return rates

    def _rate(self, candidate: Candidate, channels: int, way: Way) -> float:
        """Return the images per second of a candidate."""
        given = self.given
        views = views_at(given, self.method, candidate.image_size, candidate.crop_size, channels)

        def measured(batch_size: int | None) -> float:
            return training_speed(
                given,
                self.method,
                views,
                candidate,
                channels,
                precision=way.precision,
                batch_size=batch_size,
                compiled=way.compiled,
            )

        few = given.batch_size if (given.batch_size or LEAST) < LEAST else None
        with raise_as_value_error("a trial step failed", RuntimeError):
            with suppress(ValueError):
                return measured(few)
            return measured(max(LARGER, given.batch_size or 0))  # which the loss may need


def training_speed(
    given: Settings,
    method: Method,
    views: Views,
    candidate: tuple[str | nn.Module, int, int],
    channels: int,
    *,
    precision: Any = "32-true",
    batch_size: int | None = None,
    compiled: bool = False,
) -> float:
    """Return the images per second that a run would train on, from steps on random pixels; 0 if
    memory ends.

    given: for the device, the micro-batch and the teacher. candidate: an encoder, the size of the
    images, and that of the crops, which the encoder is built for. batch_size: of the trial; by
    default 64 to 128, the more the smaller the crops are. compiled: by torch.compile, whose time
    does not count. Data that must be decoded meanwhile is slower.
    """
    encoder, image_size, crop_size = candidate
    batch_size = batch_size or max(LEAST, min(PIXELS // crop_size**2, MOST))
    process = this_process(given.accelerator, precision)
    before, log.disabled = log.disabled, True
    try:
        backbone = build_backbone(encoder, image_size=crop_size, channels=channels)
        model = with_teacher_rows(
            Model(method, backbone, batch_size, teacher_of(given)), batch_size
        )
    finally:
        log.disabled = before
    setup = to_device(process, model, precision, compiled)
    optimizer = build_optimizer(
        "sgd",
        model,
        lr=0.0,
        weight_decay=0.0,
        fused=setup.fused.value,
        on_device=setup.captured.value,
    )
    take_step = TrainingStep(process, model, optimizer, batch_size, given.micro_batch)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(
        256, (batch_size, channels, image_size, image_size), dtype=torch.uint8, generator=generator
    )
    pixels, index = pixels.to(process.device), torch.arange(batch_size, device=process.device)
    moments = [0.5] * channels

    def step() -> None:
        loss = take_step(
            lambda rows: make_views(pixels[rows], views, generator, moments, moments),
            index,
            0,
            0.0,
            1.0,
        )
        loss.item()  # waits for a GPU

    model.train()
    return batch_size * _steps_in_a_second(step, 1 if take_step.plain_because else 1 + WARM_UP)


def _steps_in_a_second(step: Callable[[], None], first: int) -> float:
    """Time steps after the first ones, which set everything up; 0 where memory ends."""
    try:
        for _ in range(first):
            step()
        began, steps = time.perf_counter(), 0
        while steps < 2 or time.perf_counter() - began < SECONDS:
            step()
            steps += 1
    except RuntimeError as error:
        if is_out_of_memory(error):
            return 0.0
        raise
    return steps / (time.perf_counter() - began)
