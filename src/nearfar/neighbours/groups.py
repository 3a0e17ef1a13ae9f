"""Groups that copies and near-duplicates form, and what each member is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nearfar.data import Images
from nearfar.neighbours.copies import MIRROR, composed, inverse
from nearfar.neighbours.edits import Edit, edit_in_words, edit_of_turn
from nearfar.neighbours.files import Facts, image_stats
from nearfar.neighbours.links import (
    COPIED,
    EDITED,
    FRAME,
    KINDS,
    MIRRORED,
    NEAR_DUPLICATE,
    SAME_FILE,
    STRETCHED,
    TURNED,
    Link,
)


class Member(NamedTuple):
    """An image in a group from 1: "first", one of KINDS or FRAME; kept: False for the bytes of an
    image that is kept.

    turn: the orientation in which it shows the first of its group of copies. why: the reason for
    which it is kept although an image with its bytes is kept, too. stretched: whether it has other
    proportions than the first of its group of copies. edit: in words, how the first of its group
    becomes an edited copy. of: position of the image that the kind refers to: the kept one with its
    bytes for the same file, else the first of the group, which refers to itself.
    """

    group: int
    row: int
    kind: str
    kept: bool
    turn: int = 0
    why: str = ""
    stretched: bool = False
    edit: str = ""
    of: int = -1


def group_links(
    links: Sequence[Link], count: int, distance: float
) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of copies, and groups of near-duplicates, by links of at most this
    distance.

    Copies count at any distance, as their pixels are compared. Of a group of copies only the first
    number takes part in the other groups. Both in the order of their first links.
    """
    near = [link for link in links if link.kind < NEAR_DUPLICATE or link.distance <= distance]
    copies = components(
        count, [(link.first, link.second) for link in near if link.kind < NEAR_DUPLICATE]
    )
    ends = [
        (int(copies[link.first]), int(copies[link.second]))
        for link in near
        if link.kind == NEAR_DUPLICATE
    ]
    near_duplicates = components(count, ends)
    order = [row for link in near for row in (link.first, link.second)]
    return _collected(copies, order), _collected(
        near_duplicates, [int(copies[row]) for row in order]
    )


def group_members(
    links: Sequence[Link],
    facts: Mapping[int, Facts],
    names: Sequence[str],
    distance: float,
    archive: int = 0,
    stays: Callable[[int, int], str] | None = None,
) -> list[Member]:
    """The members of all groups at a distance, copies before near-duplicates.

    stays: of the positions of an image and of the first of its group, why it is kept although
    another has its bytes; "" for no reason (`removal.Staying`).

    The first of a group is of the archive, if there is one (the images before that position), then
    has the most copies that are not edited and have other bytes, then is a file rather than a link
    to one, then has the most pixels, then the largest file, then lies in git-annex, then has the
    shortest name: it is the one to keep.
    """

    def order(row: int) -> tuple[int, ...]:
        return _rank(facts[row], row >= archive, len(names[row]), row)

    same = {row: row for row in facts} | {
        link.second: link.first for link in links if link.kind == SAME_FILE
    }
    kind = _closest_kinds(links, same, distance)
    copies, near_duplicates = group_links(links, len(names), distance)
    proportions = same_proportions(links, len(names))
    unedited = components(len(names), [link[1:3] for link in links if link.kind < EDITED])
    once = [row for row in facts if same[row] == row]  # of files with the same bytes
    equals = np.bincount(unedited[once], minlength=len(names))

    def order_of_copies(row: int) -> tuple[int, ...]:
        return row >= archive, -int(equals[unedited[row]]), *order(row)

    firsts = [min(group, key=order_of_copies) for group in copies]
    turns, edits = _turns(links, firsts), _edits(_steps(links), firsts)
    best: dict[int, int] = {}  # represents a group of copies among near-duplicates
    members = []
    for number, (group, first) in enumerate(zip(copies, firsts, strict=True), 1):
        kept: dict[int, int] = {}  # the first image with these bytes
        best |= dict.fromkeys(group, first)
        for row in sorted(group, key=order_of_copies):
            turn, stretched = turns[row], bool(proportions[row] != proportions[best[row]])
            relation = min(kind.get(same[row], COPIED), COPIED)
            if turn:
                relation = MIRRORED if turn >= MIRROR else TURNED
            edit = ""
            if stretched:
                relation = STRETCHED
            if unedited[row] != unedited[best[row]]:
                relation = EDITED
                edit = edit_in_words(edits[row], facts[best[row]][:2], facts[row][:2])
            words = KINDS[SAME_FILE if same[row] in kept else relation] if kept else "first"
            several = facts[row].pages > 1 or facts[best[row]].pages > 1
            if several and words not in ("first", KINDS[SAME_FILE]):
                words = FRAME
            again = same[row] in kept
            why = stays(row, best[row]) if stays is not None and again else ""
            kept_too = not again or bool(why)
            of = kept.get(same[row], best[row])
            kept.setdefault(same[row], row)
            members.append(Member(number, row, words, kept_too, turn, why, stretched, edit, of))
    for number, group in enumerate(near_duplicates, len(copies) + 1):
        rows = sorted({best.get(row, row) for row in group}, key=order)
        members += [Member(number, row, KINDS[NEAR_DUPLICATE], True, of=rows[0]) for row in rows]
    return members


