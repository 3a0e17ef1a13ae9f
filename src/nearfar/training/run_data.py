"""The data of a run: found once, whatever is asked of it, and opened once its size is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nearfar.data import Images, Stream, list_splits, open_images, open_stream
from nearfar.data.opening import scanned
from nearfar.data.scanning import Scanned
from nearfar.data.streams import scanned_stream
from nearfar.data.table import SMALL
from nearfar.data.value_range import FormatRequest
from nearfar.progress import say_read
from nearfar.training.settings import Settings


def find_data(given: Settings) -> tuple[Settings, Images | Scanned]:
    """Find the images of a run: its settings with the split to train on, and the data, of which
    folders are walked and headers are read once.

    `Images` that are open keep their size.
    """
    source = given.given("data")
    if given.stream:
        return given, scanned_stream(source)
    data = scanned(source, request=FormatRequest(given.image_size, given.channels))
    if given.split is None and "train" in list_splits(data):
        given = replace(given, split="train")
    if isinstance(data, Images) and data.image_size > SMALL:
        given = replace(given, image_size=given.image_size or data.image_size)
    return given, data


def open_data(settings: Settings, data: Any = None) -> Images | Stream:
    """Open the images of a run, all of them, and say what was read and left out.

    data: what `find_data` returned; default: that of the settings.
    """
    images = reopen_data(settings, data)
    say_read(images)
    return images


def reopen_data(settings: Settings, data: Any = None) -> Images | Stream:
    """Open the images of a run without a word, as in each process of one."""
    data, reading = settings.given("data") if data is None else data, settings.reading
    if settings.stream:
        return open_stream(data, split=settings.split, **reading)
    return open_images(data, split=settings.split, cache=settings.cache, **reading)
