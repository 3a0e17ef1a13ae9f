"""Pretrain an encoder on images without labels and write a run folder.

nearfar pretrain photos/ --minutes 30
nearfar pretrain --resume runs/photos-simclr
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.allocator import reuse_memory
from nearfar.atomic import NotWrittenError, check_folder, replacing
from nearfar.commands.budget import choose_threads
from nearfar.commands.going_on import note_data, saved_job
from nearfar.commands.neighbours import write_neighbours
from nearfar.commands.owner import CONFIG, beginning, clear, owned
from nearfar.commands.report import write_report
from nearfar.commands.resolve import default_folder, new_job
from nearfar.commands.run import Run, load
from nearfar.commands.signature import arguments_of
from nearfar.commands.views import write_views
from nearfar.data.value_range import in_words
from nearfar.methods import Method, Model
from nearfar.networks import Encoder, save_encoder
from nearfar.networks.encoder import WEIGHTS
from nearfar.threads import use_threads
from nearfar.training import (
    Job,
    Settings,
    by_torchrun,
    check_processes,
    follow,
    is_follower,
    launch,
    told_to_stop,
    world_size,
)
from nearfar.training.checkpoint import CHECKPOINT, check_unmoved
from nearfar.training.environment import write_environment
from nearfar.training.job import STARTING
from nearfar.training.speed import usual_precision
from nearfar.views import Views


@arguments_of(Settings)
def pretrain(settings: Settings, console: Console) -> Run:
    """Pretrain an encoder on images without labels and write a run folder.

    Returns:
        The run: its path, encoder, metrics and verdict.

    Raises:
        ValueError: for anything that cannot be run as it is asked for; nothing is written then.
    """
    began = time.perf_counter()
    reuse_memory()
    if by_torchrun() and settings.precision == "auto":
        settings = replace(settings, precision=usual_precision())
    if is_follower():
        return Run(Path(follow(settings.accelerator, settings.precision)))
    if settings.data is None:
        raise ValueError("name the images to train on: nearfar pretrain DATA")
    folder = Path(settings.out) if settings.out is not None else default_folder(settings)
    with told_to_stop(), beginning(folder), _to_be_resumed(folder):
        check_folder(folder)
        settings = replace(settings, out=str(folder), threads=choose_threads(settings))
        with use_threads(settings.threads):
            job, model = new_job(settings, console, began)
            write_folder(folder, settings.data, job, model, console)
            launch(job, console, model=model)
            return _finish(folder, job)


@contextmanager
def _to_be_resumed(folder: Path) -> Iterator[None]:
    """Where the disk is full, or the folder was moved, say how to go on."""
    home = folder.stat()
    try:
        yield
    except OSError as error:
        check_unmoved(folder, home)
        if not isinstance(error, NotWrittenError):
            raise
        how = f"; make room, then go on with: nearfar pretrain --resume {folder}" if (folder / CONFIG).is_file() else ""
        raise NotWrittenError(f"{error}{how}") from error


def _finish(folder: Path, job: Job) -> Run:
    """Write what is looked at after training."""
    settings, images, run = job.settings, job.shown, Run(folder)
    encoder = load(run, encoder=None if isinstance(job.encoder, str) else job.encoder)
    write_neighbours(folder, encoder, images.sampled(settings.limit, settings.seed), settings.seed)
    write_report(folder)
    return run


def write_folder(folder: Path, data: Any, job: Job, model: Model, console: Console) -> None:
    """Begin a run folder: settings, environment, starting weights, unreadable files, views and a first report.

    Says what is about to be done. What a run left here that never came to a checkpoint is removed.
    data: as it was given.
    """
    settings, images = job.settings, job.images
    assert images is not None
    if (folder / CONFIG).exists():
        console.print(Text(f"{folder} holds a run that never came to a checkpoint: it is begun anew"))
    clear(folder)
    write_environment(folder, settings.seed)
    if settings.init is not None:
        moments = dict(mean=settings.mean or images.mean, std=settings.std or images.std)
        start = Encoder(model.backbone, settings.image_size, settings.channels, **moments)
        save_encoder(folder / STARTING, start)
    if images.skipped:
        with replacing(folder / "skipped.txt") as unfinished:
            listed = "".join(f"{name}\t{reason}\n" for name, reason in images.skipped)
            unfinished.write_text(listed, encoding="utf-8")
        console.print(Text(f"{len(images.skipped)} files skipped, listed in {folder / 'skipped.txt'}"))
    write_views(folder, job)
    note_data(folder, data, settings.split, images)
    settings.save(folder / CONFIG)  # last: with it the run has begun, and can be resumed
    total = min(settings.limit or len(images), len(images))
    encoder = settings.encoder if isinstance(settings.encoder, str) else settings.encoder.words
    crops = f" in crops of {settings.crop_size} px" if settings.crop_size != settings.image_size else ""
    method = settings.method if isinstance(settings.method, str) else settings.method.words
    channels = "" if settings.channels in (1, 3) else f" and {settings.channels} channels (views: {job.views.name})"
    drawn = f" (a random sample of {len(images)}, seed {settings.seed})" if total < len(images) else ""
    told = f"{method} on {total} images{drawn} of {settings.image_size} px{channels}{crops}, {encoder}"
    console.print(Text(f"{told}, {settings.epochs:g} epochs, {settings.precision} -> {folder}"))
    if images.value_range is not None:
        console.print(Text(in_words(images.value_range)))
    if settings.stream:
        first = f"the first {len(job.shown)} images, of which {settings.held_out} are held out"
        console.print(Text(f"health and report, mean and standard deviation are those of {first}"))
    write_report(folder)


def resume(
    run: str | Path | Run,
    *,
    data: Any = None,
    method: Method | None = None,
    encoder: nn.Module | None = None,
    views: Views | Any = None,
    devices: int | None = None,
    threads: int | None = None,
    data_changed: bool = False,
    console: Console | None = None,
) -> Run:
    """Go on with a run from its checkpoint, as if it had never been interrupted.

    Args:
        run: run folder.
        data: the images, where they were an object of your own or lie elsewhere now; the first holds for method,
            encoder and views too.
        devices: processes. Default: as many as the run had, or all that torchrun started.
        threads: CPU threads of each process from now on. Default: as many as before; with another number the last
            digits of the numbers differ from those of an uninterrupted run.
        data_changed: go on although the data is no longer what the run began with, where the method allows it.
        console: where progress is shown.

    Returns:
        The run.

    Raises:
        ValueError: where an object is missing, the data has changed, another process writes the folder, or it is not
            that of a run.
    """
    reuse_memory()
    run, console = Run.of(run), console or Console()
    settings = run.settings
    if is_follower():
        return Run(Path(follow(settings.accelerator, settings.precision)))
    if devices is not None or by_torchrun():
        settings = replace(settings, devices=world_size(devices))
    check_processes(settings.devices, settings.batch_size, settings.micro_batch, settings.sync_batch_norm)
    if settings.stream and settings.devices != run.settings.devices:
        raise ValueError(
            f"a stream is divided among the processes that began to read it: go on with {run.settings.devices}"
        )
    with told_to_stop(), owned(run.path), _to_be_resumed(run.path):
        if (run.path / WEIGHTS).is_file() and not (run.path / CHECKPOINT).is_file():
            raise ValueError(f"{run.path} is a finished run without its checkpoint: there is nothing to go on from")
        settings = _with_threads(settings, threads, console)
        objects = dict(data=data, method=method, encoder=encoder, views=views)
        with use_threads(settings.threads):
            job = saved_job(settings, console, objects, data_changed)
            if job.settings.threads != run.settings.threads:
                replace(run.settings, data=job.settings.data, threads=job.settings.threads).save(run.path / CONFIG)
            launch(job, console, resume=True)
            return _finish(run.path, job)


def _with_threads(settings: Settings, threads: int | None, console: Console) -> Settings:
    """Return the settings with another number of threads where one is asked for, and say what that changes."""
    if threads not in (None, settings.threads):
        said = f"--threads {threads} in place of {settings.threads}: from here on the last digits of the numbers differ"
        console.print(Text(f"{said} from those of an uninterrupted run"))
        return replace(settings, threads=threads)
    if settings.threads > (cores := os.cpu_count() or 1):
        console.print(Text(f"the run has {settings.threads} threads for {cores} cores; --threads {cores} is faster"))
    return settings
