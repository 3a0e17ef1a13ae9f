"""Find the images most alike to given ones: a table, a contact sheet, paths for other commands.

nearfar search runs/photos beach.jpg --k 20 --out beach.html
nearfar search runs/photos beach.jpg --null | xargs -0 ls -l
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from nearfar.commands.listing import TABLE, Columns, output_of, write_table
from nearfar.commands.queries import Queries, queries_of
from nearfar.commands.run import Run
from nearfar.commands.run_features import nearest_shown, open_featured
from nearfar.messages import check_range
from nearfar.pages.contact_sheets import Figure, Group, figures_of, picture, write_contact_sheet

NOTE = "The line below a name is its place, and its distance: 0 for copies."


def search_images(
    run: str | Path | Run,
    images: Any = (),
    *,
    data: Any = None,
    k: int = 10,
    out: str | Path | None = None,
    split: str | None = None,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> Columns:
    """Find the images most alike to given ones: a table, a contact sheet, paths for other commands.

    Args:
        run: run folder.
        images: images to look for: names in the data, files, or text files with a name a line. In Python also pixels.
        data: images to look among. Default: the data of the run.
        k: how many to find for each.
        out: contact sheet to write, .html, with a .csv beside it; neither may exist. Default: none.
        split: part of the data. Default: that of the run.
        encoder: the module that was trained, where it was an object of your own.
        console: where the table is shown.

    Returns:
        Columns "query", "rank" from 1, "name", "distance" (1 - cos of the features: 0 for copies) and, where images
        are files, "path". An image of the data does not find itself.

    Raises:
        ValueError: for images that are not there or cannot be read, and a k that there are too few images for.
    """
    console = console or Console()
    run = Run.of(run)
    check_range("--k", k, 1)
    page = None if out is None else output_of(run, out, "search", TABLE)
    known = open_featured(run, data, split, encoder, console)
    check_range("--k", k, 1, len(known.images) - 1)
    asked = queries_of(images, known)
    found = nearest_shown(known.features, k, console, asked.features, asked.own)
    rows, distances = found.index.tolist(), found.distance.tolist()
    flat = [row for some in rows for row in some]
    columns: Columns = {
        "query": [name for name in asked.names for _ in range(k)],
        "rank": [rank for _ in rows for rank in range(1, k + 1)],
        "name": [known.images.names[row] for row in flat],
        "distance": [distance for some in distances for distance in some],
        **known.files(flat),
    }
    console.print(_table(columns))
    if page is not None:
        lines = [f"{rank}: {far:.4f}" for rank, far in zip(columns["rank"], columns["distance"], strict=True)]
        near = figures_of(known.images, known.paths, flat, lines)
        groups = [Group([one, *near[i * k : (i + 1) * k]]) for i, one in enumerate(_own(asked, known.images.shown))]
        write_contact_sheet(page, "Images most alike", f"among {len(known.images)} images", NOTE, groups=groups)
        write_table(page.with_suffix(TABLE), columns)
        console.print(Text(f"contact sheet -> {page}"))
    return columns


def _table(columns: Columns) -> Table:
    table = Table("image", "", "most alike", "distance")
    shown = zip(columns["query"], columns["rank"], columns["name"], columns["distance"], strict=True)
    for query, rank, name, distance in shown:
        table.add_row(Text(query if rank == 1 else ""), str(rank), Text(name), f"{distance:.4f}")
    return table


def _own(asked: Queries, shown: list[int] | None) -> list[Figure]:
    """What was asked for."""
    return [
        Figure(picture(pixels if shown is None else pixels[shown]), name, "asked for", marked=True)
        for name, pixels in zip(asked.names, asked.pixels, strict=True)
    ]
