"""Duplicates in a data set: pairs of images that are copies or nearly alike, and the groups that they form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.data import Images
from nearfar.data.decoding import header, to_array, to_pil
from nearfar.data.formats import raw
from nearfar.data.table import digest, digest_of_file
from nearfar.neighbours.approximate import find_nearest
from nearfar.neighbours.copies import COPY, altered, compared, pixel_difference, small_images
from nearfar.views import eight_bits

KINDS = ("same file", "same pixels", "copy", "alike")
SAME_FILE, ALIKE = 0, 3  # positions in KINDS
NEIGHBOURS = 8  # of each image that are compared with it
TRIED, SHARE = 128, 0.99  # images whose altered versions give the distance of copies, and its quantile
PAIRS = 8192  # that are compared at a time at 16 pixels
CACHED = 4  # images of each set at full size in memory
CONFIRMED = 1000  # pairs at most that are compared between two sets
CHANCE, PART = 20_000, 0.1  # random pairs, and the fraction of their median distance that is called alike

Progress = Callable[[int, int], None]


class Link(NamedTuple):
    """Two images by their positions, the distance of their features, and their relation, a position in KINDS."""

    distance: float
    first: int
    second: int
    kind: int


class Facts(NamedTuple):
    """Size of an image in pixels and bytes; whether it is a symbolic link to a file."""

    width: int
    height: int
    bytes: int
    link: bool = False


class Member(NamedTuple):
    """An image in a group from 1: "first" or one of KINDS; kept: False for the bytes of an image that is kept."""

    group: int
    row: int
    kind: str
    kept: bool


def copy_distance(
    encoder: Callable[[Tensor], Tensor],
    images: Images,
    features: Float[Tensor, "images dim"],
    generator: torch.Generator | None = None,
) -> float:
    """The distance within which copies lie: that of 99 % of altered images of the data from the images themselves.

    128 images at random, each once at half its size and once as JPEG of quality 50.
    """
    order = torch.randperm(len(images), generator=generator)[:TRIED]
    own = normalize(features[order], dim=1)
    versions = altered(eight_bits(images.gather(order)))
    found = [(own - normalize(encoder(pixels), dim=1)).square().sum(1) / 2 for pixels in versions]
    return float(torch.cat(found).quantile(SHARE))


def alike_distance(features: Float[Tensor, "images dim"], generator: torch.Generator | None = None) -> float:
    """A tenth of the median distance between two images of the data, estimated from 20 000 random pairs.

    Copies can lie farther apart, and pixels confirm them; other images that far apart have little in common.
    """
    first, second = torch.randint(len(features), (2, CHANCE), generator=generator)
    first, second = first[first != second], second[first != second]
    apart = (normalize(features[first], dim=1) - normalize(features[second], dim=1)).square().sum(1) / 2
    return PART * float(apart.median())


def find_links(
    images: Images,
    features: Float[Tensor, "images dim"],
    most: float,
    *,
    pictured: bool = True,
    approximate: bool = False,
    report: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> list[Link]:
    """Find pairs of images no farther apart than `most`, nearest first.

    Identical files are found by their bytes, whatever their features. Every other image is compared with its eight
    nearest. If small versions of two differ by less than a fifth of their contrast, the files are read and compared at
    full size (`compared`). Others are alike if each is the nearest of the other that is no copy.
    pictured: False if there are features alone: all pairs are alike then. approximate, report: as for `find_nearest`.
    progress: called with (done, total) of each stage.
    """
    same = _same_files(images, progress)
    links = [Link(0.0, int(first), row, SAME_FILE) for row, first in enumerate(same) if first != row]
    rows = torch.from_numpy(np.unique(same))
    if len(rows) < 2:
        return links
    count = min(NEIGHBOURS, len(rows) - 1)
    found = find_nearest(features[rows], k=count, approximate=approximate, report=report, progress=progress)
    near, column = torch.where(found.distance <= most)
    first, second = rows[near], rows[found.index[near, column]]
    pairs = torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 1)
    pairs, inverse = pairs.unique(dim=0, return_inverse=True)
    distance = torch.zeros(len(pairs)).index_put_((inverse,), found.distance[near, column])
    if pictured:
        links += _judged(images, images, pairs, distance, progress)
    else:
        links += [Link(far, i, j, ALIKE) for far, (i, j) in zip(distance.tolist(), pairs.tolist(), strict=True)]
    nearest: dict[int, Link] = {}  # of those that are merely alike: with all of them, chains would join everything
    for link in sorted(links):
        for row in (link.first, link.second) if link.kind == ALIKE else ():
            nearest.setdefault(row, link)
    return sorted(link for link in links if link.kind < ALIKE or nearest[link.first] == nearest[link.second])


def find_leaks(
    train: Images,
    test: Images,
    train_x: Float[Tensor, "train dim"],
    test_x: Float[Tensor, "test dim"],
    most: float,
    progress: Progress | None = None,
) -> list[Link]:
    """Find test images that are copies of training images, no farther apart than `most`: first is that of `train`.

    Each is compared with its eight nearest training images, and confirmed as in `find_links`: the thousand nearest
    pairs at most.
    """
    found = find_nearest(train_x, test_x, min(NEIGHBOURS, len(train)), progress=progress)
    near, column = torch.where(found.distance <= most)
    distance = found.distance[near, column]
    nearest = distance.argsort(stable=True)[:CONFIRMED]
    pairs = torch.stack([found.index[near, column], near], 1)[nearest]
    return [link for link in _judged(train, test, pairs, distance[nearest], progress) if link.kind < ALIKE]


def _judged(
    first: Images,
    second: Images,
    pairs: Int64[Tensor, "pairs 2"],
    distance: Float[Tensor, " pairs"],
    progress: Progress | None,
) -> list[Link]:
    """The relation of pairs of images, by their positions in the first and the second set."""
    if not len(pairs):
        return []
    small = []
    for images, rows in zip((first, second), pairs.T, strict=True):
        involved, at = rows.unique(return_inverse=True)
        small.append((small_images(images, involved, progress), at.split(PAIRS)))
    (left, at_left), (right, at_right) = small
    apart = torch.cat([pixel_difference(left[i], right[j]) for i, j in zip(at_left, at_right, strict=True)])
    full, others = (lru_cache(CACHED)(partial(_full_size, images)) for images in (first, second))
    links = []
    for done, (one, other) in enumerate(pairs.tolist()):
        kind = KINDS.index(compared(full(one), others(other))) if apart[done] <= COPY else ALIKE
        links.append(Link(float(distance[done]), one, other, kind))
        if progress is not None:
            progress(done + 1, len(pairs))
    return links


def groups_at(links: Sequence[Link], count: int, distance: float) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of copies, and groups of images that are merely alike, by links of at most this distance.

    Copies count at any distance, as their pixels are compared. Of a group of copies only the first number takes part in
    the other groups. Both in the order of their first links.
    """
    near = [link for link in links if link.kind < ALIKE or link.distance <= distance]
    copies = components(count, [(link.first, link.second) for link in near if link.kind < ALIKE])
    ends = [(int(copies[link.first]), int(copies[link.second])) for link in near if link.kind == ALIKE]
    alike = components(count, ends)
    order = [row for link in near for row in (link.first, link.second)]
    return _collected(copies, order), _collected(alike, [int(copies[row]) for row in order])


