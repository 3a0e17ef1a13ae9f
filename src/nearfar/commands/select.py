"""Choose images to label or to look at: diverse, typical, odd ones, or those near others.

nearfar select runs/photos --n 200 --by typical
nearfar select runs/photos beach.jpg --by near --n 50
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from nearfar.commands.listing import FILES, TABLE, Columns, copying, output_of, write_files, write_table
from nearfar.commands.queries import COMPARED, places_of, queries_of
from nearfar.commands.run import Run
from nearfar.commands.run_features import Featured, nearest_shown, open_featured
from nearfar.messages import check_range, did_you_mean
from nearfar.neighbours import diverse_rows, remote_rows, typical_rows
from nearfar.pages.contact_sheets import figures_of, write_contact_sheet
from nearfar.training.progress import waiting
from nearfar.training.seeding import LARGEST_SEED

MEANING = {
    "diverse": "its distance to those before it",
    "typical": "its mean distance to its neighbours",
    "outlier": "its distance to its last neighbour",
    "near": "its distance to the nearest image given",
}
ON_PAGE = 1000


def select_images(
    run: str | Path | Run,
    images: Any = (),
    *,
    n: int = 100,
    by: str = "diverse",
    data: Any = None,
    labelled: Any = (),
    k: int = 10,
    out: str | Path | None = None,
    split: str | None = None,
    approximate: bool = False,
    seed: int = 0,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> Columns:
    """Choose images to label or to look at: diverse, typical, odd ones, or those near others.

    Args:
        run: run folder.
        images: for --by near: names in the data, files, or text files with a name a line.
        n: how many to choose.
        by: "diverse" (farthest point first: covers everything, odd images too), "typical" (TypiClust: one from the
            middle of each cluster; best for very few labels), "outlier" (far from its k-th neighbour), or "near"
            (nearest to any of the images given). docs/neighbours.md has the sources.
        data: images to choose from. Default: the data of the run.
        labelled: images that have labels already, as `images` are given (on the command line one name or text file):
            they are left out, diverse goes on from them, and typical prefers clusters without them.
        k: neighbour whose distance counts, for --by outlier.
        out: page to write, .html, with a .csv and a .list of the files beside it; none may exist.
            Default: selection.html in the run folder, replaced if it is there.
        split: part of the data. Default: that of the run.
        approximate: for --by outlier and near: search with faiss's index instead of comparing all pairs.
        seed: of the clusters, for --by typical.
        encoder: the module that was trained, where it was an object of your own.
        console: where it is said what was written, and what to do with it.

    Returns:
        Columns "rank" from 1, "name", "distance" (what it is depends on `by`) and, where images are files, "path".
        Nothing is moved or copied.

    Raises:
        ValueError: for more images than there are, an unknown `by`, or images missing or too many for it.
    """
    console = console or Console()
    run = Run.of(run)
    if by not in MEANING:
        raise ValueError(f"--by cannot be {by!r}: {did_you_mean(by, MEANING, 'choose ' + ', '.join(MEANING))}")
    asked = images is not None and (isinstance(images, (str, Path)) or len(images) > 0)
    if asked != (by == "near"):
        raise ValueError("--by near needs images, and nothing else does: nearfar select RUN IMAGE... --by near")
    check_range("--n", n, 1)
    check_range("--k", k, 1)
    check_range("--seed", seed, 0, LARGEST_SEED)
    page = output_of(run, out, "selection", TABLE, FILES)
    known = open_featured(run, data, split, encoder, console)
    done = _labelled(labelled, known)
    check_range("--n", n, 1, len(known.images) - len(done))
    check_range("--k", k, 1, len(known.images) - 1 if by == "outlier" else math.inf)
    chosen, distance = _chosen(known, images, n, by, k, done, seed, approximate, console)
    rows = chosen.tolist()
    columns: Columns = {
        "rank": list(range(1, len(rows) + 1)),
        "name": [known.images.names[row] for row in rows],
        "distance": distance.tolist(),
        **known.files(rows),
    }
    shown = rows[:ON_PAGE]
    lines = [f"{rank}: {far:.4f}" for rank, far in enumerate(columns["distance"][:ON_PAGE], 1)]
    note = f"The line below a name is its place, and {MEANING[by]}."
    about = f"{len(rows)} of {len(known.images)} images" + (f", the first {ON_PAGE}" if len(rows) > ON_PAGE else "")
    figures = figures_of(known.images, known.paths, shown, lines)
    write_contact_sheet(page, f"Selected: {by}", about, note, figures=figures)
    write_table(page.with_suffix(TABLE), columns)
    console.print(Text(f"{len(rows)} images -> {page} and {page.with_suffix(TABLE).name}"))
    if "path" in columns:
        files = page.with_suffix(FILES)
        write_files(files, columns["path"])
        console.print(Text(f"to pack copies of them into an archive: {copying(files)}"), soft_wrap=True)
    return columns


def _chosen(
    known: Featured,
    images: Any,
    n: int,
    by: str,
    k: int,
    labelled: Tensor,
    seed: int,
    approximate: bool,
    console: Console,
) -> tuple[Tensor, Tensor]:
    """Positions of the images in the order of choice, and their distances."""
    if by == "near":
        asked = queries_of(images, known)
        others = torch.ones(len(known.images), dtype=torch.bool)
        others[asked.own[asked.own >= 0]] = False
        others[labelled] = False
        check_range("--n", n, 1, int(others.sum()))
        found = nearest_shown(asked.features, 1, console, known.features[others], approximate=approximate)
        distance, order = found.distance[:, 0].sort(stable=True)
        return others.nonzero()[:, 0][order[:n]], distance[:n]
    if by == "outlier":
        distance = nearest_shown(known.features, k, console, approximate=approximate).distance
        distance[labelled] = -1
        return remote_rows(distance, n)
    with waiting(console, "choosing"):
        if by == "diverse":
            return diverse_rows(known.features, n, labelled)
        return typical_rows(known.features, n, seed, labelled)


def _labelled(given: Any, known: Featured) -> Tensor:
    """Positions of the images that are labelled already; ValueError for one that is not of the data."""
    words = [given] if isinstance(given, (str, Path)) else list(given or ())
    places = places_of(words, known)
    for word, row in places:
        if row < 0:
            near = did_you_mean(word, known.images.names[:COMPARED], "see `nearfar embed` for the names")
            raise ValueError(f"--labelled: {word!r} is not an image of the data: {near}")
    return torch.tensor(sorted({row for _, row in places}), dtype=torch.int64)
