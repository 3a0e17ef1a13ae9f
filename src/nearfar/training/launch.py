"""Start a run on one process or many, and assemble what the loop needs from its settings."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from rich.console import Console

from nearfar.data import Images, open_images
from nearfar.methods import Method, Model, method_class
from nearfar.networks import Backbone, Encoder, build_backbone, save_encoder
from nearfar.training.config import Config, Precision
from nearfar.training.loop import TrainingDiverged, TrainingStopped, fit
from nearfar.training.processes import TIMEOUT, by_torchrun, closed_after, stopped_together, told_clearly, world_size
from nearfar.training.seeding import derive_seed
from nearfar.training.sync_norm import sync_batch_norm
from nearfar.views import plan

log = logging.getLogger("nearfar")
logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # here, since new processes import this file first


def build_method(config: Config) -> Method:
    """Build the method that the settings name; raises ValueError for a number that it does not have."""
    return method_class(config.method)(**config.hyperparameters)


def initial_backbone(config: Config) -> Backbone:
    """Build the backbone as it stands before the first step: the same weights for the same settings."""
    torch.manual_seed(derive_seed(config.seed, "weights"))
    return build_backbone(config.encoder, image_size=config.image_size, channels=config.channels, init=config.init)


def launch(config: Config, images: Images, console: Console, resume: bool = False) -> None:
    """Train to the last epoch and write the encoder into the run folder; on many processes if the settings say so.

    Under torchrun this is the first of the processes that it started. Else `devices` processes are started here, and
    each opens the data again (from the cache).
    Raises ProcessLost where one of them ends before its time, besides what `fit` raises.
    """
    with told_clearly(config.devices, config.out), _quiet():
        if config.devices == 1 or by_torchrun():
            fabric = _fabric(config.accelerator, config.precision, config.devices, "popen")
            fabric.launch()
            with closed_after():
                fabric.broadcast((config, resume))
                _run(fabric, config, images, console, resume)
            return
        fabric = _fabric(config.accelerator, config.precision, config.devices, "spawn")
        level = log.level if log.handlers else None
        with stopped_together():
            ending = fabric.launch(_work, asdict(config), resume, console.quiet, level)  # type: ignore[arg-type]
        if ending is not None:
            raise ending


def check_machine(accelerator: str, precision: Precision, devices: int) -> None:
    """Raise ValueError for devices that this machine does not have."""
    try:
        with _quiet():
            _fabric(accelerator, precision, devices, "spawn")
    except (RuntimeError, ValueError, ImportError) as error:
        raise ValueError(" ".join(str(error).split()).replace("`", "'")) from error


def follow(accelerator: str, precision: Precision) -> str:
    """Take part in a run that the first process of torchrun prepares, as one of the others; returns its folder."""
    devices = world_size(None)
    with told_clearly(devices, "RUN"), _quiet():
        fabric = _fabric(accelerator, precision, devices, "popen")
        fabric.launch()
        with closed_after():
            told: tuple[Config, bool] | None = fabric.broadcast(None)
            assert told is not None
            config, resume = told
            _run(fabric, config, None, Console(quiet=True), resume)
    return config.out


def _fabric(accelerator: str, precision: Precision, devices: int, start: Literal["popen", "spawn"]) -> Fabric:
    if devices == 1:
        return Fabric(accelerator=accelerator, devices=1, precision=precision)
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if by_torchrun() else devices
    strategy = DDPStrategy(start_method=start, timeout=TIMEOUT)
    nodes = devices // here
    return Fabric(accelerator=accelerator, devices=here, num_nodes=nodes, strategy=strategy, precision=precision)


def _work(fabric: Fabric, settings: dict[str, Any], resume: bool, quiet: bool, level: int | None) -> Exception | None:
    """Run as one of the processes started here; what all of them agreed to end with is returned, not raised."""
    console = Console(soft_wrap=True, quiet=quiet or not fabric.is_global_zero)
    if level is not None and fabric.is_global_zero:
        log.addHandler(logging.StreamHandler(console.file))
        log.setLevel(level)
    try:
        with _quiet(), closed_after():
            _run(fabric, Config(**settings), None, console, resume)
    except (TrainingStopped, TrainingDiverged) as ending:
        return ending
    except KeyboardInterrupt:
        return TrainingStopped("stopped before the first step")
    return None


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
    if config.sync_batch_norm and fabric.world_size > 1:
        sync_batch_norm(model)
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
