"""From a run folder to the job that goes on with it, on the data that the run began with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from nearfar.commands.objects import chosen_method, chosen_views, lasting, must_fit, open_data, split_of
from nearfar.commands.owner import CONFIG, FINGERPRINT
from nearfar.data import Fingerprint, Images, Stream, fingerprint_of, fingerprint_of_images
from nearfar.methods import Method
from nearfar.training import Job, Settings


def saved_job(settings: Settings, console: Console, objects: dict[str, Any], data_changed: bool) -> Job:
    """Resolve the settings of a run folder, with the user's own objects given again where a file cannot hold them.

    Raises ValueError where the data is not what the run began with, in one line that says what has changed.
    data_changed: take it all the same, where the method keeps no numbers for each image.
    """
    whole = replace(settings, **{name: value for name, value in objects.items() if value is not None})
    method = whole.given("method")
    if isinstance(method, str):
        method, _ = chosen_method(whole)
    views = chosen_views(whole.given("views"), settings)
    must_fit(views, method)
    data, folder = whole.given("data"), Path(settings.out)
    try:
        now = None if settings.stream else fingerprint_of(data, split_of(whole))
        if now is not None:
            _must_be_same(folder, now, method, data_changed)  # before anything is decoded
        images = open_data(whole, console)
    except FileNotFoundError as error:
        raise ValueError(f"{error}; where the data lies now: nearfar pretrain DATA --resume {folder}") from error
    if now is None:
        now = fingerprint_of_images(images) if isinstance(images, Images) else images.fingerprint
        _must_be_same(folder, now, method, data_changed)
    total = min(settings.limit or len(images), len(images))
    if settings.batch_size > total - settings.held_out:
        needed = f"the batch of {settings.batch_size} and {settings.held_out} held out"
        raise ValueError(f"{total} images are too few for {needed}: put the data back, or begin a new run")
    now.save(folder / FINGERPRINT)
    job = Job(replace(settings, data=lasting(data)), method, whole.given("encoder"), views, images)
    if job.settings.data != settings.data:
        job.settings.save(folder / CONFIG)
    return job


def note_data(folder: Path, data: Any, split: str | None, images: Images | Stream) -> None:
    """Write the fingerprint of a new run's data into its folder."""
    if isinstance(images, Images):
        found = fingerprint_of(data, split) or fingerprint_of_images(images)
    else:
        found = images.fingerprint
    found.save(folder / FINGERPRINT)


def _must_be_same(folder: Path, now: Fingerprint, method: Method, data_changed: bool) -> None:
    path = folder / FINGERPRINT
    difference = Fingerprint.load(path).difference(now) if path.is_file() else ""
    if not difference:
        return
    said = f"the data of this run has changed ({difference})"
    if method.setup(now.count or 1).needs_index:
        raise ValueError(
            f"{said}, and its method keeps numbers for each image, which would land on others: "
            "put the data back, or begin a new run"
        )
    if not data_changed:
        raise ValueError(f"{said}: put it back, or go on all the same with --data-changed (data_changed=True)")
