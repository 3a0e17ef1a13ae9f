"""Write the embedding of every image to a .parquet, .csv or .npz file.

nearfar embed runs/photos --out photos.parquet
nearfar embed runs/photos others/ --out others.csv
nearfar embed runs/photos --out photos.parquet --map
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.commands.map_files import origin
from nearfar.commands.map_table import PICTURES, map_columns_of
from nearfar.commands.onto import map_file, placing_encoder
from nearfar.commands.opening import check_output, features_shown
from nearfar.commands.run import Run
from nearfar.commands.run_features import open_featured
from nearfar.evaluation import FORMATS, write_table
from nearfar.maps import load_map


def embed(
    run: str | Path | Run,
    data: Any = None,
    *,
    out: str | Path,
    split: str | None = None,
    label_column: str | None = None,
    map: bool = False,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> Path:
    """Write the embedding of every image to a .parquet, .csv or .npz file.

    Args:
        run: run folder.
        data: images to embed, of one or more sources; columns of a table of paths are kept. Default: that of the run.
        out: file to write; it must not exist.
        split: part of the data. Default: everything.
        label_column: column of the data with the labels. Default: one of a usual name, such as label.
        map: add places on the run's map, x and y, a small picture of each image and its 15 nearest, as embedding-atlas
            and Hugging Face datasets take them; .parquet alone, after nearfar map RUN.
        encoder: the module that was trained, where it was an object of your own.
        console: where progress is shown.

    Returns:
        The file that was written.
    """
    console = console or Console()
    path, run = Path(out), Run.of(run)
    check_output(path, FORMATS[:1] if map else FORMATS)
    file = map_file(run, "map")
    saved = load_map(file) if map else None
    known = open_featured(run, data, split, encoder, console, least=1, label_column=label_column)
    images, features = known.images, known.features
    added, pictures = {}, None
    if saved is not None:
        now = origin(run, known.source, split, images)
        if now["encoder"] != saved.about.get("encoder"):
            raise ValueError(f"the encoder of {run.path} changed since {file} was drawn: draw the map again")
        if now["names"] == saved.about.get("names"):
            places = saved.places
        elif saved.backbone is None:
            places = saved.function(features)
        else:
            placing = placing_encoder(run, saved, file, encoder)
            places = saved.function(features_shown(placing, images, console, "placing"))
        added, pictures = map_columns_of(images, features, places, console), PICTURES
    write_table(path, images.names, features.numpy(), images.labels, images.columns, added, pictures)
    console.print(Text(f"{len(images)} embeddings of {features.shape[1]} numbers -> {path}"))
    return path
