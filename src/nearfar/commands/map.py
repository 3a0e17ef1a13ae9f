"""Draw a 2-D map of the images, similar ones together: an interactive page and a picture.

nearfar map runs/photos
nearfar map runs/photos new/ --onto map.html --out new.html
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.atomic import check_folder
from nearfar.commands.layouts import LAYOUTS, check_layout, lay_out
from nearfar.commands.map_columns import map_columns
from nearfar.commands.map_files import BESIDE, origin, write_map
from nearfar.commands.objects import chosen_views
from nearfar.commands.onto import place_onto
from nearfar.commands.opening import PAGES, check_output, features_shown, open_shown, sampled_shown
from nearfar.commands.report import write_report
from nearfar.commands.run import Run, load
from nearfar.data.table_columns import as_arrays
from nearfar.maps import SavedMap, map_quality
from nearfar.maps.column_file import join_columns, read_table
from nearfar.messages import check_range
from nearfar.pages.map import MOST_IMAGES
from nearfar.training.seeding import LARGEST_SEED

MOST_VIEWS, MOST_EPOCHS = 1000, 10_000


def map_images(
    run: str | Path | Run,
    data: Any = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    label_column: str | None = None,
    limit: int = 20_000,
    layout: str | None = None,
    num_views: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    onto: str | Path | None = None,
    columns: str | Path | None = None,
    approximate: bool = False,
    show_channels: list[int] | None = None,
    encoder: nn.Module | None = None,
    views: Any = None,
    console: Console | None = None,
) -> Path:
    """Draw a 2-D map of the images, similar ones together: an interactive page and a picture.

    Args:
        run: run folder.
        data: images to draw, of one or more sources. Default: the data of the run.
        out: page to write, .html, or a folder for more images than a page holds, with .png, .json and .safetensors
            beside it; none may exist. Default: map.html in the run folder, or above 20 000 images the folder map,
            replaced if it is there; with --onto map-new.html.
        split: part of the data. Default: that of the run.
        label_column: column of the data with the labels. Default: one of a usual name, such as label.
        limit: draw a random sample of so many images.
        layout: projector (a small net on the frozen encoder), finetune (it and the encoder are trained further) or
            cluster-embedding (by the nearest neighbours of the features). Default: projector.
        num_views: augmented views of each image that the projector learns from. Default: 8.
        epochs: passes over the images, with finetune those of the encoder. Default: fitted to their number.
        seed: of the map, and of the sample.
        onto: an earlier map of this run, by its name there or its file: the images are placed among those of that map.
        columns: .parquet or .csv file with a column "name" and others to colour the images by. Those of a table of
            paths are there without it.
        approximate: search with faiss's index instead of comparing all pairs: for hundreds of thousands of images.
            The share of the true nearest that it finds is said.
        show_channels: channels that the pictures show, one or three, counted from 1. Default: those of the run.
        encoder: the module that was trained, where it was an object of your own.
        views: a view plan, or a callable on uint8 batches. Default: that of the run.
        console: where progress is shown.

    Returns:
        The page that was written.
    """
    console = console or Console()
    run = Run.of(run)
    check_range("--limit", limit, 1)
    check_range("--num-views", num_views, 2, MOST_VIEWS)
    check_range("--epochs", epochs, 1, MOST_EPOCHS)
    check_range("--seed", seed, 0, LARGEST_SEED)
    if onto is not None and (layout, num_views, epochs, views) != (None, None, None, None):
        raise ValueError("--onto places images on a map as it is: leave --layout, --num-views, --epochs and views out")
    if onto is not None and label_column is not None:
        raise ValueError("--onto keeps the labels of its map: leave --label-column out")
    layout = layout or LAYOUTS[0]
    check_layout(layout, num_views)
    settings = run.settings if show_channels is None else replace(run.settings, show_channels=show_channels)
    page = run.path / ("map.html" if onto is None else "map-new.html") if out is None else Path(out)
    if out is None:
        check_folder(run.path)
    else:
        check_output(page, PAGES if page.suffix else ("",), beside=BESIDE if onto is None else BESIDE[:2])
    table = None if columns is None else read_table(columns)
    if onto is not None:
        how: dict[str, Any] = dict(
            split=split, table=table, limit=limit, seed=seed, encoder=encoder, reading=settings.reading
        )
        return place_onto(run, data, onto, page, **how, console=console)
    source = settings.given("data") if data is None else data
    split = split or (settings.split if data is None else None)
    plan = chosen_views(settings.given("views") if views is None else views, settings)
    trained = load(run, encoder=encoder)
    images = open_shown(source, console, split=split, label_column=label_column, **settings.reading)
    total = len(images)
    images = sampled_shown(images, limit, seed, console)
    joined = {} if images.columns is None else as_arrays(images.columns)
    if images.labels is not None:
        joined.pop("label", None)  # the page has a column of that name for them
    joined |= {} if table is None else join_columns(table, images.names)
    if out is None and len(images) > MOST_IMAGES:
        page = run.path / "map"
    features = features_shown(trained, images, console, "features")
    made = lay_out(layout, trained, images, features, plan, console, num_views=num_views, epochs=epochs, seed=seed)
    known, near = map_columns(trained, images, features, plan, console, seed=seed, approximate=approximate)
    quality = map_quality(features, made.places, images.labels, near=near, seed=seed)
    about = {"layout": layout, **origin(run, source, split, images)}
    about |= {"sample": seed} if len(images) < total else {}
    weights = None if made.encoder is None else made.encoder.backbone.net.state_dict()
    saved = SavedMap(made.function, made.places, about, weights)
    note = "" if quality is None else f"The map {quality.words}"
    write_map(page, made.places, images, quality, {"layout": layout}, note, saved, joined | known, near, console)
    if out is None:
        if not page.suffix:
            (run.path / "map.html").unlink(missing_ok=True)  # of fewer images, and older
        write_report(run.path)
    console.print(Text(note), end="\n" if note else "")
    page = page / "index.html" if page.is_dir() else page
    console.print(Text(f"map -> {page}"))
    return page
