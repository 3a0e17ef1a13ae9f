"""Start a run on one process or many, and assemble what the loop needs from its settings."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

import torch
from lightning_fabric import Fabric
from rich.console import Console

from nearfar.data import Images, open_images
from nearfar.encoders import Backbone, Encoder, build_backbone, save_encoder
from nearfar.methods import Method, Model, method_class
from nearfar.training.config import Config
from nearfar.training.loop import fit
from nearfar.training.randomness import derive_seed
from nearfar.views import plan


def build_method(config: Config) -> Method:
    """Build the method that the settings name; raises ValueError for a number that it does not have."""
    return method_class(config.method)(**config.hyperparameters)


def initial_backbone(config: Config) -> Backbone:
    """Build the backbone as it stands before the first step: the same weights for the same settings."""
    torch.manual_seed(derive_seed(config.seed, "weights"))
    return build_backbone(
        config.encoder, image_size=config.image_size, channels=config.channels, pretrained_file=config.init
    )


def launch(config: Config, images: Images, console: Console, resume: bool = False) -> None:
    """Train to the last epoch and write the encoder into the run folder; on many processes if the settings say so.

    Under torchrun this process is one of those it started; else `devices` processes are started here, and each opens
    the data again (from the cache).
    """
    started = "TORCHELASTIC_RUN_ID" in os.environ
    strategy = "ddp" if started else ("ddp_spawn" if config.devices > 1 else "auto")
    with _quiet():
        fabric = Fabric(
            accelerator=config.accelerator, devices=config.devices, strategy=strategy, precision=config.precision
        )
        if config.devices == 1 or started:
            fabric.launch()
            _run(fabric, config, images, console, resume)
        else:
            fabric.launch(_run, config, None, console, resume)  # type: ignore[arg-type]


def _run(fabric: Fabric, config: Config, images: Images | None, console: Console, resume: bool) -> None:
    if images is None:
        images = open_images(
            config.data,
            split=config.split,
            image_size=config.image_size,
            channels=config.channels,
            cache=config.cache,
        )
    if config.limit is not None:
        images = images.subset(range(min(config.limit, len(images))))
    held_out = None
    if config.held_out:
        images, held_out = images.split_holdout(config.held_out, config.seed)
    backbone = initial_backbone(config)
    model = Model(build_method(config), backbone, len(images))
    views = plan(config.views, config.image_size, config.channels)
    fit(fabric, model, images, held_out, views, config, console, resume)
    if fabric.is_global_zero:
        encoder = Encoder(
            model.backbone,
            image_size=config.image_size,
            channels=config.channels,
            mean=images.mean,
            std=images.std,
        )
        save_encoder(Path(config.out), encoder)


@contextlib.contextmanager
def _quiet():  # type: ignore[no-untyped-def]
    """Keep Fabric's hints about hardware to itself; they are not about the user's data."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        yield
