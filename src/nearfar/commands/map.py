"""Draw a 2-D map of the images, similar ones together: an interactive page and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.atomic import check_folder, replacing
from nearfar.commands.map_columns import map_columns
from nearfar.commands.objects import chosen_views
from nearfar.commands.opening import PAGES, check_output, features_shown, open_shown, shown
from nearfar.commands.report import write_report
from nearfar.commands.run import Run, load
from nearfar.maps import draw_map, fit_map, write_map_page
from nearfar.maps.column_file import join_columns, read_table
from nearfar.maps.page import MOST_IMAGES
from nearfar.messages import check_range
from nearfar.training.seeding import LARGEST_SEED, stream

MOST_VIEWS, MOST_EPOCHS = 1000, 10_000


def map_images(
    run: str | Path | Run,
    data: Any = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    limit: int = 20_000,
    num_views: int = 8,
    epochs: int | None = None,
    seed: int = 0,
    columns: str | Path | None = None,
    encoder: nn.Module | None = None,
    views: Any = None,
    console: Console | None = None,
) -> Path:
    """Draw a 2-D map of the images, similar ones together: an interactive page and a picture.

    Args:
        run: run folder.
        data: images to draw. Default: the data of the run.
        out: page to write, .html, or a folder for more images than a page holds, with a .png beside it; neither may
            exist. Default: map.html in the run folder, or above 20 000 images the folder map, replaced if it is there.
        split: part of the data. Default: that of the run.
        limit: draw the first so many images only.
        num_views: augmented views of each image that the map learns from.
        epochs: passes over the images. Default: fitted to their number.
        seed: of the map.
        columns: .parquet or .csv file with a column "name" and others to colour the images by.
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
    settings = run.settings
    page = run.path / "map.html" if out is None else Path(out)
    picture = page.with_suffix(".png")
    if out is None:
        check_folder(run.path)
    else:
        check_output(page, PAGES if page.suffix else ("",), beside=".png")
    table = None if columns is None else read_table(columns)
    source = settings.given("data") if data is None else data
    split = split or (settings.split if data is None else None)
    plan = chosen_views(settings.given("views") if views is None else views, settings)
    trained = load(run, encoder=encoder)
    images = open_shown(source, console, split=split, image_size=settings.image_size, channels=settings.channels)
    images = images.subset(range(min(limit, len(images))))
    joined = {} if table is None else join_columns(table, images.names)
    if out is None and len(images) > MOST_IMAGES:
        page = run.path / "map"
    seen = []
    for number in range(num_views):
        title, view = f"view {number + 1} of {num_views}", plan.pick([number % len(plan)])
        seen.append(features_shown(trained, images, console, title, view, stream(seed, "map", number)))
    features = features_shown(trained, images)
    with console.status("laying out the map"):
        places = fit_map(torch.stack(seen), features, epochs=epochs, seed=seed)
    known, near = map_columns(trained, images, features, plan, console, seed=seed)
    with replacing(picture) as drawn, replacing(page) as written:  # both or none
        draw_map(drawn, places, images.labels, images.class_names, images=images)
        with shown(console, "thumbnails") as progress:
            write_map_page(written, places, images, columns=joined | known, neighbours=near, progress=progress)
    if out is None:
        if not page.suffix:
            (run.path / "map.html").unlink(missing_ok=True)  # of fewer images, and older
        write_report(run.path)
    page = page / "index.html" if page.is_dir() else page
    console.print(Text(f"map -> {page}"))
    return page
