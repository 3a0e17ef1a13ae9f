"""Images with samples of their views, what the views are in words, and the page of a run that shows
both.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from nearfar.atomic import write_file
from nearfar.data import Images, describe, open_images
from nearfar.data.sources import are_paths
from nearfar.data.thumbnails import ENLARGED, data_url, thumbnails
from nearfar.pages.template import in_channels, words, write_page
from nearfar.training.job import Job
from nearfar.training.seeding import stream
from nearfar.views import View, ViewPlan, Views, eight_bits, make_views, names_in

SHOWN = 96  # pixels of the largest view on the page
STORED = 128  # and at most in its data, for screens with more pixels
IN_REPORT = 5  # images
SAMPLES_IN_REPORT = 8  # of all views of an image together


def views_shown(images: Images, views: Views, *, samples: int, seed: int) -> dict[str, Any]:
    """Return what the section "views" shows, as JSON can hold it.

    That is the distributions of the views, and each image as it is and with `samples` samples of
    each view, which keep their sizes relative to each other. seed: of the samples.
    """
    every = torch.arange(len(images))
    pixels, generator = images.gather(every), stream(seed, "views shown")
    as_they_are = [0.0] * images.channels, [1.0] * images.channels  # mean and deviation
    drawn = [
        [*map(eight_bits, make_views(pixels, views, generator, *as_they_are))]
        for _ in range(samples)
    ]
    sizes = [view.shape[-1] for view in drawn[0]]
    largest = max(sizes)
    factor = SHOWN // largest if largest < ENLARGED else SHOWN / largest
    stored = min(1.0, STORED / largest)
    chosen = slice(None) if images.shown is None else images.shown
    originals = _urls(images.pictures(every), STORED)
    made = [
        [_urls(view[:, chosen], round(stored * view.shape[-1])) for view in views]
        for views in drawn
    ]
    shown = [
        {
            "name": name,
            "url": originals[row],
            "views": [[sheet[view][row] for sheet in made] for view in range(len(sizes))],
        }
        for row, name in enumerate(images.names)
    ]
    sides = [round(factor * size) for size in sizes]
    return {"side": max(sides), "sides": sides, "images": shown, **_table(views, images)}


def _urls(images: UInt8[Tensor, "images channels side side"], size: int) -> list[str]:
    tiles = thumbnails(images, max(1, size))
    return [data_url(tile, lossless=tile.shape[-1] < ENLARGED) for tile in tiles]


def _table(views: Views, images: Images) -> dict[str, Any]:
    """The distributions of views with the numbers of their views; or the name of the function that
    makes them.
    """
    if not isinstance(views, ViewPlan):
        return {"function": str(views.name)}
    names = names_in(views.name)
    names = names if len(names) == len(views) else (views.name,) * len(views)
    numbers: dict[tuple[str, View], list[int]] = {}
    for number, key in enumerate(zip(names, views.views, strict=True), 1):
        numbers.setdefault(key, []).append(number)
    kinds = [
        {**asdict(view), "name": name, "numbers": of_kind, "size": view.size or images.image_size}
        for (name, view), of_kind in numbers.items()
    ]
    return {
        "function": None,
        "kinds": kinds,
        "channels": images.channels,
        "keep_colour": views.keep_colour,
    }


def write_views(folder: Path, job: Job) -> None:
    """Write views.html into the folder of a run, with a few of its images, and views.json, the same
    for the report.
    """
    few, settings = open_images(job.shown, few=IN_REPORT), job.settings
    samples = max(1, SAMPLES_IN_REPORT // len(job.views))
    content = views_shown(few, job.views, samples=samples, seed=settings.seed)
    title = title_of(settings.data, settings.method)
    write_page(folder / "views.html", "views.html", title=title, about=about(few), content=content)
    write_file(folder / "views.json", json.dumps(content) + "\n")


def title_of(data: Any, method: Any) -> str:
    """Return the title of a page of views, such as "Views of photos by simclr"."""
    name = getattr(data, "words", None) or describe(data)
    return f"Views of {name if are_paths(data) else Path(name).name} by {words(method)}"


def about(few: Images) -> str:
    """Count, size, channels and splits of images, in words."""
    size = f"{len(few)} images of {few.image_size} px, {in_channels(few.channels)}"
    return ", ".join(filter(None, [size, few.of_splits]))
