"""New images on an existing map: their coordinates by the map as a function, and a page with
both.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from torch import Tensor, nn

from nearfar.data import Images
from nearfar.data.table import stacked
from nearfar.maps import find_map, load_map, map_quality, origin
from nearfar.maps.columns import NEAREST, columns_of
from nearfar.maps.thumbnails import thumbnails
from nearfar.neighbours import find_nearest, paths_of
from nearfar.pages.lists import GATHERED
from nearfar.pages.map import THUMBNAIL_SIZES, write_map
from nearfar.run import Run, load
from nearfar.run_features import features_shown, open_shown, sampled_shown
from nearfar.training.settings import Settings

OLD, NEW = "images of the map", "new images"  # classes


def transform(
    run: Run,
    data: Any,
    onto: str | Path,
    page: Path,
    settings: Settings,
    *,
    split: str | None,
    table: pyarrow.Table | None,
    limit: int,
    seed: int,
    encoder: nn.Module | None,
    console: Any,
) -> str:
    """Add new images to an existing map of the run, whose images stay in place, and draw both;
    returns a line about it.

    settings: of the run. table: columns by the names of images, old and new. console: of rich, for
    progress. The .json beside the page has the coordinates of the new images by name. Raises
    FileNotFoundError for a missing map, and ValueError for a file that is no map, and if the
    encoder or the images of the map changed.
    """
    if data is None:
        raise ValueError(
            "--onto adds other images to a map: name them, as in nearfar map RUN OTHER --onto map"
        )
    file = find_map(onto, run.path)
    saved = load_map(file)
    about = saved.about
    if about.get("data") is None:
        raise ValueError(
            f"the images of {file} were an object, which no file has: draw a map of a folder first"
        )
    trained = load(run, encoder=encoder)
    placing = saved.encoder(trained)
    reading = settings.reading_for(trained.image_size)
    old = open_shown(about["data"], console, split=about.get("split"), **reading)
    count = min(about.get("images", 0), len(old))
    old = old.sampled(count, about["sample"]) if "sample" in about else old.subset(range(count))
    now = origin(run.path, old)
    for part, what in (
        ("encoder", f"the encoder of {run.path}"),
        ("names", f"the images in {about['data']}"),
    ):
        if now[part] != about.get(part):
            raise ValueError(f"{what} changed since {file} was drawn: draw the map again")
    new = sampled_shown(open_shown(data, console, split=split, **reading), limit, seed, console)
    columns = stacked([old.columns, new.columns], [len(old), len(new)])
    names = [*old.names, *new.names]
    files = [*paths_of(old), *paths_of(new)]
    paths = [file or name for file, name in zip(files, names, strict=True)]
    columns = columns_of(columns, table, names, True, paths)
    features = [features_shown(trained, images, console, "features") for images in (old, new)]

    def on_the_map(images: Images, known: Tensor, rows: list[int]) -> Tensor:
        if placing is trained:
            return known[rows]
        return features_shown(placing, images.subset(rows), console, "features")

    placed = [
        saved.place(images, partial(on_the_map, images, known))
        for images, known in zip((old, new), features, strict=True)
    ]
    coordinates = torch.cat(placed)
    near = find_nearest(torch.cat(features), k=min(NEAREST, len(coordinates) - 1)).index
    quality = map_quality(torch.cat(features), coordinates, near=near)
    rows = zip(new.names, coordinates[len(old) :].tolist(), strict=True)
    numbers: dict[str, Any] = {
        "layout": about.get("layout"),
        "onto": str(file),
        "new": [{"name": name, "x": x, "y": y} for name, (x, y) in rows],
    }
    note = f"{len(new)} new images among {len(old)}"
    if quality is not None:
        of_old, of_new = (float(some.mean()) for some in np.split(quality.kept, [len(old)]))
        numbers |= {"old_neighbours_kept": of_old, "new_neighbours_kept": of_new}
        note += (
            f", with {100 * of_new:.0f} % of their {quality.neighbours} nearest "
            f"neighbours near on the map too"
        )
        note += f" (the others: {100 * of_old:.0f} %)"
    write_map(
        page,
        _together(old, new),
        coordinates,
        quality,
        numbers=numbers,
        note=note,
        columns=columns,
        near=near,
    )
    return note


def _together(images: Images, new: Images) -> Images:
    """Thumbnails of the images of a map and of new images as one set, with the new images as its
    last class.
    """
    small_enough = len(images) + len(new) <= THUMBNAIL_SIZES[0][0]
    size = THUMBNAIL_SIZES[0 if small_enough else 1][1]
    parts = [
        (some, rows) for some in (images, new) for rows in torch.arange(len(some)).split(GATHERED)
    ]
    small = torch.cat([thumbnails(some.pictures(rows), size) for some, rows in parts])
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
