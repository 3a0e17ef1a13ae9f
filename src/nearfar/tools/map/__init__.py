"""The tool that draws a map of images.

nearfar map runs/photos
nearfar map runs/photos new/ --add-to map.html --out new.html
nearfar map photos/
nearfar map clip.parquet photos/
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nearfar.tools.registry import Between, Seed, tool

if TYPE_CHECKING:
    from nearfar.embeddings import Embeddings
    from nearfar.tools.map.result import DrawnMap
    from nearfar.views import Views

MOST_VIEWS, MOST_EPOCHS = 1000, 10_000


@tool(
    page="map",
    beside=(".png", ".json", ".safetensors"),
    folder=True,
    data="images to draw, of one or more sources",
    labels=True,
    fewest=1,
)
def map(
    photos: Embeddings,
    *,
    limit: Annotated[int, Between(1)] = 20_000,
    layout: Literal["cluster-embedding", "projector", "finetune"] | None = None,
    num_views: Annotated[int | None, Between(2, MOST_VIEWS)] = None,
    epochs: Annotated[int | None, Between(1, MOST_EPOCHS)] = None,
    seed: Seed = 0,
    add_to: str | Path | None = None,
    columns: str | Path | None = None,
    approximate: bool = False,
    show_channels: list[int] | None = None,
    views: Views | None = None,
) -> DrawnMap:
    """Draw a 2-D map of the images, similar ones together: an interactive page and a figure.

    Above 20 000 images the page is a folder, which opens from disk as well. With `add_to` it is
    map-new.html in the run folder by default.

    Args:
        limit: number of images; of more, a random sample is drawn.
        layout: cluster-embedding (keeps the nearest neighbours in feature space, as t-SNE does),
            projector (a small net on the frozen encoder) or finetune (trains the encoder as well).
            Default: cluster-embedding.
        num_views: augmented views of each image for training the projector. Default: 8.
        epochs: passes over the images, by the encoder with finetune, where fewer than 20 shorten
            the projector's training too. Default: 300 for cluster-embedding.
        seed: random seed of the map and of the sample.
        add_to: existing map of this run, by its name there or its file, to which the images are
            added.
        columns: .parquet, .csv, .tsv or .jsonl file with a column "name" (or "path", ...) and
            others to colour the images by, in addition to the columns of a table of paths.
        approximate: search by inverted lists instead of comparing all pairs, for hundreds of
            thousands of images; the share of the true nearest neighbours that it finds is reported.
        show_channels: channels of the thumbnails, one or three, counted from 1. Default: those of
            the run.
        views: a view plan, or a callable on uint8 batches. Default: that of the run.

    Returns:
        Columns "name", "x", "y" and, for images in files, "path"; `path` is the page.

    >>> nearfar.map("runs/photos", epochs=10).path.name
    'map.html'
    """
    from nearfar.maps import check_layout
    from nearfar.maps.columns import read_table
    from nearfar.tools.map.adding import add_to_map
    from nearfar.tools.map.result import Drawing, draw

    unusual = (
        add_to,
        num_views,
        show_channels,
        views,
        layout if layout != "cluster-embedding" else None,
    )
    if photos.run is None and any(option is not None for option in unusual):
        raise ValueError(
            f"{photos.name} is no run, whose encoder and views the map needs: leave `add_to`, "
            "`num_views`, `show_channels`, views and other layouts out"
        )
    fixed = (layout, num_views, epochs, views, photos.label_column)
    if add_to is not None and any(option is not None for option in fixed):
        raise ValueError(
            "`add_to` uses an existing map as it is: leave `layout`, `num_views`, `epochs`, "
            "`label_column` and views out"
        )
    layout = layout or "cluster-embedding"
    check_layout(layout, num_views, min(limit, len(photos)))
    table = None if columns is None else read_table(columns)
    if add_to is not None:
        return add_to_map(photos.sampled(limit, seed), add_to, table, show_channels)
    drawing = Drawing(layout, num_views, epochs, seed, approximate, views)
    return draw(photos, photos.sampled(limit, seed), drawing, table, show_channels)
