"""How fast a machine trains: a few steps on random pixels."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from nearfar.methods import Method, Model
from nearfar.networks import build_backbone
from nearfar.training.optimizers import build_optimizer
from nearfar.training.settings import Precision
from nearfar.training.step import GradientStep
from nearfar.views import Views, make_views

PIXELS, LEAST, MOST = 64 * 96**2, 64, 128
"""A trial step has about so many pixels a view, in so many images: few small images would flatter float32."""
SECONDS = 0.3  # of steps, after one that sets everything up; at least two steps


def usual_precision() -> Precision:
    """The precision for "auto" where processes cannot agree on a measurement: bfloat16 on a GPU that has it."""
    return "bf16-mixed" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "32-true"


def training_speed(
    method: Method,
    encoder: str | nn.Module,
    views: Views,
    *,
    image_size: int,
    crop_size: int,
    channels: int,
    accelerator: str = "auto",
    precision: Any = "32-true",
    batch_size: int | None = None,
    small_stem: bool | None = None,
) -> float:
    """Return the images per second that a run would train on, from steps on random pixels; 0 if memory ends.

    image_size: of the images; crop_size: that the encoder is built for. batch_size: of the trial; by default 64
    to 128, the more the smaller the crops are. Data that must be decoded meanwhile is slower.
    """
    batch_size = batch_size or max(LEAST, min(PIXELS // crop_size**2, MOST))
    fabric = Fabric(accelerator=accelerator, devices=1, precision=precision)
    log = logging.getLogger("nearfar")
    before, log.disabled = log.disabled, True
    try:
        backbone = build_backbone(encoder, image_size=crop_size, channels=channels, small_stem=small_stem)
        model = Model(method, backbone, batch_size)
    finally:
        log.disabled = before
    fabric.to_device(model)
    optimizer: Any = fabric.setup_optimizers(build_optimizer("sgd", model, lr=0.0, weight_decay=0.0))
    gradient_of = GradientStep(fabric, model)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (batch_size, channels, image_size, image_size), dtype=torch.uint8, generator=generator)
    pixels, index = fabric.to_device((pixels, torch.arange(batch_size)))
    moments = [0.5] * channels

    def step() -> None:
        optimizer.zero_grad()
        loss, embeddings = gradient_of(
            lambda rows: make_views(pixels[rows], views, generator, moments, moments), index, batch_size, 0
        )
        optimizer.step()
        model.after_step(embeddings, 0.0, 1)
        loss.item()  # waits for a GPU

    model.train()
    try:
        step()
        began, steps = time.perf_counter(), 0
        while steps < 2 or time.perf_counter() - began < SECONDS:
            step()
            steps += 1
    except torch.OutOfMemoryError:
        return 0.0
    return steps * batch_size / (time.perf_counter() - began)
