"""The command that pretrains an encoder, and resumes an interrupted run.

nearfar pretrain photos/ --minutes 30
nearfar pretrain --resume runs/photos-simclr
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.allocator import reuse_memory
from nearfar.atomic import NotWrittenError, check_folder
from nearfar.isolation import isolated
from nearfar.progress import log
from nearfar.training.settings import Settings, arguments_of

if TYPE_CHECKING:
    from torch import nn

    from nearfar.embeddings.teacher import FoundTeacher
    from nearfar.methods import Method
    from nearfar.run import Run
    from nearfar.training.job import Job
    from nearfar.training.run_folder import OnMetrics
    from nearfar.views import Views


@arguments_of(Settings)
@isolated()
def pretrain(settings: Settings, *, on_metrics: OnMetrics | None = None) -> Run:
    """Pretrain an encoder on images without labels and write a run folder.

    Args:
        on_metrics: function that is called with each line of metrics.jsonl, a dictionary with
            "step", "epoch" and either "loss", "lr", "images_per_second" or "health". Where it
            returns True the run stops after that step (on several GPUs up to ten steps later),
            saved, and is returned; where it raises an error the run is saved and the error raised.
            For trackers and searches (examples/trackers.py).

    Returns:
        The run: its path, encoder, metrics and verdict.

    Raises:
        ValueError: for anything that cannot be run as requested; nothing is written then.

    >>> run = nearfar.pretrain("photos", out="runs/short", epochs=1, batch_size=8)
    >>> run.settings.method
    'simclr'
    """
    from nearfar.embeddings.teacher import find_teacher
    from nearfar.evaluation import are_gray
    from nearfar.evaluation.results import gray_words
    from nearfar.pages.report import write_report
    from nearfar.pages.views import write_views
    from nearfar.run import Run
    from nearfar.threads import use_threads
    from nearfar.training.facts import choose_threads, default_precision
    from nearfar.training.job import follow, launch
    from nearfar.training.prepare import prepare
    from nearfar.training.processes import by_torchrun, is_follower, world_size
    from nearfar.training.request import default_folder
    from nearfar.training.run_folder import CONFIG, clear, create_run_folder
    from nearfar.training.run_header import write_run_header
    from nearfar.training.stopping import interrupt_on_sigterm

    began = time.perf_counter()
    reuse_memory()
    if by_torchrun() and settings.precision == "auto":
        settings = replace(settings, precision=default_precision(settings))
    if is_follower():
        return Run(Path(follow(settings.accelerator, settings.precision)))
    if settings.data is None:
        raise ValueError("name the images to train on: nearfar pretrain DATA")
    world_size(settings.devices)  # raises an error before a folder is made
    teacher = None if settings.teacher is None else find_teacher(settings.teacher)
    folder = Path(settings.out) if settings.out is not None else default_folder(settings)
    with interrupt_on_sigterm(), create_run_folder(folder), _resumable(folder):
        check_folder(folder)
        settings = replace(settings, out=str(folder), threads=choose_threads(settings))
        with use_threads(settings.threads):
            job, model = prepare(settings, began)
            gray = settings.channels is None and are_gray(job.shown)
            if advice := gray_words(gray, job.settings.image_size):
                log.info("%s", advice)
            if (folder / CONFIG).exists():
                log.info("%s has no checkpoint; restarting", folder)
            clear(folder)
            if teacher is not None:
                job = _taught(folder, job, teacher)
            write_views(folder, job)
            write_run_header(folder, job, model)
            write_report(folder)
            launch(job, model=model, on_metrics=on_metrics)
            return _finish(folder, job)


@isolated()
def resume(
    run: str | Path | Run,
    *,
    data: Any = None,
    method: Method | None = None,
    encoder: nn.Module | None = None,
    views: Views | Any = None,
    accelerator: str | None = None,
    devices: int | None = None,
    threads: int | None = None,
    epochs: float | None = None,
    data_changed: bool = False,
    on_metrics: OnMetrics | None = None,
) -> Run:
    """Resume a run from its checkpoint, as if it had never been interrupted, or train it longer.

    Args:
        run: run folder.
        data: the images, if they were an object of your own or have moved; likewise method, encoder
            and views.
        accelerator: device, as in `pretrain`; another one changes the last digits. Default: that of
            the run.
        devices: processes. Default: as many as the run had, or all that torchrun started.
        threads: CPU threads of each process from now on. Default: as many as before; with another
            number the last digits of the results differ from those of an uninterrupted run.
        epochs: train on to so many passes over the images, with the whole state: the learning rate
            and all else that is scheduled goes on as in a run of so many epochs. Default: those of
            the run.
        data_changed: resume although the data has changed since the run began, if the method allows
            it.
        on_metrics: function that is called with each line of metrics, see `pretrain`.

    Returns:
        The run.

    Raises:
        ValueError: if an object is missing, the data has changed, another process writes the
            folder, it is not that of a run, or more epochs are trained already.

    >>> nearfar.resume("runs/photos").path.name
    'photos'
    """
    from nearfar.run import Run
    from nearfar.threads import use_threads
    from nearfar.training.job import follow, launch
    from nearfar.training.processes import is_follower, world_size
    from nearfar.training.run_folder import lock_run_folder
    from nearfar.training.run_header import note_resumed, resume_plan
    from nearfar.training.stopping import interrupt_on_sigterm

    reuse_memory()
    run = Run.of(run)
    settings = run.settings  # raises an error where this is no run folder, before a lock is written
    if is_follower():
        return Run(Path(follow(accelerator or settings.accelerator, settings.precision)))
    world_size(devices)  # raises an error before a lock is written
    objects = dict(data=data, method=method, encoder=encoder, views=views)
    with interrupt_on_sigterm(), lock_run_folder(run.path), _resumable(run.path):
        longer = settings if epochs is None else _longer(run, settings, epochs)
        job = resume_plan(longer, objects, data_changed, accelerator, devices, threads)
        note_resumed(run.path, job, settings)
        with use_threads(job.settings.threads):
            launch(job, resume=True, on_metrics=on_metrics)
            return _finish(run.path, job)


def _longer(run: Run, settings: Settings, epochs: float) -> Settings:
    """Return the settings of a run that trains to so many epochs; raises ValueError for fewer than
    it has trained.
    """
    settings = replace(settings, epochs=epochs)  # which checks the number
    trained = max((line["epoch"] for line in run.metrics if "epoch" in line), default=0)
    if epochs < trained:
        raise ValueError(f"`epochs={epochs:g}`: {run.path} has trained {trained:g} already")
    log.info("going on to %g epochs: the learning rate goes on as in a run of so many", epochs)
    return settings


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Say how to resume if the disk is full or the folder was moved."""
    from nearfar.training.run_folder import CONFIG, check_unmoved

    home = folder.stat()
    try:
        yield
    except OSError as error:
        check_unmoved(folder, home)
        if not isinstance(error, NotWrittenError):
            raise
        begun = (folder / CONFIG).is_file()
        remedy = (
            f"; free some space, then resume with: `nearfar.resume({str(folder)!r})`"
            if begun
            else ""
        )
        raise NotWrittenError(f"{error}{remedy}") from error


def _taught(folder: Path, job: Job, teacher: FoundTeacher) -> Job:
    """Write the teacher's features of the training images; the job has that much less time left."""
    from nearfar.data import Images
    from nearfar.training.teacher import save_teacher

    began = time.perf_counter()
    images, _ = job.sets
    assert isinstance(images, Images)  # no stream has a teacher
    save_teacher(folder, teacher.features(images, job.shown), images)
    if job.seconds is None:
        return job
    return replace(job, seconds=max(job.seconds / 2, job.seconds - time.perf_counter() + began))


def _finish(folder: Path, job: Job) -> Run:
    """Write the nearest images and the report of a trained run, and log its verdict."""
    from nearfar.pages.report import write_neighbours, write_report
    from nearfar.run import Run, load

    settings, run = job.settings, Run(folder)
    encoder = load(run, encoder=None if isinstance(job.encoder, str) else job.encoder)
    write_neighbours(
        folder, encoder, job.shown.sampled(settings.limit, settings.seed), settings.seed
    )
    write_report(folder)
    for line in (run.shortened, run.verdict.words if run.verdict else ""):
        if line:
            log.info("%s", line)
    log.info("report -> %s", folder / "report.html")
    return run
