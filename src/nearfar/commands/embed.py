"""The command that makes embeddings, and writes them to a table.

nearfar embed runs/photos --out photos.parquet
nearfar embed runs/photos others/ --out others.csv
nearfar embed photos/ --out photos.parquet
nearfar embed runs/photos --out photos.parquet --map
nearfar embed runs/photos --out photos.parquet --mirrored
nearfar embed photos/ --out photos.parquet --engine ray --workers 4
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.isolation import isolated

if TYPE_CHECKING:
    from torch import nn

    from nearfar.embeddings import Embeddings


@isolated()
def embed(
    target: Any,
    data: Any = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    label_column: str | None = None,
    map: bool = False,
    mirrored: bool = False,
    encoder: str | nn.Module | None = None,
    engine: str | None = None,
    workers: int | None = None,
) -> Embeddings:
    """Make the embedding of every image, and write it to a .parquet, .csv or .npz file.

    Args:
        target: run folder; or, without one, the data itself, which gets the best features at hand
            (docs/starting-weights.md), or a file of vectors made elsewhere.
        data: images to embed, of one or more sources; columns of a table of paths are copied.
            Default: the data of the run.
        out: file to write; it must not exist. Default: none; the command line needs one.
        split: part of the data; "all" for everything. Default: that of the run, of other data its
            training split.
        label_column: column of the data with the labels. Default: one of a usual name, such as
            label.
        map: add coordinates on the run's map, x and y, a thumbnail of each image and its 15
            nearest, as embedding-atlas and Hugging Face datasets take them; .parquet alone, after
            nearfar map RUN.
        mirrored: average the features of each image and its mirror image, in twice the time; not
            for text and other images whose left and right differ, where it loses.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: the best features at hand. In Python also the trained module of a
            run, if it was an object of your own.
        engine: "ray" divides the work among processes, of this machine or of a cluster, and goes on
            from where a job died (docs/scaling.md). Default: this process does it all.
        workers: processes of the engine. Default: one for each core.

    Returns:
        `Embeddings`: the images with their features, whose methods are the tools, such as
        `photos.search("cat.jpg")`; `photos.save("photos.parquet")` writes them later, and
        `path` is the file that was written here.

    >>> photos = nearfar.embed("runs/photos", out="photos.parquet")
    >>> photos.path.name
    'photos.parquet'
    """
    from nearfar.embeddings.saving import FORMATS, check_format, save_embeddings
    from nearfar.embeddings.sources import OfRun, Opening, resolve
    from nearfar.maps import find_map, load_map
    from nearfar.ray import engine_named
    from nearfar.tools.map.table import IMAGE, map_columns

    if out is not None:
        check_format(out, FORMATS[:1] if map else FORMATS)
    if map and mirrored:
        raise ValueError(
            "`map` has the features that the map was drawn from: leave out `mirrored`, or `map`"
        )
    source, saved = resolve(target), None
    if map and out is None:
        raise ValueError("`map` adds columns to a file: name one with `out`")
    if map:
        if not isinstance(source, OfRun):
            raise ValueError(
                f"`map` adds the map of a run, and {source.name} is none: leave `map` out"
            )
        saved = load_map(find_map("map", source.run.path))
    with engine_named(engine, workers) as chosen:
        photos = source.open(Opening(data, split, encoder, label_column, fewest=1))
        if mirrored:
            photos = photos.mirrored()
        if chosen is not None:  # which is gone when the features are asked for
            photos = replace(photos, vectors=photos.features)
    if out is None:
        return photos
    if saved is None:
        save_embeddings(Path(out), photos.images, photos.features)
    else:
        added = map_columns(photos, saved)
        save_embeddings(Path(out), photos.images, photos.features, added, IMAGE)
    return replace(photos, path=Path(out), vectors=photos.features)
