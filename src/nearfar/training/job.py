"""A run with every name resolved to an object, and its launch on one process or many."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from nearfar.data import Images, Stream
from nearfar.messages import lasting_streams
from nearfar.methods import Method, Model, Recipe
from nearfar.networks import Backbone, Encoder, SmallNet, build_backbone, whiten_stem
from nearfar.networks.backbone import with_grid
from nearfar.progress import log
from nearfar.rendering import shown_nowhere
from nearfar.threads import use_threads
from nearfar.training.batch_norm import spread_norm_groups, sync_batch_norm
from nearfar.training.loop import (
    StoppedByHook,
    TrainingDiverged,
    TrainingStopped,
    fit,
    write_encoder,
)
from nearfar.training.processes import (
    Process,
    by_torchrun,
    followers,
    lost_in_one_line,
    meeting,
    this_process,
    world_size,
)
from nearfar.training.run_data import reopen_data
from nearfar.training.run_folder import CONFIG, STARTING, OnMetrics
from nearfar.training.seeding import derive_seed
from nearfar.training.settings import Described, Precision, Settings
from nearfar.training.teacher import load_teacher, teacher_of
from nearfar.views import Views

WHITENED_BY = 200  # images


@dataclass(frozen=True)
class Job:
    """All that a run needs: its settings, with nothing left to choose, and the objects that they
    name or describe.

    images: all of the data; None in a process that opens it again by its name. seconds: time for
    the training, which the number of epochs is then fitted to.
    """

    settings: Settings
    method: Method
    recipe: Recipe
    encoder: str | nn.Module
    views: Views
    images: Images | Stream | None
    seconds: float | None = None

    @property
    def shown(self) -> Images:
        """Return the images that can be looked at: all, or the first ones of a stream."""
        assert self.images is not None
        return self.images.head if isinstance(self.images, Stream) else self.images

    @cached_property
    def sets(self) -> tuple[Images | Stream, Images | None]:
        """Return the images to train on and those held out to measure health on, if any."""
        settings = self.settings
        images = self.images or reopen_data(settings)
        if isinstance(images, Images):
            images = images.sampled(settings.limit, settings.seed)
        if settings.mean is not None and settings.std is not None:
            images = images.normalised_by(settings.mean, settings.std)
        return (
            images.split_holdout(settings.held_out, settings.seed)
            if settings.held_out
            else (images, None)
        )

    def model(self) -> Model:
        """Build the networks and the loss as they stand before the first step."""
        images, _ = self.sets
        backbone = initial_backbone(self.settings, self.encoder)
        if self.settings.whiten:
            _whiten(backbone, images.head if isinstance(images, Stream) else images)
        return Model(self.method, backbone, len(images), teacher_of(self.settings))


def initial_backbone(settings: Settings, encoder: str | nn.Module) -> Backbone:
    """Build the backbone as it stands before the first step, but for whitening: the same weights
    for the same settings.

    Starting weights are read from the run's own copy of them once there is one, so that the run
    needs no other file.
    """
    torch.manual_seed(derive_seed(settings.seed, "weights"))
    init: str | Path | None = settings.init
    if init is not None and (copied := Path(settings.out) / STARTING).is_dir():
        init = copied
    backbone = build_backbone(
        encoder, image_size=settings.crop_size, channels=settings.channels, init=init
    )
    backbone = with_grid(backbone, 1)  # as projectors take it
    backbone.freeze(settings.frozen)
    if settings.whiten:
        backbone.net.conv.requires_grad_(False)
    if init is not None:
        torch.manual_seed(
            derive_seed(settings.seed, "projector")
        )  # alike wherever the weights were read
    return backbone


def _whiten(backbone: Backbone, images: Images) -> None:
    assert isinstance(backbone.net, SmallNet)
    rows = torch.linspace(0, len(images) - 1, min(WHITENED_BY, len(images))).long()
    seen = Encoder(backbone, images.image_size, images.channels, images.mean, images.std)
    whiten_stem(backbone.net, seen.preprocess(images.gather(rows)))


logging.getLogger("torch.multiprocessing.spawn").setLevel(
    logging.ERROR
)  # `ProcessLost` says what was lost


def launch(
    job: Job,
    resume: bool = False,
    model: Model | None = None,
    on_metrics: OnMetrics | None = None,
) -> None:
    """Train to the last epoch and write the encoder into the run folder, as the first of the
    processes that the settings ask for.

    The others were started by torchrun, or are started here; each opens the data again by its name
    (from the cache), or gets images that have none. model: `job.model(...)` if it has been built
    already. on_metrics: see `pretrain`. Raises ProcessLost where another process dies, besides what
    `fit` raises.
    """
    settings = job.settings
    described = isinstance(settings.data, Described)
    elsewhere = replace(job, images=job.images if described else None)  # without its sets
    process = this_process(settings.accelerator, settings.precision, settings.devices)
    with lost_in_one_line(settings.devices, settings.out), ExitStack() as stack:
        store = None
        if settings.devices > 1 and not by_torchrun():
            store = stack.enter_context(followers(process, _take_part, settings.out))
        stack.enter_context(meeting(process, store))
        stack.enter_context(use_threads(settings.threads))
        process.broadcast((elsewhere, resume))
        _run(process, job, resume, model, on_metrics)


def follow(accelerator: str, precision: Precision) -> str:
    """Take part in a run that the first process of torchrun prepares, as one of the others; returns
    its folder.
    """
    process = this_process(accelerator, precision, world_size(None))
    with lost_in_one_line(process.world_size, "RUN"), meeting(process):
        return _received(process)


def _take_part(process: Process) -> None:
    """Take part in a run that the first process has prepared, and which all end together."""
    with lasting_streams(), suppress(TrainingStopped, TrainingDiverged):
        _received(process)


def _received(process: Process) -> str:
    """Get a run from the first process and train it; returns its folder."""
    received: tuple[Job, bool] | None = process.broadcast(None)
    assert received is not None
    job, resume = received
    with shown_nowhere(), use_threads(job.settings.threads):
        _run(process, job, resume)
    return job.settings.out


def _run(
    process: Process,
    job: Job,
    resume: bool,
    model: Model | None = None,
    on_metrics: OnMetrics | None = None,
) -> None:
    settings = job.settings
    images, validation = job.sets
    model = job.model() if model is None else model
    if settings.teacher is not None:
        assert isinstance(images, Images)
        model.teacher_rows = load_teacher(Path(settings.out), images)
    if settings.sync_batch_norm and process.world_size > 1:
        sync_batch_norm(model)
    spread_norm_groups(model, settings.batch_size)
    try:
        epochs = fit(
            process,
            model,
            images,
            validation,
            job.views,
            settings,
            job.recipe,
            resume,
            job.seconds,
            on_metrics if process.is_first else None,
        )
    except StoppedByHook as ending:  # in all processes, and the run is as it is after Ctrl-C
        log.info("%s", ending)
        return
    if process.is_first:
        if epochs != settings.epochs:
            replace(settings, epochs=epochs).save(Path(settings.out) / CONFIG)
        write_encoder(Path(settings.out), model, images, settings)
