"""Write the embedding of every image to a .parquet, .csv or .npz file.

nearfar embed runs/photos --out photos.parquet
nearfar embed runs/photos others/ --out others.csv
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.commands.opening import check_output, features_shown, open_shown
from nearfar.commands.run import Run, load
from nearfar.evaluation import FORMATS, write_table


def embed(
    run: str | Path | Run,
    data: Any = None,
    *,
    out: str | Path,
    split: str | None = None,
    label_column: str | None = None,
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
        encoder: the module that was trained, where it was an object of your own.
        console: where progress is shown.

    Returns:
        The file that was written.
    """
    console = console or Console()
    path, run = Path(out), Run.of(run)
    check_output(path, FORMATS)
    settings = run.settings
    source = settings.given("data") if data is None else data
    trained = load(run, encoder=encoder)
    images = open_shown(source, console, split=split, label_column=label_column, **settings.reading)
    features = features_shown(trained, images, console, "embedding").numpy()
    write_table(path, images.names, features, images.labels, images.columns)
    console.print(Text(f"{len(images)} embeddings of {features.shape[1]} numbers -> {path}"))
    return path