def members_at(
    links: Sequence[Link], facts: Mapping[int, Facts], names: Sequence[str], distance: float
) -> list[Member]:
    """The members of all groups at a distance, copies before images that are merely alike.

    The first of a group is a file rather than a link to one, then has the most pixels, then the largest file, then the
    shortest name: it is the one to keep.
    """

    def order(row: int) -> tuple[bool, int, int, int, int]:
        width, height, size, link = facts[row]  # a link that is kept might lead to a file that is removed
        return link, -width * height, -size, len(names[row]), row  # "copy of a.jpg" comes after "a.jpg"

    same = {row: row for row in facts} | {link.second: link.first for link in links if link.kind == SAME_FILE}
    kind: dict[int, int] = {}  # the closest link of a file, or of those with the same bytes, to another
    for link in links:
        if link.kind != SAME_FILE and (link.kind < ALIKE or link.distance <= distance):
            kind |= {same[row]: min(link.kind, kind.get(same[row], ALIKE)) for row in (link.first, link.second)}
    copies, alike = groups_at(links, len(names), distance)
    best: dict[int, int] = {}  # represents a group of copies among the images that are alike
    members = []
    for number, group in enumerate(copies, 1):
        kept: set[int] = set()
        for row in sorted(group, key=order):
            words = KINDS[SAME_FILE] if same[row] in kept else KINDS[kind[same[row]]] if kept else "first"
            members.append(Member(number, row, words, same[row] not in kept))
            best |= {} if kept else dict.fromkeys(group, row)
            kept.add(same[row])
    for number, group in enumerate(alike, len(copies) + 1):
        rows = sorted({best.get(row, row) for row in group}, key=order)
        members += [Member(number, row, KINDS[ALIKE], True) for row in rows]
    return members


def components(count: int, pairs: Iterable[tuple[int, int]]) -> Int64[np.ndarray, " count"]:
    """The connected component of each of 0..count-1, by the smallest number in it."""
    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(count, count))
    _, label = connected_components(graph, directed=False)
    _, first = np.unique(label, return_index=True)
    return first[label]


def _collected(label: np.ndarray, order: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in dict.fromkeys(order):
        groups.setdefault(int(label[row]), []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def facts_of(images: Images, row: int) -> Facts:
    """Size in pixels and bytes of the file of an image; zero bytes for an image that exists as pixels alone."""
    originals = images.originals
    if originals is None:
        return Facts(images.image_size, images.image_size, 0)
    data = originals[row]
    shape = header(data)
    return Facts(shape.width, shape.height, _size(data), isinstance(data, str) and os.path.islink(data))


def _size(data: bytes | str) -> int:
    return len(data) if isinstance(data, bytes) else os.path.getsize(data)


def _same_files(images: Images, progress: Progress | None) -> np.ndarray:
    """For each image the first one with the same bytes. They are compared only if another has the same size."""
    originals, first = images.originals, np.arange(len(images))
    if originals is None:
        return first
    sizes = np.array([_size(originals[row]) for row in range(len(images))])
    _, inverse, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    seen: dict[str, int] = {}
    doubtful = np.flatnonzero(counts[inverse] > 1).tolist()
    for done, row in enumerate(doubtful, 1):
        data = originals[row]
        mark = digest(data) if isinstance(data, bytes) else digest_of_file(data)
        first[row] = seen.setdefault(mark, row) if mark else row  # what can no longer be read stays alone
        if progress is not None:
            progress(done, len(doubtful))
    return first


def _full_size(images: Images, row: int) -> np.ndarray:
    """An image as its file has it, [channels, height, width]."""
    originals = images.originals
    if originals is None:
        return images.gather(torch.tensor([row]))[0].numpy()
    if (found := raw(originals[row])) is not None:
        return found.read()
    image = to_pil(originals[row], at_least=2**30)
    return to_array(image, len(image.getbands()))
