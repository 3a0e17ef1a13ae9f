"""A whole check of a data set: its problems in columns, in words and on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from nearfar.embeddings import Embeddings
from nearfar.isolation import isolated
from nearfar.neighbours.groups import components, edits_in_words
from nearfar.neighbours.links import EDITED, NEAR_DUPLICATE
from nearfar.pages.sheet import Figure, Group, thumbnails_for
from nearfar.pages.template import render_page
from nearfar.progress import Table, log
from nearfar.tools.check.problems import (
    ADVICE,
    Issue,
    class_counts,
    duplicate_issues,
    image_problems,
    label_problems,
    next_step,
    predicted_words,
    remedy,
    repeats_words,
    unexamined_words,
    unseen_words,
)
from nearfar.tools.result import Columns, Result

SHOWN = 60  # images or pairs of one problem on the page


def check_images(
    photos: Embeddings, approximate: bool, seed: int, edits: bool | None = False
) -> Checked:
    """Look for all kinds of problems; see `nearfar.check`.

    edits: as for `find_repeats`; without a training split and another one edited copies are no
    leaks, and are not looked for.
    """
    images = photos.images
    splits, labels = images.split_names, images.label_names
    if not {"", "train"} < {"", *splits}:
        if edits:
            log.info("edited copies are looked for across splits alone, from training images on")
        edits = False
    near, links = photos.find_repeats(approximate, edits=edits)
    has_edited = any(link.kind == EDITED for link in links)
    problems = duplicate_issues(
        links,
        near,
        photos.features,
        images.names,
        splits,
        labels,
        photos.near,
        edits_in_words(links, images) if has_edited else None,
    )
    features, known = photos.features, photos.near
    if photos.for_copies and images.labels is not None:
        features, known = photos.for_labels().features, None
    copies = [
        (link.first, link.second)
        for link in links  # equal vectors without images are copies as far as anyone knows
        if link.kind < NEAR_DUPLICATE or not (photos.has_pixels or link.distance)
    ]
    same = components(len(images), copies)
    doubts, issues = label_problems(images, features, labels, seed, approximate, known, same)
    lines = []
    if issues is not None and images.labels is not None:
        if issues.predicted is not None:
            words = remedy(photos.run is not None)
            lines.append(predicted_words(issues.predicted, len(doubts), words))
        lines += unexamined_words(issues, images.labels)
    defects, usual = image_problems(images, photos.measures) if photos.has_pixels else ([], [])
    noted = repeats_words(links, near, len(images)) + usual
    problems += doubts + defects
    problems.sort(key=lambda problem: list(ADVICE).index(problem.problem))
    return Checked(photos, problems, lines + noted, bool(noted))


class Section(NamedTuple):
    """One problem on the page: how many images, how many of them not as a pair again, and those
    shown.
    """

    problem: str
    images: int
    distinct: int
    figures: Sequence[Figure]
    pairs: Sequence[Group]
    lines: Sequence[str]


class Checked(Result):
    """The problems of a data set, its classes, and what to do next."""

    def __init__(
        self, photos: Embeddings, problems: Sequence[Issue], remarks: Sequence[str], noted: bool
    ) -> None:
        """remarks: lines on the set as a whole. noted: whether these say more of the images than
        the problems do.
        """
        images = photos.images
        self.classes: Columns = class_counts(images.label_names, images.split_names)
        self.problems, self.remarks = problems, [*remarks, *unseen_words(self.classes)]
        self.next = next_step(problems, self.classes, noted)
        columns = _columns(photos, problems)
        leaks = zip(columns["problem"], columns.get("path", ()), strict=False)
        super().__init__(
            photos,
            columns,
            title="Check of the data",
            about=f"{len(images)} images of {images.where}",
            files=[path for problem, path in leaks if problem == "leak"],
        )
        self.lines = [*self._table(), *self.remarks]
        if images.labels is None:
            self.lines.append("the images have no labels, which are needed to find wrong ones")
        self.lines += [self.next, "nothing was moved or removed"]

    def _table(self) -> list[Table]:
        """Return how many images have each problem, with the first of them; none without any."""
        table = Table("problem", "images", "first")
        for name in dict.fromkeys(self["problem"]):
            first = self["problem"].index(name)
            words = f"{self['name'][first]}: {self['words'][first]}"
            table.add(name, self["problem"].count(name), words)
        return [table] if self.problems else []

    def summary(self) -> Mapping[str, Any]:
        """Return problems, classes and the next step."""
        return {"problems": dict(self), "classes": self.classes, "next": self.next}

    @isolated()
    def page(self) -> str:
        """Return the page: what to do next, the problems with a few images of each, the classes."""
        by_kind = groupby(self.problems, key=lambda problem: problem.problem)
        return render_page(
            "check/check.html",
            title=self.title,
            about=self.about,
            sections=[self._section(name, list(those)) for name, those in by_kind],
            classes=self.classes,
            labelled=self.photos.images.labels is not None,
            following=self.next,
            remarks=self.remarks,
        )

    def _section(self, name: str, those: Sequence[Issue]) -> Section:
        """Return one problem with those of its images that are shown, a pair only once."""
        once = {
            frozenset((problem.row, problem.other, problem.name * (problem.row < 0))): problem
            for problem in reversed(those)
        }
        some = list(once.values())[::-1][:SHOWN]
        seen = [problem for problem in some if problem.row >= 0]
        figures = thumbnails_for(
            self.photos, [problem.row for problem in seen], [problem.words for problem in seen]
        )
        repeats = [problem.other for problem in seen if problem.other >= 0]
        before = thumbnails_for(self.photos, repeats, [""] * len(repeats))
        pairs = [Group(pair) for pair in zip(before, figures, strict=True)] if repeats else []
        lines = [f"{problem.name}: {problem.words}" for problem in some if problem.row < 0]
        return Section(name, len(those), len(once), [] if pairs else figures, pairs, lines)


def _columns(photos: Embeddings, problems: Sequence[Issue]) -> Columns:
    """Return a row for each problem."""
    images, rows = photos.images, [problem.row for problem in problems]
    splits, labels = images.split_names, images.label_names
    columns: Columns = {
        "problem": [problem.problem for problem in problems],
        "name": [problem.name for problem in problems],
        "split": ["" if row < 0 else splits[row] for row in rows],
        "label": ["" if row < 0 else labels[row] for row in rows],
        "suggested": [problem.suggested for problem in problems],
        "other": ["" if problem.other < 0 else images.names[problem.other] for problem in problems],
        "measure": [problem.measure for problem in problems],
        "words": [problem.words for problem in problems],
    }
    if photos.paths is not None:
        columns["path"] = ["" if row < 0 else photos.paths[row] for row in rows]
    return columns
