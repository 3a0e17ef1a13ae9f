"""The command that draws a map of images.

nearfar map runs/photos
nearfar map runs/photos new/ --onto map.html --out new.html
nearfar map photos/
nearfar map clip.parquet photos/
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.text import Text

from nearfar.atomic import PAGES, check_folder, check_output
from nearfar.isolation import isolated
from nearfar.messages import check_range, check_seed

if TYPE_CHECKING:
    from torch import nn

MOST_VIEWS, MOST_EPOCHS = 1000, 10_000


@isolated()
def map_images(
    run: Any,
    data: Any = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    label_column: str | None = None,
    limit: int = 20_000,
    layout: Literal["cluster-embedding", "projector", "finetune"] | None = None,
    num_views: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    onto: str | Path | None = None,
    columns: str | Path | None = None,
    approximate: bool = False,
    show_channels: list[int] | None = None,
    encoder: str | nn.Module | None = None,
    views: Any = None,
    console: Console | None = None,
) -> Path:
    """Draw a 2-D map of the images, similar ones together: an interactive page and a figure.

    Args:
        run: run folder; or, without one, the data itself, or a file of vectors made elsewhere
            (docs/neighbours.md).
        data: images to draw, of one or more sources. Default: the data of the run.
        out: page to write, .html, or a folder for more images than a page holds, with .png, .json
            and .safetensors beside it; none may exist. Default: map.html in the run folder, or
            above 20 000 images the folder map, which are replaced; with --onto map-new.html.
            Without a run SOURCE-map in the working directory.
        split: part of the data; "all" for everything. Default: that of the run, of other data its
            training split.
        label_column: column of the data with the labels. Default: one of a usual name, such as
            label.
        limit: number of images; of more, a random sample is drawn.
        layout: cluster-embedding (keeps the nearest neighbours in feature space, as t-SNE does),
            projector (a small net on the frozen encoder) or finetune (trains the encoder as well).
            Default: cluster-embedding.
        num_views: augmented views of each image for training the projector. Default: 8.
        epochs: passes over the images, by the encoder with finetune. Default: 300 for
            cluster-embedding.
        seed: random seed of the map and of the sample.
        onto: existing map of this run, by its name there or its file, to which the images are
            added.
        columns: .parquet, .csv, .tsv or .jsonl file with a column "name" (or "path", ...) and
            others to colour the images by, in addition to the columns of a table of paths.
        approximate: search with faiss's index instead of comparing all pairs, for hundreds of
            thousands of images; the share of the true nearest neighbours that it finds is reported.
        show_channels: channels of the thumbnails, one or three, counted from 1. Default: those of
            the run.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand. In Python also the trained module of a
            run, if it was an object of your own.
        views: a view plan, or a callable on uint8 batches. Default: that of the run.
        console: console for progress and messages.

    Returns:
        The page that was written.

    >>> nearfar.map_images("runs/photos", epochs=10).name
    'map.html'
    """
    from nearfar.data.opening import shown_positions
    from nearfar.device import find_device
    from nearfar.maps import LAYOUTS, check_layout, digests_of, lay_out, map_quality, origin
    from nearfar.maps.cluster_embedding import ATTRACTING
    from nearfar.maps.columns import columns_of, neighbour_columns, read_table, retrieval_column
    from nearfar.neighbours import find_nearest
    from nearfar.pages.map import BESIDE, MOST_IMAGES, write_map
    from nearfar.pages.report import write_report
    from nearfar.pages.transform import transform
    from nearfar.run import Run
    from nearfar.run_features import open_featured, run_or_data
    from nearfar.threads import fastest_threads, use_threads
    from nearfar.training.plan import chosen_views, lasting
    from nearfar.training.settings import Described, Settings

    run, console = run_or_data(run), console or Console()
    of_run = isinstance(run, Run)
    unusual = (onto, num_views, show_channels, views, layout if layout != LAYOUTS[0] else None)
    if not of_run and any(one is not None for one in unusual):
        without = "--onto, --num-views, --show-channels, views and other layouts"
        raise ValueError(
            f"{run.path} is no run, whose encoder and views the map needs: leave {without} out"
        )
    settings: Settings | None = run.settings if of_run else None
    if settings is not None and show_channels is not None:
        settings = replace(settings, show_channels=show_channels)
    check_range("--limit", limit, 1)
    check_range("--num-views", num_views, 2, MOST_VIEWS)
    check_range("--epochs", epochs, 1, MOST_EPOCHS)
    check_seed(seed)
    if onto is not None and any(
        one is not None for one in (layout, num_views, epochs, views, label_column)
    ):
        without = "--layout, --num-views, --epochs, --label-column and views"
        raise ValueError(f"--onto uses an existing map as it is: leave {without} out")
    chosen: str = layout or LAYOUTS[0]
    check_layout(chosen, num_views)
    if out is None:
        check_folder(run.path if of_run else Path())
    else:
        check_output(
            Path(out),
            PAGES if Path(out).suffix else ("",),
            beside=BESIDE if onto is None else BESIDE[:2],
        )
    table = None if columns is None else read_table(columns)
    if onto is not None and settings is not None:
        page = Path(out or run.path / "map-new.html")
        given: dict[str, Any] = dict(
            split=split, table=table, limit=limit, seed=seed, encoder=encoder, console=console
        )
        note = transform(run, data, onto, page, settings, **given)
        console.print(Text(f"{note}\nmap -> {page}"))
        return page

    if settings is None:
        source, plan = run.source, None
    else:
        source = settings.given("data") if data is None else data
        split = split or (settings.split if data is None else None)
        plan = chosen_views(settings.given("views") if views is None else views, settings)
    whole = open_featured(run, data, split, encoder, console, least=1, label_column=label_column)
    featured = whole.sampled(limit, seed)
    images, trained = featured.images, featured.encoder if of_run else None
    if show_channels is not None:
        images = copy(images)
        images.shown = shown_positions(show_channels, images.channels)
    features = featured.features
    labelled = images.labels is not None
    colours = columns_of(images.columns, table, images.names, labelled, featured.paths)
    found: dict[str, Any] = {}
    near = None
    search = partial(find_nearest, approximate=approximate)
    if len(images) > 1:
        near = search(features, k=min(ATTRACTING, len(images) - 1))
        found = neighbour_columns(near)
    if near is not None and trained is not None and plan is not None:
        found["positive-pair retrieval"] = retrieval_column(
            trained, images, plan, seed, search, device=find_device()
        )
    with use_threads(fastest_threads()):
        made = lay_out(
            chosen,
            trained,
            images,
            features,
            plan,
            neighbours=near,
            num_views=num_views,
            epochs=epochs,
            seed=seed,
        )
    index = None if near is None else near.index
    quality = map_quality(features, made.coordinates, images.labels, near=index, seed=seed)
    known = lasting(source)
    about = {"data": None if isinstance(known, Described) else known, "split": split}
    about |= origin(run.path, images) if of_run else {}
    about |= {"sample": seed} if len(images) < len(whole.images) else {}
    made = replace(made, about={**made.about, **about}, digests=digests_of(images))
    note = "" if quality is None else f"The map {quality.words}"
    ending = ".html" if len(images) <= MOST_IMAGES else ""
    page = Path(out or (run.path / f"map{ending}" if of_run else f"{run.stem}-map{ending}"))
    write_map(
        page,
        images,
        made.coordinates,
        quality,
        numbers={"layout": chosen},
        note=note,
        saved=made,
        columns=colours | found,
        near=index,
    )
    if out is None and of_run:
        if not page.suffix:
            (run.path / "map.html").unlink(missing_ok=True)  # of fewer images, and older
        write_report(run.path)
    page = page / "index.html" if page.is_dir() else page
    console.print(Text(f"{note}\nmap -> {page}".strip()))
    return page
