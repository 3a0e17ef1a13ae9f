"""Pretrain an encoder on images without labels and write a run folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.allocator import reuse_memory
from nearfar.atomic import NotWrittenError, check_folder, replacing
from nearfar.commands.neighbours import write_neighbours
from nearfar.commands.report import write_report
from nearfar.commands.resolve import new_job, saved_job
from nearfar.commands.run import Run, load
from nearfar.commands.signature import arguments_of
from nearfar.commands.views import write_views
from nearfar.methods import Method, Model
from nearfar.networks import Encoder, save_encoder
from nearfar.training import Job, Settings, by_torchrun, check_processes, follow, is_follower, launch, world_size
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
    folder_must_be_new(settings.out)
    job, model = new_job(settings, console, began)
    folder = folder_must_be_new(job.settings.out)
    with _to_be_resumed(folder):
        write_folder(folder, job, model, console)
        launch(job, console, model=model)
        return _finish(folder, job)


@contextmanager
def _to_be_resumed(folder: Path) -> Iterator[None]:
    """Where the disk is full, say how to go on; nothing stays of a folder that nothing could be written into."""
    try:
        yield
    except NotWrittenError as error:
        with suppress(OSError):
            folder.rmdir()
        how = f"; make room, then go on with: nearfar pretrain --resume {folder}" if folder.exists() else ""
        raise NotWrittenError(f"{error}{how}") from error


def _finish(folder: Path, job: Job) -> Run:
    """Write what is looked at after training."""
    settings, images, run = job.settings, job.images, Run(folder)
    assert images is not None
    encoder = load(run, encoder=None if isinstance(job.encoder, str) else job.encoder)
    write_neighbours(folder, encoder, images.subset(range(len(images))[: settings.limit]), settings.seed)
    write_report(folder)
    return run


def folder_must_be_new(out: str | None) -> Path:
    """Return the folder to write.

    Raises ValueError where something lies there already, OSError where it cannot be made.
    """
    folder = Path(out or "")
    if out is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists already; choose another --out, or go on with --resume {folder}")
    if out is not None:
        check_folder(next(path for path in (folder, *folder.parents) if path.exists()))
    return folder


def write_folder(folder: Path, job: Job, model: Model, console: Console) -> None:
    """Begin a run folder: settings, environment, starting weights, unreadable files, views and a first report.

    Says what is about to be done.
    """
    settings, images = job.settings, job.images
    assert images is not None
    folder.mkdir(parents=True, exist_ok=True)
    settings.save(folder / "config.yaml")
    write_environment(folder, settings.seed)
    if settings.init is not None:
        moments = dict(mean=settings.mean or images.mean, std=settings.std or images.std)
        start = Encoder(model.backbone, settings.image_size, settings.channels, **moments)
        save_encoder(folder / STARTING, start)
    if images.skipped:
        with replacing(folder / "skipped.txt") as unfinished:
            unfinished.write_text("".join(f"{name}\t{reason}\n" for name, reason in images.skipped))
        console.print(Text(f"{len(images.skipped)} unreadable files skipped, listed in {folder / 'skipped.txt'}"))
    total = min(settings.limit or len(images), len(images))
    encoder = settings.encoder if isinstance(settings.encoder, str) else settings.encoder.words
    crops = f" in crops of {settings.crop_size} px" if settings.crop_size != settings.image_size else ""
    method = settings.method if isinstance(settings.method, str) else settings.method.words
    told = f"{method} on {total} images of {settings.image_size} px{crops}, {encoder}, {settings.epochs:g} epochs"
    console.print(Text(f"{told}, {settings.precision} -> {folder}"))
    write_views(folder, job)
    write_report(folder)


def resume(
    run: str | Path | Run,
    *,
    data: Any = None,
    method: Method | None = None,
    encoder: nn.Module | None = None,
    views: Views | Any = None,
    devices: int | None = None,
    console: Console | None = None,
) -> Run:
    """Go on with a run from its checkpoint, as if it had never been interrupted.

    Args:
        run: run folder.
        data: the images, where they were an object of your own; so are method, encoder and views.
        devices: processes. Default: as many as the run had, or all that torchrun started.
        console: where progress is shown.

    Returns:
        The run.

    Raises:
        ValueError: where an object is missing, or the folder is not that of a run.
    """
    reuse_memory()
    run = Run.of(run)
    settings = replace(run.settings, out=str(run.path))
    if is_follower():
        return Run(Path(follow(settings.accelerator, settings.precision)))
    if devices is not None or by_torchrun():
        settings = replace(settings, devices=world_size(devices))
    check_processes(settings.devices, settings.batch_size, settings.micro_batch, settings.sync_batch_norm)
    job = saved_job(settings, console or Console(), dict(data=data, method=method, encoder=encoder, views=views))
    with _to_be_resumed(run.path):
        launch(job, console or Console(), resume=True)
        return _finish(run.path, job)