def _rank(known: Facts, is_new: bool, letters: int, row: int) -> tuple[int, ...]:
    """Return what orders the images of a group, the one to keep first; see `group_members`."""
    pixels = known.width * known.height
    # a link that is kept might lead to a file that is removed; "copy of a.jpg" after "a.jpg"
    return is_new, known.link, -pixels, -known.bytes, not known.annexed, letters, row


def _closest_kinds(
    links: Sequence[Link], same: Mapping[int, int], distance: float
) -> dict[int, int]:
    """The kind of the closest link of a file, or of those with the same bytes, to another."""
    kind: dict[int, int] = {}
    for link in links:
        if link.kind != SAME_FILE and (link.kind < NEAR_DUPLICATE or link.distance <= distance):
            for row in (same[link.first], same[link.second]):
                kind[row] = min(link.kind, kind.get(row, NEAR_DUPLICATE))
    return kind


def same_proportions(links: Sequence[Link], count: int) -> Int64[np.ndarray, " images"]:
    """For each image the smallest number among its copies that are not stretched."""
    return components(count, [link[1:3] for link in links if link.kind < STRETCHED])


def _turns(links: Sequence[Link], first: Sequence[int]) -> dict[int, int]:
    """The orientation in which each image of a group of copies shows the first of its group."""
    steps: dict[int, list[tuple[int, int]]] = {}
    for link in links:
        if link.kind < NEAR_DUPLICATE:
            steps.setdefault(link.first, []).append((link.second, link.turn))
            steps.setdefault(link.second, []).append((link.first, inverse(link.turn)))
    turns, reached = dict.fromkeys(first, 0), list(first)
    for row in reached:  # which grows
        for other, turn in steps[row]:
            if other not in turns:
                turns[other] = composed(turns[row], turn)
                reached.append(other)
    return turns


Steps = Mapping[int, Sequence[tuple[int, Edit]]]
"""Of an image its copies, and the edit by which it becomes each."""


def _steps(links: Sequence[Link]) -> Steps:
    steps: dict[int, list[tuple[int, Edit]]] = {}
    for link in links:
        if link.kind < NEAR_DUPLICATE:
            edit = link.edit or edit_of_turn(link.turn)
            steps.setdefault(link.first, []).append((link.second, edit))
            steps.setdefault(link.second, []).append((link.first, edit.undone()))
    return steps


def _edits(steps: Steps, first: Sequence[int]) -> dict[int, Edit]:
    """The edits by which the first of a group of copies becomes each image of the group."""
    edits, reached = dict.fromkeys(first, Edit()), list(first)
    for row in reached:  # which grows
        for other, edit in steps[row]:
            if other not in edits:
                edits[other] = edits[row].then(edit)
                reached.append(other)
    return edits


def edits_in_words(links: Sequence[Link], images: Images) -> Callable[[int, int], str]:
    """Return what says how an image becomes another of its group of copies."""
    steps = _steps(links)
    sizes = {row: facts[:2] for row, facts in image_stats(images, sorted(steps)).items()}

    def words(first: int, second: int) -> str:
        return edit_in_words(_edits(steps, [first])[second], sizes[first], sizes[second])

    return words


def components(count: int, pairs: Iterable[tuple[int, int]]) -> Int64[np.ndarray, " count"]:
    """The connected component of each of 0..count-1, by the smallest number in it."""
    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    graph = coo_array(
        (np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(count, count)
    )
    _, label = connected_components(graph, directed=False)
    _, first = np.unique(label, return_index=True)
    return first[label]


def _collected(label: np.ndarray, order: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in dict.fromkeys(order):
        groups.setdefault(int(label[row]), []).append(row)
    return [group for group in groups.values() if len(group) > 1]
