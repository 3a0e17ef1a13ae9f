"""Find the images most alike to given ones: a table, a contact sheet, paths for other commands.

nearfar search runs/photos beach.jpg --k 20 --out beach.html
nearfar search runs/photos beach.jpg --null | xargs -0 ls -l
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nearfar.run import Run

NOTE = "The line below a name is its rank and its distance: 0 for copies."


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
) -> dict[str, list[Any]]:
    """Find the images most alike to given ones: a table, a contact sheet, paths for other commands.

    Args:
        run: run folder.
        images: query images: names in the data, files, or text files with one name per line. In Python also pixels.
        data: images to search. Default: the data of the run.
        k: number of images to find for each query.
        out: contact sheet to write, .html, with a .csv beside it; neither may exist. Default: none.
        split: part of the data. Default: that of the run.
        encoder: the trained module, if it was an object of your own.
        console: console for the table.

    Returns:
        Columns "query", "rank" from 1, "name", "distance" (1 - cos of the features: 0 for copies) and, for images in
        files, "path". An image of the data does not find itself.

    Raises:
        ValueError: for images that are missing or unreadable, and a k above the number of other images.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from nearfar.messages import check_range
    from nearfar.pages import lists
    from nearfar.run import Run
    from nearfar.run_features import nearest_shown, open_featured, queries_of

    console = console or Console()
    run = Run.of(run)
    check_range("--k", k, 1)
    page = None if out is None else lists.output_of(run, out, "search", lists.TABLE)
    known = open_featured(run, data, split, encoder, console)
    check_range("--k", k, 1, len(known.images) - 1)
    asked = queries_of(images, known)
    found = nearest_shown(known.features, k, console, asked.features, asked.own)
    rows = found.index.flatten().tolist()
    columns: dict[str, list[Any]] = {
        "query": [name for name in asked.names for _ in range(k)],
        "rank": list(range(1, k + 1)) * len(asked.names),
        "name": [known.images.names[row] for row in rows],
        "distance": found.distance.flatten().tolist(),
        **known.files(rows),
    }
    table = Table("image", "", "most alike", "distance")
    for query, rank, name, far in zip(*(columns[key] for key in ("query", "rank", "name", "distance")), strict=True):
        table.add_row(Text(query if rank == 1 else ""), str(rank), Text(name), f"{far:.4f}")
    console.print(table)
    if page is not None:
        lines = [f"{rank}: {far:.4f}" for rank, far in zip(columns["rank"], columns["distance"], strict=True)]
        near = lists.figures_of(known.images, known.paths, rows, lines)
        groups = []
        for i, (name, pixels) in enumerate(zip(asked.names, asked.pixels, strict=True)):
            pixels = pixels if known.images.shown is None else pixels[known.images.shown]
            groups.append(
                lists.Group(
                    [lists.Figure(lists.picture(pixels), name, "query", marked=True), *near[i * k : (i + 1) * k]]
                )
            )
        lists.write_contact_sheet(page, "Images most alike", f"among {len(known.images)} images", NOTE, groups=groups)
        lists.write_table(page.with_suffix(lists.TABLE), columns)
        console.print(Text(f"contact sheet -> {page}"))
    return columns
