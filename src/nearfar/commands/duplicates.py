"""Find copies of images, exact, resized or encoded again, and images that are nearly alike.

nearfar duplicates runs/photos
nearfar duplicates runs/photos others/ --distance 0.02 --out others.html
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from nearfar.commands.copies import (
    ALIKE,
    KINDS,
    Facts,
    Link,
    alike_distance,
    copy_distance,
    facts_of,
    find_links,
    groups_at,
)
from nearfar.commands.listing import FILES, TABLE, Columns, output_of, removing, write_files, write_table
from nearfar.commands.run import Run
from nearfar.commands.run_features import Featured, open_featured
from nearfar.messages import check_range
from nearfar.pages.duplicates import write_duplicates_page

BEYOND = 2.0  # times the distance: how far the page's slider goes


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
) -> Columns:
    """Find copies of images, exact, resized or encoded again, and images that are nearly alike.

    Args:
        run: run folder.
        data: images to compare. Default: the data of the run.
        distance: 1 - cos of the features up to which images that are no copies are called alike; the page has a slider
            to choose it by looking. Default: a tenth of the median distance of any two. Copies are confirmed by their
            pixels at full size; they are looked for as far as 128 of the images move that are halved in size or saved
            as JPEG of quality 50.
        out: page to write, .html, with a .csv, and a .list of the files whose bytes another file has, beside it; none
            may exist. Default: duplicates.html in the run folder, replaced if it is there.
        split: part of the data. Default: that of the run.
        approximate: search with faiss's index instead of comparing all pairs: for hundreds of thousands of images. The
            share of the true nearest that it finds is said.
        encoder: the module that was trained, where it was an object of your own.
        console: where it is said what was found, and what to do with it.

    Returns:
        Columns "group" from 1; "kind": "first", "same file", "same pixels" or "copy" in a group of copies, else
        "alike"; "kept": False for what has the same bytes as an image that is kept; "name", "distance" to the first of
        the group, "width", "height", "bytes" and, where images are files, "path".
        The first of a group has the most pixels, then the largest file, then the shortest name. Groups of copies come
        first. An image that is kept can be in a group that is alike, too. Nothing is removed, and what has other bytes
        is for a person to look at: no list for removal names it.

    Raises:
        ValueError: for a distance below 0 or above 2, or fewer than two images.
    """
    console = console or Console()
    run = Run.of(run)
    check_range("--distance", distance, 0, 2)
    page = output_of(run, out, "duplicates", TABLE, FILES)
    known = open_featured(run, data, split, encoder, console)
    near = alike_distance(known) if distance is None else distance
    links = find_links(known, max(copy_distance(known), BEYOND * near), console, approximate)
    columns, facts = _columns(known, links, near)
    command = f"nearfar duplicates {shlex.quote(str(run.path))}"
    words = data if isinstance(data, (list, tuple)) else [data]
    command += "".join(f" {shlex.quote(str(word))}" for word in words if isinstance(word, (str, Path)))
    command += "" if split is None else f" --split {shlex.quote(split)}"
    told = {row: one._asdict() for row, one in facts.items()}
    write_duplicates_page(page, known.images, known.paths, links, told, kinds=KINDS, distance=near, command=command)
    write_table(page.with_suffix(TABLE), columns)
    said = [f"{columns['kind'].count(kind)} {words}" for kind, words in zip(KINDS, COUNTED, strict=False)]
    total = sum(columns["kind"].count(kind) for kind in KINDS[:ALIKE])
    groups = len({group for group, kind in zip(columns["group"], columns["kind"], strict=True) if kind == KINDS[ALIKE]})
    console.print(Text(f"{total} of {len(known.images)} images are copies of others: {', '.join(said)}"))
    console.print(Text(f"{groups} groups of others are nearly alike, at a distance of up to {near:.3g}"))
    console.print(Text(f"look first -> {page} and {page.with_suffix(TABLE).name}; nothing was removed"))
    if "path" in columns:
        files = page.with_suffix(FILES)
        same = [path for path, keep in zip(columns["path"], columns["kept"], strict=True) if not keep]
        write_files(files, same)
        if same:
            command = f"to archive and then remove what is the same file, byte for byte: {removing(files)}"
            console.print(Text(command), soft_wrap=True)  # a command that is broken into lines is another command
    return columns


COUNTED = ("the same file", "the same pixels", "resized or encoded again")


def _columns(known: Featured, links: list[Link], distance: float) -> tuple[Columns, dict[int, Facts]]:
    """The groups at a distance as columns, and the facts on all images that links name."""
    facts = {row: facts_of(known, row) for row in sorted({row for link in links for row in link[1:3]})}

    def largest(row: int) -> tuple[bool, int, int, int, int]:
        width, height, size, link = facts[row]  # a link that is kept might lead to a file that is removed
        return link, -width * height, -size, len(known.images.names[row]), row  # "copy of a.jpg" comes after "a.jpg"

    same = {row: row for row in facts} | {link.second: link.first for link in links if link.kind == 0}
    kind: dict[int, int] = {}  # the closest link of a file, or of those with the same bytes, to another
    for link in links:
        if link.kind and (link.kind < ALIKE or link.distance <= distance):
            kind |= {same[row]: min(link.kind, kind.get(same[row], ALIKE)) for row in (link.first, link.second)}
    copies, alike = groups_at(links, len(known.images), distance)
    best: dict[int, int] = {}  # what stands for a group of copies among those that are alike
    rows: list[tuple[int, int, str, bool]] = []
    unit = torch.nn.functional.normalize
    for number, group in enumerate(copies, 1):
        kept: set[int] = set()
        for row in sorted(group, key=largest):
            said = KINDS[0] if same[row] in kept else KINDS[kind[same[row]]] if kept else "first"
            rows.append((number, row, said, same[row] not in kept))
            best |= {} if kept else dict.fromkeys(group, row)
            kept.add(same[row])
    for number, group in enumerate(alike, len(copies) + 1):
        members = sorted({best.get(row, row) for row in group}, key=largest)
        rows += [(number, row, KINDS[ALIKE], True) for row in members]
    first_of: dict[int, int] = {}
    apart = []
    for number, row, _, _ in rows:
        one, other = unit(known.features[[first_of.setdefault(number, row), row]], dim=1)
        apart.append(float((one - other).square().sum() / 2))
    positions = [row for _, row, _, _ in rows]
    columns: Columns = {
        "group": [number for number, _, _, _ in rows],
        "kind": [kind for _, _, kind, _ in rows],
        "kept": [kept for _, _, _, kept in rows],
        "name": [known.images.names[row] for row in positions],
        "distance": apart,
        **{field: [getattr(facts[row], field) for row in positions] for field in Facts._fields[:3]},
        **known.files(positions),
    }
    return columns, facts
