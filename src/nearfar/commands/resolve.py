"""From settings as they are given to a job: names become objects, defaults are chosen, and everything is checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.commands import adapting, fitting
from nearfar.commands.budget import MINUTES, Machine, choose_machine, epochs_in, reason, rungs
from nearfar.commands.objects import (
    chosen_method,
    chosen_views,
    lasting,
    must_fit,
    must_suit_streams,
    open_data,
    short_name,
    split_of,
    views_for,
)
from nearfar.data import Images, Stream, survey
from nearfar.data.building import SMALL
from nearfar.data.columns import printable
from nearfar.data.sources import are_paths
from nearfar.data.value_range import EIGHT_BITS
from nearfar.messages import one_line
from nearfar.methods import Method, Model, Recipe, method_name
from nearfar.networks import OWN_NETS
from nearfar.networks.stems import SMALL_STEM_BELOW
from nearfar.training import Job, Settings, check_machine, check_processes, world_size
from nearfar.training.config import OBJECTS, describe_object
from nearfar.training.optimizers import build_optimizer, scaled_lr
from nearfar.views import ViewPlan, Views

WHITENED = ("small", "medium")  # by default, see docs/photographs.md; "tiny" stays as tables compare by it
FINISHING = 6.0  # seconds for the last measurement of health, the nearest images, the files and the report


def new_job(given: Settings, console: Console, began: float) -> tuple[Job, Model]:
    """Resolve the settings of a new run and build its networks; nothing is written.

    began: when the time of the run began, as `time.perf_counter` gave it.
    Raises ValueError for anything that cannot be run as it is asked for.
    """
    if given.data is None:
        raise ValueError("name the images to train on: nearfar pretrain DATA")
    for name in OBJECTS:
        given.given(name)
    given, start = adapting.with_start(given)
    method, recipe = chosen_method(given)
    must_suit_streams(given, method)
    given = _as_the_paper(given, recipe)
    recipe = adapting.gentle(recipe) if given.adapt else recipe
    processes = world_size(given.devices)
    check_processes(processes, _or(given.batch_size, recipe.batch_size), given.micro_batch, bool(given.sync_batch_norm))
    check_machine(given.accelerator, "32-true" if given.precision == "auto" else given.precision, processes)
    if given.tensorboard and find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs a package of that name: pip install 'nearfar[tensorboard]'")
    given = _timed(given, recipe)

    def views_at(crop_size: int, channels: int) -> Any:
        return views_for(given, method, crop_size, channels)

    images, machine = _measured(given, method, views_at, console, began)
    if images.value_range is None and given.value_range not in (None, EIGHT_BITS):
        raise ValueError("--value-range is for images of more than 8 bits, and there are pictures of 8 bits only")
    total = min(_or(given.limit, len(images)), len(images))
    held_out = fitting.held_out_of(given, total, console)
    if isinstance(images, Stream):
        total = held_out + len(images.split_holdout(held_out, given.seed)[0])
    method, batch_size = fitting.fitted_to(given, method, recipe, total - held_out, console)
    check_processes(processes, batch_size, given.micro_batch, bool(given.sync_batch_norm))
    views = views_at(machine.crop_size, images.channels)
    seconds, epochs = None, given.epochs
    of_an_epoch = batch_size * given.steps_per_epoch if given.steps_per_epoch else total - held_out
    if epochs is None:
        seconds = _seconds_left(given, began)
        epochs = epochs_in(seconds, machine.rate or 1.0, of_an_epoch, batch_size)
    warmup = adapting.WARMUP * epochs if given.adapt else min(recipe.warmup_epochs, epochs / 4)
    mean, std = adapting.normalisation(given, start, images)
    if mean is None:
        mean, std = fitting.moments_of(images, console)
    if given.whiten and (given.init is not None or machine.encoder not in OWN_NETS):
        raise ValueError(f"--whiten is for the encoders {', '.join(OWN_NETS)}, without starting weights")
    settings = replace(
        given,
        data=lasting(given.data),
        out=given.out or str(default_folder(given)),
        method=method_name(method) or describe_object(method),
        hyperparameters={one.name: getattr(method, one.name) for one in fields(method)},
        encoder=machine.encoder if isinstance(machine.encoder, str) else describe_object(machine.encoder),
        image_size=images.image_size,
        crop_size=machine.crop_size,
        small_stem=_or(given.small_stem, machine.crop_size < SMALL_STEM_BELOW),
        whiten=_or(given.whiten, given.init is None and images.channels == 3 and machine.encoder in WHITENED),
        layer_decay=_or(given.layer_decay, adapting.LAYER_DECAY if given.adapt else 1.0),
        frozen=_or(given.frozen, adapting.FROZEN if given.adapt else 0),
        mean=mean,
        std=std,
        channels=images.channels,
        value_range=images.value_range or EIGHT_BITS,
        split=_or(given.split, images.split),
        views=views if isinstance(views, (str, ViewPlan)) else describe_object(views),
        held_out=held_out,
        minutes=None,
        epochs=int(epochs) if epochs == int(epochs) else epochs,
        batch_size=batch_size,
        optimizer=_or(given.optimizer, recipe.optimizer),
        lr=_or(given.lr, scaled_lr(recipe.lr, batch_size, recipe.lr_scaling, recipe.reference_batch)),
        final_lr=_or(given.final_lr, recipe.final_lr),
        lr_drops=_or(given.lr_drops, [drop * epochs / recipe.epochs for drop in recipe.lr_drops]),
        lr_drop=_or(given.lr_drop, recipe.lr_drop),
        vector_lr=_or(given.vector_lr, recipe.vector_lr),
        weight_decay=_or(given.weight_decay, recipe.weight_decay),
        decay_all=_or(given.decay_all, recipe.decay_all),
        warmup_epochs=_or(given.warmup_epochs, warmup),
        warmup_start=_or(given.warmup_start, recipe.warmup_start),
        precision=machine.precision,
        devices=processes,
        health_every=_or(given.health_every, max(1, int(epochs) // 20)),
    )
    if machine.rate is not None:
        console.print(Text(reason(machine, settings, of_an_epoch)))
    job = Job(settings, method, machine.encoder, chosen_views(views, settings), images, seconds)
    must_fit(job.views, method)
    return job, _checked_model(job)


def default_folder(given: Settings) -> Path:
    """Return the run folder where none is given."""
    method, _ = chosen_method(given)
    return Path("runs") / f"{printable(_stem(given.data))}-{short_name(method)}"


def _as_the_paper(given: Settings, recipe: Recipe) -> Settings:
    """Return the settings with a paper's encoder, image size and batch statistics, where they are not given."""
    if given.recipe == "small":
        return replace(given, sync_batch_norm=bool(given.sync_batch_norm))
    return replace(
        given,
        encoder=_or(given.encoder, None if given.init else recipe.encoder),
        small_stem=_or(given.small_stem, recipe.small_stem),
        image_size=_or(given.image_size, recipe.image_size),
        views=_or(given.views, recipe.views),
        sync_batch_norm=_or(given.sync_batch_norm, recipe.sync_batch_norm),
    )


