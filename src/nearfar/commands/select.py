"""Choose images to label or to look at: diverse, typical, odd ones, or those near others.

nearfar select runs/photos --n 200 --by typical
nearfar select runs/photos beach.jpg --by near --n 50
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nearfar.run import Run

MEANING = {
    "diverse": "its distance to those before it",
    "typical": "its mean distance to its neighbours",
    "outlier": "its distance to its last neighbour",
    "near": "its distance to the nearest image given",
}
ON_PAGE = 1000  # images


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
) -> dict[str, list[Any]]:
    """Choose images to label or to look at: diverse, typical, odd ones, or those near others.

    Args:
        run: run folder.
        images: for --by near: names in the data, files, or text files with one name per line.
        n: number of images to choose.
        by: "diverse" (farthest point first: covers everything, odd images too), "typical" (TypiClust: one from the
            centre of each cluster; best for very few labels), "outlier" (far from its k-th neighbour), or "near"
            (nearest to any of the images given). docs/neighbours.md has the sources.
        data: images to choose from. Default: the data of the run.
        labelled: images that have labels already, given like `images` (on the command line one name or text file): they
            are left out, diverse continues from them, and typical prefers clusters without them.
        k: for --by outlier: the neighbour whose distance counts.
        out: page to write, .html, with a .csv and a .list of the files beside it; none may exist. Default:
            selection.html in the run folder, which is replaced.
        split: part of the data. Default: that of the run.
        approximate: for --by outlier and near: search with faiss's index instead of comparing all pairs.
        seed: random seed of the clusters, for --by typical.
        encoder: the trained module, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        Columns "rank" from 1, "name", "distance" (which one depends on `by`) and, for images in files, "path".
        Nothing is moved or copied.

    Raises:
        ValueError: for more images than there are, an unknown `by`, or missing or superfluous images for it.
    """
    import math

    import torch
    from rich.console import Console
    from rich.text import Text

    from nearfar.messages import check_range, did_you_mean
    from nearfar.neighbours import diverse_rows, remote_rows, typical_rows
    from nearfar.pages import lists
    from nearfar.run import Run
    from nearfar.run_features import nearest_shown, open_featured, places_of, queries_of
    from nearfar.training.progress import waiting
    from nearfar.training.settings import LARGEST_SEED

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
    page = lists.output_of(run, out, "selection", lists.TABLE, lists.FILES)
    known = open_featured(run, data, split, encoder, console)
    names = known.images.names
    places = places_of([labelled] if isinstance(labelled, (str, Path)) else list(labelled or ()), known)
    if missing := [word for word, row in places if row < 0]:
        near = did_you_mean(missing[0], names[:20_000], "see `nearfar embed` for the names")
        raise ValueError(f"--labelled: {missing[0]!r} is not an image of the data: {near}")
    done = torch.tensor(sorted({row for _, row in places}), dtype=torch.int64)
    check_range("--n", n, 1, len(names) - len(done))
    check_range("--k", k, 1, len(names) - 1 if by == "outlier" else math.inf)
    if by == "near":
        queries = queries_of(images, known)
        others = torch.ones(len(names), dtype=torch.bool)
        others[queries.own[queries.own >= 0]] = False
        others[done] = False
        check_range("--n", n, 1, int(others.sum()))
        found = nearest_shown(queries.features, 1, console, known.features[others], approximate=approximate)
        distance, order = found.distance[:, 0].sort(stable=True)
        chosen, distance = others.nonzero()[:, 0][order[:n]], distance[:n]
    elif by == "outlier":
        far = nearest_shown(known.features, k, console, approximate=approximate).distance
        far[done] = -1
        chosen, distance = remote_rows(far, n)
    else:
        with waiting(console, "choosing"):
            if by == "diverse":
                chosen, distance = diverse_rows(known.features, n, done)
            else:
                chosen, distance = typical_rows(known.features, n, seed, done)
    rows = chosen.tolist()
    columns = {
        "rank": list(range(1, n + 1)),
        "name": [names[row] for row in rows],
        "distance": distance.tolist(),
        **known.files(rows),
    }
    lines = [f"{rank}: {far:.4f}" for rank, far in enumerate(columns["distance"][:ON_PAGE], 1)]
    note = f"The line below a name is its rank, and {MEANING[by]}."
    about = f"{n} of {len(names)} images" + (f", the first {ON_PAGE}" if n > ON_PAGE else "")
    figures = lists.figures_of(known.images, known.paths, rows[:ON_PAGE], lines)
    lists.write_contact_sheet(page, f"Selected: {by}", about, note, figures=figures)
    lists.write_table(page.with_suffix(lists.TABLE), columns)
    console.print(Text(f"{n} images -> {page} and {page.with_suffix(lists.TABLE).name}"))
    if "path" in columns:
        files = page.with_suffix(lists.FILES)
        lists.write_files(files, columns["path"])
        console.print(Text(f"to pack copies of them into an archive: {lists.copying(files)}"), soft_wrap=True)
    return columns
