"""What commands write about chosen images: a contact sheet, the page of duplicates, a CSV file, a
list of files.

Nothing here moves or removes an image: a command that could is printed, for a person to decide.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.atomic import PAGES, check_folder, check_output, replacing, write_file
from nearfar.data.table import printable
from nearfar.maps.thumbnails import data_url, thumbnails
from nearfar.neighbours import KINDS, Facts, Link, Member
from nearfar.pages.template import script, write_page
from nearfar.run import Run
from nearfar.run_check import Problem
from nearfar.run_features import Featured, WithoutRun
from nearfar.views import eight_bits

Columns = dict[str, list[Any]]
TABLE, FILES = ".csv", ".list"
CHOSEN = "to-remove.list"  # saved from the page
FORMULA = re.compile(r"'*[=+\-@\t\r]")
SIZE = 128  # pixels of a picture, at most
ENLARGED = 48  # pictures below this are shown pixel by pixel
MOST_IMAGES = 1500  # on the page of duplicates, in the nearest pairs: about 10 MB
BEYOND = 2.0  # times the distance: end of the slider on the page of duplicates
FOLDED = 0.2  # of the images: where more are merely alike, their groups are folded
SHOWN = 60  # images or pairs of one problem on the page of `check`
GATHERED = 256  # images that are held at a time


class Figure(NamedTuple):
    """One image of a sheet: its picture, its name and a line on it; it opens the file where there
    is one.
    """

    url: str
    name: str
    said: str
    href: str | None = None
    marked: bool = False


class Group(NamedTuple):
    """Images that stand together, below a title where there is one; size: what is said beside
    it.
    """

    figures: Sequence[Figure]
    title: str = ""
    size: str = ""


class Section(NamedTuple):
    """One problem on the page of `check`: how many images, how many of them not as a pair again,
    and those shown.
    """

    problem: str
    images: int
    distinct: int
    figures: Sequence[Figure]
    pairs: Sequence[Group]
    lines: Sequence[str]


def write_contact_sheet(
    path: Path,
    title: str,
    about: str,
    note: str,
    *,
    figures: Sequence[Figure] = (),
    groups: Sequence[Group] = (),
) -> None:
    """Write a page with these images, in one row that wraps or in groups; it asks for nothing
    outside itself.
    """
    write_page(
        path,
        "contact_sheet.html",
        title=title,
        about=about,
        note=note,
        figures=figures,
        groups=groups,
    )


def figures_of(known: Featured, rows: Sequence[int], said: Sequence[str]) -> list[Figure]:
    """Return images, by their positions, each with a line on it."""
    urls: dict[int, str] = {}
    for some in torch.tensor(sorted(set(rows)), dtype=torch.int64).split(GATHERED):
        urls.update(zip(some.tolist(), map(picture, known.images.pictures(some)), strict=True))
    names, paths = known.images.names, known.paths
    links = [None if paths is None else Path(paths[row]).absolute().as_uri() for row in rows]
    return [
        Figure(urls[row], names[row], line, link)
        for row, line, link in zip(rows, said, links, strict=True)
    ]


def picture(pixels: Shaped[Tensor, "channels side side"]) -> str:
    """One small picture, uint8 or float in 0..1, as a data URL."""
    [tile] = thumbnails(eight_bits(pixels)[None], SIZE)
    return data_url(tile, lossless=tile.shape[-1] < ENLARGED)


def output_of(run: Run | WithoutRun, out: str | Path | None, name: str, *beside: str) -> Path:
    """The page to write: `out`, or NAME.html in the run folder, replaced if there. beside: endings
    of its companions.

    Without a run it is SOURCE-NAME.html in the working directory. Raises ValueError where one of
    them exists that the user named, OSError where nothing can be written.
    """
    if out is None:
        folder = run.path if isinstance(run, Run) else Path()
        check_folder(folder)
        return folder / (f"{name}.html" if isinstance(run, Run) else f"{run.stem}-{name}.html")
    check_output(Path(out), PAGES, beside=beside)
    return Path(out)


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as CSV; a text that a spreadsheet would take for a formula begins with '
    then.
    """
    with (
        replacing(path) as unfinished,
        unfinished.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(
                "'" + cell if isinstance(cell, str) and FORMULA.match(cell) else cell
                for cell in row
            )


def write_files(path: Path, files: Sequence[str]) -> None:
    """Write names of files, each with a zero byte behind it, as `xargs -0` and `tar --null` read
    them.
    """
    write_file(path, b"".join(os.fsencode(file) + b"\0" for file in files))


def copying(files: Path) -> str:
    """The command that packs the files of a list into an archive beside it."""
    return (
        f"tar -cf {shlex.quote(str(files.with_suffix('.tar')))} --null -T {shlex.quote(str(files))}"
    )


def removing(files: Path) -> str:
    """The command that packs the files of a list into an archive, and removes them if that went
    well.
    """
    return f"{copying(files)} && xargs -0 rm -- < {shlex.quote(str(files))}"


def for_pipes(columns: Mapping[str, Sequence[Any]], separator: str) -> bytes:
    """What a command gives to another program: the files of a list, or names where there are none,
    each once.

    Of duplicates those that have the same bytes as one that is kept. A name with a line break is
    exact before a zero byte, else escaped.
    """
    names = columns.get("path", columns["name"])
    kept = columns.get("kept", [False] * len(names))
    wanted = dict.fromkeys(name for name, keep in zip(names, kept, strict=True) if not keep)
    lines = (printable(name) if separator == "\n" and "\n" in name else name for name in wanted)
    return b"".join(os.fsencode(line + separator) for line in lines)


def write_duplicates_page(
    path: Path,
    known: Featured,
    links: Sequence[Link],
    members: Sequence[Member],
    facts: Mapping[int, Facts],
    *,
    where: str,
    archive: int = 0,
    distance: float,
    command: str,
) -> None:
    """Write the page: groups at a distance that a slider sets, copies apart from images that are
    merely alike.

    links: nearest first, those beyond `distance` as well, for the slider. members: those of the
    groups. facts: by position, what the page says of an image: width, height, bytes and whether it
    is a link. where: the data and its splits, in words. archive: so many of the first images are
    that. command: that makes these lists again.
    """
    alike = len(KINDS) - 1
    place: dict[int, int] = {}
    near = []
    for far, first, second, kind, _ in sorted(
        links, key=lambda link: link.kind == alike
    ):  # copies first
        if len(place.keys() | {first, second}) > MOST_IMAGES:
            break
        near.append([far, *(place.setdefault(row, len(place)) for row in (first, second)), kind])
    figures = figures_of(known, list(place), [""] * len(place))
    copies = {one.row: one for one in members if one.kind != KINDS[alike]}
    told = []
    for row, figure in zip(place, figures, strict=True):
        one = copies.get(row, Member(0, row, "", True))
        relation = {"kind": one.kind, "kept": one.kept, "turn": one.turn, "why": one.why}
        relation |= {"archived": row < archive, "stretched": one.stretched}
        told.append(
            {
                "name": figure.name,
                "url": figure.url,
                "href": figure.href,
                **relation,
                **facts[row]._asdict(),
            }
        )
    data = {"images": told, "links": near, "alike": alike, "distance": distance, "command": command}
    data |= {"files": CHOSEN, "removing": removing(Path(CHOSEN))}
    about = f"among {len(known.images) - archive} images of {where}"
    left = len(links) - len(near)
    about += f", against {archive} of an archive" if archive else ""
    count = len(known.images) - archive
    many = len({one.row for one in members if one.kind == KINDS[alike] and one.row >= archive})
    folded = many if many > FOLDED * count else 0
    scripts = [script("saving.js", "duplicates.js")]
    write_page(
        path,
        "duplicates.html",
        title="Near-duplicates",
        about=about,
        data=data,
        left=left,
        folded=folded,
        images=count,
        scripts=scripts,
    )


def write_check_page(
    path: Path,
    known: Featured,
    problems: Sequence[Problem],
    classes: Mapping[str, Sequence[Any]],
    following: str,
    said: Sequence[str] = (),
) -> None:
    """Write the page of `check`: what to do next, the problems with a few images of each, and the
    classes.

    problems: those of one kind together. classes: columns "label", "images" and perhaps one of each
    split. said: lines on the set as a whole.
    """
    sections = []
    for name, found in groupby(problems, key=lambda one: one.problem):
        those = list(found)
        once = {
            frozenset((one.row, one.other, one.name * (one.row < 0))): one
            for one in reversed(those)
        }
        some = list(once.values())[::-1][:SHOWN]
        seen = [one for one in some if one.row >= 0]
        figures = figures_of(known, [one.row for one in seen], [one.words for one in seen])
        repeats = [one for one in seen if one.other >= 0]
        before = figures_of(known, [one.other for one in repeats], [""] * len(repeats))
        pairs = [Group(pair) for pair in zip(before, figures, strict=True)] if repeats else []
        lines = [f"{one.name}: {one.words}" for one in some if one.row < 0]
        sections.append(
            Section(name, len(those), len(once), [] if pairs else figures, pairs, lines)
        )
    images = known.images
    about, labelled = f"{len(images)} images of {images.where}", images.labels is not None
    shown: dict[str, Any] = dict(about=about, sections=sections, classes=classes, labelled=labelled)
    shown |= dict(following=following, said=said)
    write_page(path, "check.html", title="Check of the data", **shown)
