"""The start of a run: what its folder holds before the first step, and the job of one that is
resumed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow

from nearfar.atomic import write_file
from nearfar.data import Images, Stream, difference, scan
from nearfar.data.opening import scanned
from nearfar.data.table import load_table, save_table
from nearfar.data.value_range import FormatRequest, describe_range
from nearfar.messages import raise_as_value_error
from nearfar.methods import Method, Model
from nearfar.networks import Encoder, save_encoder
from nearfar.networks.encoder import WEIGHTS
from nearfar.progress import log
from nearfar.training.environment import write_environment
from nearfar.training.job import Job
from nearfar.training.processes import (
    by_torchrun,
    check_machine,
    check_processes,
    world_size,
)
from nearfar.training.readout import beside_words, check_beside
from nearfar.training.request import resolve_method, serializable_source
from nearfar.training.run_data import open_data
from nearfar.training.run_folder import CHECKPOINT, CONFIG, SKIPPED, STARTING, TABLE
from nearfar.training.settings import Settings
from nearfar.training.teacher import load_teacher
from nearfar.training.view_choice import check_num_views, resolve_views

COMPILED = (
    "this run is compiled (`compile`), and torch may compile it anew in another way: from "
    "here on the last digits of "
    "the results may differ from those of an uninterrupted run"
)


def write_run_header(folder: Path, job: Job, model: Model) -> None:
    """Write environment, starting weights, skipped files and settings of a new run, and log what
    it will do.
    """
    settings, images = job.settings, job.images
    assert images is not None
    write_environment(folder, settings.seed)
    if settings.init is not None:
        start = Encoder(
            model.backbone,
            settings.image_size,
            settings.channels,
            mean=settings.mean or images.mean,
            std=settings.std or images.std,
        )
        save_encoder(folder / STARTING, start)
    if images.skipped:
        write_file(
            folder / SKIPPED, "".join(f"{name}\t{reason}\n" for name, reason in images.skipped)
        )
        listed_in = folder / SKIPPED
        log.warning("what was left out (%d) is listed in %s", len(images.skipped), listed_in)
    save_table(images.table, folder / TABLE)
    settings.save(folder / CONFIG)  # last: with it the run has begun, and can be resumed
    log.info("%s", _summary(job, images))
    if settings.crop_size > settings.image_size:
        log.warning(
            "crops of %d px are enlarged from images of %d px: a larger image size has more "
            "detail only if the files do",
            settings.crop_size,
            settings.image_size,
        )
    if images.value_range is not None:
        log.info("%s", describe_range(images.value_range))
    if settings.stream:
        first = (
            f"the first {len(job.shown)} images, {settings.held_out} of them in the validation set"
        )
        log.info("health, report, mean and standard deviation use %s", first)


def _summary(job: Job, images: Images | Stream) -> str:
    settings = job.settings
    method, encoder = (
        getattr(value, "words", value) for value in (settings.method, settings.encoder)
    )
    total = min(settings.limit or len(images), len(images))
    sample = (
        f" (a random sample of {len(images)}, seed {settings.seed})" if total < len(images) else ""
    )
    crops = (
        f" in crops of {settings.crop_size} px" if settings.crop_size != settings.image_size else ""
    )
    channels = (
        ""
        if settings.channels in (1, 3)
        else f" and {settings.channels} channels (views: {job.views.name})"
    )
    validation = (
        ""
        if settings.stream or not settings.held_out
        else f", {settings.held_out} of them for validation"
    )
    teacher = f", teacher {settings.teacher}" if settings.teacher else ""
    others = beside_words(settings.beside)
    saved = f"{encoder} (saved beside {others})" if others else encoder
    data = f"{total} images{sample} of {settings.image_size} px{channels}{crops}{validation}"
    return (
        f"{method} on {data}, {saved}{teacher}, {settings.epochs:g} epochs, "
        f"{settings.precision} -> {settings.out}"
    )


def resume_plan(
    settings: Settings,
    objects: dict[str, Any],
    data_changed: bool = False,
    accelerator: str | None = None,
    devices: int | None = None,
    threads: int | None = None,
) -> Job:
    """Resolve the settings of a run folder, with the user's own objects given again where a file
    cannot hold them.

    Nothing is written; see `note_resumed`. data_changed: accept other data than the run began with,
    if the method keeps nothing for each image. accelerator, devices, threads: others than those of
    the run. Raises ValueError for a finished run without its checkpoint, and for changed data, in
    one line that says how.
    """
    folder = Path(settings.out)
    if (folder / WEIGHTS).is_file() and not (folder / CHECKPOINT).is_file():
        raise ValueError(
            f"{folder} is a finished run without its checkpoint: there is nothing to resume"
        )
    whole = _going_on(settings, objects, accelerator, devices, threads)
    own = isinstance(method := whole.given("method"), Method)  # it has its hyperparameters
    with raise_as_value_error(f"the settings of {folder}", ValueError):
        check_beside(settings)  # before hours of training, and not where they end
        method, recipe = resolve_method(
            replace(whole, method=method, hyperparameters={}) if own else whole
        )
        views = resolve_views(whole.given("views"), settings)
        check_num_views(views, method)
    images = _same_data(folder, whole, method, data_changed)
    total = min(settings.limit or len(images), len(images))
    if settings.batch_size > total - settings.held_out:
        needed = f"a batch of {settings.batch_size} and a validation set of {settings.held_out}"
        raise ValueError(
            f"{total} images are too few for {needed}: restore the data, or start a new run"
        )
    here = replace(
        settings,
        data=serializable_source(whole.data),
        threads=whole.threads,
        accelerator=whole.accelerator,
        devices=whole.devices,
    )
    job = Job(here, method, recipe, whole.given("encoder"), views, images)
    if settings.teacher is not None:
        train, _ = job.sets
        assert isinstance(train, Images)
        load_teacher(folder, train)  # what is missing, damaged or of other images is said here
    return job


def note_resumed(folder: Path, job: Job, before: Settings) -> None:
    """Write what a run is from now on into its folder: its data, threads and epochs; the devices
    are those of this time alone.

    before: the settings that the folder holds.
    """
    noted = replace(job.settings, accelerator=before.accelerator, devices=before.devices)
    if noted != before:
        noted.save(folder / CONFIG)
    assert job.images is not None
    save_table(job.images.table, folder / TABLE)


def _going_on(
    settings: Settings,
    objects: dict[str, Any],
    accelerator: str | None,
    devices: int | None,
    threads: int | None,
) -> Settings:
    """Return the settings of a resumed run with the user's objects, on the devices of now.

    Raises ValueError for what this machine does not have.
    """
    given = {name: value for name, value in objects.items() if value is not None}
    processes = world_size(devices) if devices is not None or by_torchrun() else settings.devices
    check_processes(processes, settings.batch_size, settings.micro_batch, settings.sync_batch_norm)
    if settings.stream and processes != settings.devices:
        raise ValueError(f"a stream is divided among its processes: resume with {settings.devices}")
    if threads not in (None, settings.threads):
        warning = (
            "`threads=%d` in place of %d: from here on the last digits of the results differ from "
            "those of an uninterrupted run"
        )
        log.info(warning, threads, settings.threads)
    if settings.compile:
        log.info(COMPILED)
    whole = replace(
        settings,
        **given,
        accelerator=accelerator or settings.accelerator,
        devices=processes,
        threads=settings.threads if threads is None else threads,
    )
    check_machine(whole.accelerator, whole.precision, processes)
    return whole


def _same_data(
    folder: Path, settings: Settings, method: Method, data_changed: bool
) -> Images | Stream:
    """Open the data of a run; raises ValueError where it has changed."""
    data, table = settings.given("data"), None
    try:
        if not settings.stream:
            request = FormatRequest(settings.image_size, settings.channels)
            settings = replace(settings, data=scanned(data, request=request))
            table = scan(settings.data, settings.split)
        if table is not None and table["digest"].null_count == len(table):
            table = None  # of arrays, whose pixels must be read
        if table is not None:
            # before anything is decoded
            _must_be_same(folder, table, method, data_changed)
        images = open_data(settings)
    except FileNotFoundError as error:
        raise ValueError(
            f"{error}; where the data lies now: `nearfar.resume({str(folder)!r}, data=DATA)`"
        ) from error
    if table is None:
        _must_be_same(folder, images.table, method, data_changed)
    return images


def _must_be_same(folder: Path, now: pyarrow.Table, method: Method, data_changed: bool) -> None:
    path, changed = folder / TABLE, ""
    if os.path.lexists(path):
        changed = difference(load_table(path), now)
    else:
        log.warning("there is no %s: whether the data has changed is not checked", path)
    change = f"the data of this run has changed ({changed})"
    if changed and method.setup(len(now) or 1).needs_index:
        why = "its method keeps numbers for each image, which would be applied to others"
        raise ValueError(f"{change}, and {why}: restore the data, or start a new run")
    if changed and not data_changed:
        raise ValueError(f"{change}: restore it, or resume anyway with `data_changed=True`")
