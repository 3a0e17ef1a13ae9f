"""New images on an old map: placed by its function and drawn among its images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.commands.map_files import origin, write_map
from nearfar.commands.opening import features_shown, open_shown, sampled_shown
from nearfar.commands.run import Run, load
from nearfar.data import Images
from nearfar.data.table_columns import as_arrays, stacked
from nearfar.maps import SavedMap, load_map, map_quality
from nearfar.maps.column_file import join_columns
from nearfar.maps.thumbnails import thumbnails
from nearfar.networks import Encoder
from nearfar.pages.map import THUMBNAIL_SIZES

NEW, OLD = "new images", "images of the map"


def place_onto(
    run: Run,
    data: Any,
    onto: str | Path,
    page: Path,
    *,
    split: str | None,
    table: pyarrow.Table | None,
    limit: int,
    seed: int,
    encoder: nn.Module | None,
    reading: Mapping[str, Any],
    console: Console,
) -> Path:
    """Place images among those of an earlier map of the run, which stay where they are, and draw both.

    table: columns by the names of images, old and new, to colour them by, besides those of tables of paths.
    reading: how images are opened, as `Settings.reading` of the run.
    The numbers beside the page hold the places of the new images by name. Raises FileNotFoundError for a map that
    there is not, and ValueError for a file that is none, for another encoder than the map's, and where the images of
    the map cannot be found again.
    """
    if data is None:
        raise ValueError("--onto places other images on a map: name them, as in nearfar map RUN OTHER --onto map")
    file = map_file(run, onto)
    saved = load_map(file)
    about = saved.about
    if about.get("data") is None:
        raise ValueError(f"the images of {file} were an object, which no file holds: draw a map of a folder first")
    trained = load(run, encoder=encoder)
    placing = trained if saved.backbone is None else placing_encoder(run, saved, file, encoder)
    old = open_shown(about["data"], console, split=about.get("split"), **reading)
    count = min(about.get("images", 0), len(old))
    old = old.sampled(count, about["sample"]) if "sample" in about else old.subset(range(count))
    now = origin(run, about["data"], about.get("split"), old)
    for part, what in (("encoder", f"the encoder of {run.path}"), ("names", f"the images in {about['data']}")):
        if now[part] != about.get(part):
            raise ValueError(f"{what} changed since {file} was drawn: draw the map again")
    new = open_shown(data, console, split=split, **reading)
    new = sampled_shown(new, limit, seed, console)
    joined = stacked([old.columns, new.columns], [len(old), len(new)])
    columns = {} if joined is None else as_arrays(joined)
    columns.pop("label", None)  # the page has a column of that name
    columns |= {} if table is None else join_columns(table, [*old.names, *new.names])
    features = [features_shown(trained, images, console, "features") for images in (old, new)]
    own = features[1] if placing is trained else features_shown(placing, new, console, "placing")
    places = torch.cat([saved.places, saved.function(own)])
    quality = map_quality(torch.cat(features), places)
    where = zip(new.names, places[len(old) :].tolist(), strict=True)
    numbers: dict[str, Any] = {
        "layout": about.get("layout"),
        "onto": str(file),
        "new": [{"name": name, "x": x, "y": y} for name, (x, y) in where],
    }
    note = f"{len(new)} new images among {len(old)}"
    if quality is not None:
        kept, of_new = (float(some.mean()) for some in np.split(quality.kept, [len(old)]))
        numbers |= {"old_neighbours_kept": kept, "new_neighbours_kept": of_new}
        note += f", with {100 * of_new:.0f} % of their {quality.neighbours} nearest neighbours near on the map too"
        note += f" (the others: {100 * kept:.0f} %)"
    near = None if quality is None else torch.from_numpy(quality.nearest)
    write_map(page, places, _together(old, new), quality, numbers, note, columns=columns, near=near, console=console)
    console.print(Text(note))
    console.print(Text(f"map -> {page}"))
    return page


def placing_encoder(run: Run, saved: SavedMap, file: Path, encoder: nn.Module | None = None) -> Encoder:
    """The encoder whose features a map places, with the weights that it keeps; ValueError where they do not fit."""
    placing = load(run, encoder=encoder)
    try:
        placing.backbone.net.load_state_dict(dict(saved.backbone or {}))
    except RuntimeError as error:
        raise ValueError(f"{file} holds weights of another encoder than {run.path}") from error
    return placing


def map_file(run: Run, onto: str | Path) -> Path:
    """The saved map of a name in the run folder, or of a page or file anywhere."""
    path = Path(onto)
    name = path.with_suffix("") if path.suffix in (".html", ".safetensors") else path
    inside, elsewhere = run.path / f"{name}.safetensors", Path(f"{name}.safetensors")
    return elsewhere if elsewhere.is_file() and not inside.is_file() else inside


def _together(old: Images, new: Images) -> Images:
    """Thumbnails of both as one set, whose classes are those of the map and, as the last, the new images."""
    count = len(old) + len(new)
    size = next((size for most, size in THUMBNAIL_SIZES if count <= most), THUMBNAIL_SIZES[-1][1])
    small = [
        thumbnails(images.pictures(rows), size)
        for images in (old, new)
        for rows in torch.arange(len(images)).split(512)
    ]
    labels = np.zeros(len(old), dtype=np.int64) if old.labels is None else old.labels
    names = [OLD] if old.labels is None else list(old.class_names or map(str, range(int(labels.max()) + 1)))
    return Images(
        torch.cat(small),
        names=[*old.names, *new.names],
        image_size=small[0].shape[-1],
        channels=3,
        labels=np.concatenate([labels, np.full(len(new), len(names))]),
        class_names=[*names, NEW],
    )