def _timed(given: Settings, recipe: Recipe) -> Settings:
    """Return the settings with either minutes, to be filled, or epochs."""
    if given.minutes is not None and given.epochs is not None:
        raise ValueError("--minutes and --epochs both say how long a run is; give one of them")
    if given.epochs is None and given.minutes is None:
        minutes = adapting.MINUTES if given.adapt else MINUTES
        return replace(given, minutes=minutes) if given.recipe == "small" else replace(given, epochs=recipe.epochs)
    return given


def _seconds_left(given: Settings, began: float) -> float:
    """Return the time for training: what reading and measuring left of the minutes, but at least half of them."""
    whole = 60 * _or(given.minutes, MINUTES)
    return max(whole / 2, whole - (time.perf_counter() - began) - FINISHING)


def _measured(
    given: Settings, method: Method, views_at: Callable[[int, int], Any], console: Console, began: float
) -> tuple[Images | Stream, Machine]:
    """Open the images, at a size that is chosen from a measurement unless it is given or theirs is small."""
    images, count, side = None, None, given.image_size or 0
    if given.stream:
        images = open_data(given, console)
        assert isinstance(images, Stream)
        own = images.image_size if images.side <= SMALL else images.side
        count, side = len(images), given.image_size or own
    elif given.image_size is None and (seen := survey(given.data, split_of(given))) is not None:
        count, side = seen
    if side <= SMALL and images is None:
        images = open_data(given, console)
        count, side = len(images), images.image_size
    channels = given.channels or (images.channels if images is not None else 3)

    def at(image_size: int, crop_size: int) -> Views:
        fitted = replace(given, image_size=image_size, crop_size=crop_size, channels=channels)
        views = chosen_views(views_at(crop_size, channels), fitted)
        must_fit(views, method)
        return views

    machine = choose_machine(
        given,
        method,
        at,
        candidates=rungs(given, side, side > SMALL),
        channels=channels,
        images=None if count is None else min(_or(given.limit, count), count),
        seconds=_seconds_left(given, began),
        console=console,
    )
    if images is None or images.image_size != machine.image_size:
        images = open_data(replace(given, image_size=machine.image_size), console)
    return images, machine


def _checked_model(job: Job) -> Model:
    """Build the networks and try the optimiser; raises ValueError for what cannot be built."""
    settings = job.settings
    if not isinstance(job.encoder, (str, nn.Module)):
        raise ValueError(f"encoder must be a name or a torch module, not {job.encoder!r}")
    kinds = (TypeError, RuntimeError, OverflowError, MemoryError)
    with one_line("the networks cannot be built with these settings", *kinds):
        model = job.model()
    build_optimizer(settings.optimizer, model, lr=settings.lr, weight_decay=settings.weight_decay)
    return model


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _stem(data: Any) -> str:
    if are_paths(data):
        return "-".join(dict.fromkeys(map(_stem, data)))[:100]
    return Path(data if isinstance(data, (str, Path)) else type(data).__name__.lower()).stem
