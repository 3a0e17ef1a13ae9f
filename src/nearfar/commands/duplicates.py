"""Find copies of images, exact, resized or encoded again, and images that are nearly alike.

nearfar duplicates runs/photos
nearfar duplicates runs/photos others/ --distance 0.02 --out others.html
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nearfar.run import Run

BEYOND = 2.0  # times the distance: end of the page's slider


def find_duplicates(
    run: str | Path | Run,
    data: Any = None,
    *,
    distance: float | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    approximate: bool = False,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> dict[str, list[Any]]:
    """Find copies of images, exact, resized or encoded again, and images that are nearly alike.

    Args:
        run: run folder.
        data: images to compare. Default: the data of the run.
        distance: largest 1 - cos of the features for images that are alike but no copies; the page has a slider to
            choose it by eye. Default: a tenth of the median distance of any two. Copies are confirmed by their pixels
            at full size, up to the distance by which features move when images are halved in size or saved as JPEG of
            quality 50 (measured on 128 images).
        out: page to write, .html, with a .csv, and a .list of the files whose bytes another file has, beside it; none
            may exist. Default: duplicates.html in the run folder, which is replaced.
        split: part of the data. Default: that of the run.
        approximate: search with faiss's index instead of comparing all pairs, for hundreds of thousands of images; the
            share of the true nearest neighbours that it finds is reported.
        encoder: the trained module, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        Columns "group" from 1; "kind": "first", "same file", "same pixels" or "copy" in a group of copies, else
        "alike"; "kept": False for an image with the bytes of an image that is kept; "name", "distance" to the first of
        the group, "width", "height", "bytes" and, for images in files, "path".
        The first of a group has the most pixels, then the largest file, then the shortest name. Groups of copies come
        first. An image that is kept can be in a group that is alike, too. Nothing is removed, and images with other
        bytes are for a person to look at: no list for removal names them.

    Raises:
        ValueError: for a distance below 0 or above 2, or fewer than two images.
    """
    import shlex
    from functools import partial

    from rich.console import Console
    from rich.text import Text
    from torch.nn.functional import normalize

    from nearfar.evaluation import extract
    from nearfar.messages import check_range
    from nearfar.neighbours import KINDS, alike_distance, copy_distance, facts_of, find_links, members_at
    from nearfar.pages import lists
    from nearfar.pages.lists import write_duplicates_page
    from nearfar.run import Run
    from nearfar.run_features import open_featured
    from nearfar.training.progress import shown
    from nearfar.training.seeding import stream

    console = console or Console()
    run = Run.of(run)
    check_range("--distance", distance, 0, 2)
    page = lists.output_of(run, out, "duplicates", lists.TABLE, lists.FILES)
    known = open_featured(run, data, split, encoder, console)
    images, features = known.images, normalize(known.features, dim=1)
    near = alike_distance(features, stream(0, "pairs")) if distance is None else distance
    moved = copy_distance(partial(extract, known.encoder), images, features, stream(0, "altered"))
    with shown(console, "comparing images") as progress:
        how: dict[str, Any] = dict(approximate=approximate, report=console.print, progress=progress)
        links = find_links(images, features, max(moved, BEYOND * near), **how)
    facts = {row: facts_of(images, row) for row in sorted({row for link in links for row in link[1:3]})}
    members = members_at(links, facts, images.names, near)
    rows = [member.row for member in members]
    first = {member.group: member.row for member in reversed(members)}
    apart = (features[[first[member.group] for member in members]] - features[rows]).square().sum(1) / 2
    columns: dict[str, list[Any]] = {
        "group": [member.group for member in members],
        "kind": [member.kind for member in members],
        "kept": [member.kept for member in members],
        "name": [images.names[row] for row in rows],
        "distance": apart.tolist(),
        **{field: [getattr(facts[row], field) for row in rows] for field in ("width", "height", "bytes")},
        **known.files(rows),
    }
    words = [word for word in (data if isinstance(data, (list, tuple)) else [data]) if isinstance(word, (str, Path))]
    words = ["nearfar", "duplicates", run.path, *words, *([] if split is None else ["--split", split])]
    shapes = {row: one._asdict() for row, one in facts.items()}
    write_duplicates_page(
        page, images, known.paths, links, shapes, kinds=KINDS, distance=near, command=shlex.join(map(str, words))
    )
    lists.write_table(page.with_suffix(lists.TABLE), columns)
    same, pixels, again, _ = (columns["kind"].count(kind) for kind in KINDS)
    said = f"{same} the same file, {pixels} the same pixels, {again} resized or encoded again"
    console.print(Text(f"{same + pixels + again} of {len(images)} images are copies of others: {said}"))
    groups = len({member.group for member in members if member.kind == "alike"})
    console.print(Text(f"{groups} groups of others are nearly alike, at a distance of up to {near:.3g}"))
    console.print(Text(f"look first -> {page} and {page.with_suffix(lists.TABLE).name}; nothing was removed"))
    if "path" in columns:
        files = page.with_suffix(lists.FILES)
        gone = [path for path, keep in zip(columns["path"], columns["kept"], strict=True) if not keep]
        lists.write_files(files, gone)
        if gone:
            command = f"to archive and then remove what is the same file, byte for byte: {lists.removing(files)}"
            console.print(Text(command), soft_wrap=True)  # a command that is broken into lines is another command
    return columns
