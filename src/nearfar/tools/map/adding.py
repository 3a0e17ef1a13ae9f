"""New images on an existing map: their coordinates by the map as a function, and a page with
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from torch import Tensor

from nearfar.data import Images
from nearfar.data.opening import shown_positions
from nearfar.data.table import concat_columns
from nearfar.data.thumbnails import thumbnails
from nearfar.embeddings import Embeddings
from nearfar.embeddings.embeddings import compute_features
from nearfar.embeddings.sources import read_images
from nearfar.maps import (
    Map,
    MapQuality,
    digests_of,
    find_map,
    load_map,
    map_fingerprint,
    map_quality,
)
from nearfar.maps.columns import NEAREST, columns_of
from nearfar.neighbours import find_nearest
from nearfar.pages.sheet import GATHERED
from nearfar.tools.map.page import THUMBNAIL_SIZES, Plane
from nearfar.tools.map.result import DrawnMap

OLD, NEW = "images of the map", "new images"  # classes


def add_to_map(
    new: Embeddings,
    add_to: str | Path,
    table: pyarrow.Table | None,
    show_channels: Sequence[int] | None,
) -> DrawnMap:
    """Add new images to an existing map of the run, whose images stay in place.

    table: columns by the names of images, old and new. The .json beside the page has the
    coordinates of the new images by name. Raises FileNotFoundError for a missing map, and
    ValueError for a file that is no map, and if the encoder or the images of the map changed.
    """
    run = new.run
    assert run is not None and new.encoder is not None
    if new.source is run.settings.given("data"):
        raise ValueError(
            "`add_to` adds other images to a map: name them, as in "
            "`nearfar.map(RUN, OTHER, add_to=MAP)`"
        )
    file = find_map(add_to, run.path)
    saved = load_map(file)
    old = _old_images(new, saved, file)
    placed = torch.cat([place_on_map(saved, photos) for photos in (old, new)])
    features = torch.cat([old.features, new.features])
    near = find_nearest(features, k=min(NEAREST, len(placed) - 1)).index
    quality = map_quality(features, placed, near=near)
    numbers, note = _fit_of_new_images(old, new, placed, quality)
    names = [*old.images.names, *new.images.names]
    paths = [*(old.paths or old.images.names), *(new.paths or new.images.names)]
    columns = concat_columns([old.images.columns, new.images.columns], [len(old), len(new)])
    shown = [_with_channels(photos.images, show_channels) for photos in (old, new)]
    plane = Plane(
        images=_together(*shown),
        coordinates=placed,
        quality=quality,
        columns=columns_of(columns, table, names, True, paths),
        near=near,
        note=note,
    )
    numbers = {"layout": saved.about.get("layout"), "added_to": str(file), **numbers}
    return DrawnMap(new, plane, numbers)


def _old_images(new: Embeddings, saved: Map, file: Path) -> Embeddings:
    """Open the images of the map again; ValueError where they or the encoder have changed."""
    about, run, encoder = saved.about, new.run, new.encoder
    assert run is not None and encoder is not None
    if about.get("data") is None:
        raise ValueError(
            f"the images of {file} were an object, which no file has: draw a map of a folder first"
        )
    reading = run.settings.reading_for(encoder.image_size)
    images = read_images(about["data"], split=about.get("split"), **reading)
    count = min(about.get("images", 0), len(images))
    if "sample" in about:
        images = images.sampled(count, about["sample"])
    else:
        images = images.subset(range(count))
    now = map_fingerprint(run.path, images)
    for part, changed in (
        ("encoder", f"the encoder of {run.path}"),
        ("names", f"the images in {about['data']}"),
    ):
        if now[part] != about.get(part):
            raise ValueError(f"{changed} changed since {file} was drawn: draw the map again")
    return Embeddings(images, encoder, run.path.name, about["data"], about.get("split"), run=run)


def place_on_map(saved: Map, photos: Embeddings) -> Tensor:
    """Return the coordinates of images on a map, by its own encoder where it has one."""
    assert photos.encoder is not None
    own = saved.encoder(photos.encoder)

    def features_of(rows: list[int]) -> Tensor:
        if own is photos.encoder:
            return photos.features[rows]
        return compute_features(own, photos.images.subset(rows))

    return saved.place(photos.images, features_of)


def _fit_of_new_images(
    old: Embeddings, new: Embeddings, placed: Tensor, quality: MapQuality | None
) -> tuple[dict[str, Any], str]:
    """Return numbers for the .json, and a line on how well the new images fit in."""
    places = zip(new.images.names, placed[len(old) :].tolist(), strict=True)
    numbers: dict[str, Any] = {"new": [{"name": name, "x": x, "y": y} for name, (x, y) in places]}
    note = f"{len(new)} new images among {len(old)}"
    if known := _on_the_map_already(old.images, new.images):
        note = f"{len(new)} images among {len(old)}, {known} of them on the map already"
    if quality is None:
        return numbers, note
    of_old, of_new = (float(kept.mean()) for kept in np.split(quality.kept, [len(old)]))
    numbers |= {"old_neighbours_kept": of_old, "new_neighbours_kept": of_new}
    note += (
        f", with {100 * of_new:.0f} % of their {quality.neighbours} nearest neighbours near on "
        f"the map too (the others: {100 * of_old:.0f} %)"
    )
    return numbers, note


def _on_the_map_already(old: Images, new: Images) -> int:
    """Return how many of the new images have the content of one on the map, where that is known."""
    if digests_of(old) is None or digests_of(new) is None:
        return 0
    on_map = set(old.digests)
    return sum(digest in on_map for digest in new.digests)


def _with_channels(images: Images, show_channels: Sequence[int] | None) -> Images:
    """Return the images with these channels on their pictures."""
    if show_channels is None:
        return images
    images = copy(images)
    images.shown = shown_positions(list(show_channels), images.channels)
    return images


def _together(images: Images, new: Images) -> Images:
    """Thumbnails of the images of a map and of new images as one set, with the new images as its
    last class.
    """
    small_enough = len(images) + len(new) <= THUMBNAIL_SIZES[0][0]
    size = THUMBNAIL_SIZES[0 if small_enough else 1][1]
    parts = [
        (part, rows) for part in (images, new) for rows in torch.arange(len(part)).split(GATHERED)
    ]
    small = torch.cat([thumbnails(part.pictures(rows, size), size) for part, rows in parts])
    labels, classes = images.labels, images.class_names
    if labels is None:
        labels, classes = np.zeros(len(images), dtype=np.int64), [OLD]
    classes = list(classes or map(str, range(int(labels.max()) + 1)))
    return Images(
        small,
        names=[*images.names, *new.names],
        labels=np.concatenate([labels, np.full(len(new), len(classes))]),
        class_names=[*classes, NEW],
        source=f"{images.where} and {new.where}",
    )
