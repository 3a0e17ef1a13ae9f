"""Duplicates in a data set: pairs of images that are copies or near-duplicates, and the groups that
they form.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.cluster.hierarchy import DisjointSet
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import normalize

from nearfar.data import Images
from nearfar.data.decoding import header
from nearfar.data.pictures import is_lossless
from nearfar.data.readers import look
from nearfar.data.resources import in_order, usable_cores
from nearfar.data.table import digest, digest_of_file
from nearfar.neighbours.approximate import find_nearest
from nearfar.neighbours.copies import (
    COPY,
    MIRROR,
    PROPORTIONS,
    SIDE,
    compare_pixels,
    composed,
    differs,
    inverse,
    outlines,
    perturb,
    pixel_difference,
    reduced,
    small_images,
    turned,
    whole_images,
)
from nearfar.neighbours.edited_copies import find_edited
from nearfar.neighbours.edits import Edit, edit_in_words, edit_of_turn
from nearfar.neighbours.nearest import Nearest
from nearfar.progress import progress, tracked
from nearfar.views import eight_bits

KINDS = (
    "same file",
    "same pixels",
    "copy",
    "turned",
    "mirrored",
    "stretched copy",
    "edited copy",
    "near-duplicate",
)
ANNEX = ".git/annex/objects/"  # in a symbolic link of git-annex to the content of a file
# the relation of animations and documents whose first frames are copies
FRAME = "first frame alone"
# positions in KINDS
SAME_FILE, COPIED, TURNED, MIRRORED, STRETCHED, EDITED, NEAR_DUPLICATE = 0, 2, 3, 4, 5, 6, 7
NEIGHBOURS = 8  # of each image that are compared with it
# images whose altered versions give the distance of copies, and its quantile
TRIED, SHARE = 128, 0.99
# nearest at most among many near-duplicates; pixels of the versions that order them
CROWDED, FINER = 512, 32
DIFFERENT = 8  # comparisons at full size that find no copy of an image there, after which they end
REDUCTIONS = 4096  # small versions in memory
PAIRS = 8192  # that are compared at a time at 16 pixels
CACHED = 4  # images of each set at full size in memory
MANY = 20_000  # images of which known neighbours alone are compared, and one walk keeps less
CHUNK = 128  # pairs between two sets that are compared at a time
CONFIRMED = 20_000  # such pairs at most
# random pairs, and the fraction of their median distance that makes near-duplicates
CHANCE, PART = 20_000, 0.1
AT_ONCE = 512  # such pairs whose features are in memory

Pair = tuple[int, int, float]
"""The positions of two images, and the distance of their features."""
Comparison = Callable[[int, int], int]
"""Of the positions of two images, each in its set: their relation, a position in KINDS."""


class Link(NamedTuple):
    """Two images by their positions, the distance of their features, and their relation, a position
    in KINDS.

    turn: the orientation (`copies.turned`) in which the second shows the first; the distance of
    turned and mirrored copies is that of their small versions, and so is that of stretched copies
    that are not near by their features. edit: how the first becomes the second, for edited copies.
    """

    distance: float
    first: int
    second: int
    kind: int
    turn: int = 0
    edit: Edit | None = None


class Facts(NamedTuple):
    """Size of an image in pixels and bytes; whether it is a symbolic link to a file; its pages or
    frames; whether git-annex holds its content, behind a symbolic link that does not count as one.
    """

    width: int
    height: int
    bytes: int
    link: bool = False
    pages: int = 1
    annexed: bool = False


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


def duplicate_threshold(
    encoder: Callable[[Tensor], Tensor],
    images: Images,
    features: Float[Tensor, "images dim"],
    generator: torch.Generator | None = None,
) -> float:
    """The distance within which copies lie: that of 99 % of altered images of the data from the
    images themselves.

    128 images at random, each once at half its size and once as JPEG of quality 50.
    """
    order = torch.randperm(len(images), generator=generator)[:TRIED]
    own = normalize(features[order], dim=1)
    versions = perturb(eight_bits(images.gather(order)))
    moved = [(own - normalize(encoder(pixels), dim=1)).square().sum(1) / 2 for pixels in versions]
    return float(torch.cat(moved).quantile(SHARE))


def near_duplicate_threshold(
    features: Float[Tensor, "images dim"], generator: torch.Generator | None = None
) -> float:
    """A tenth of the median distance between two images of the data, estimated from 20 000 random
    pairs.

    Copies can lie farther apart, and pixels confirm them; other images that far apart have little
    in common.
    """
    first, second = torch.randint(len(features), (2, CHANCE), generator=generator)
    pairs = torch.stack([first, second], 1)[first != second]
    if len(features) <= CHANCE:  # each image is in several pairs
        features = normalize(features, dim=1)
    apart = []
    for part in pairs.split(AT_ONCE):
        ours, others = features[part].unbind(1)
        if len(features) > CHANCE:
            ours, others = normalize(ours, dim=1), normalize(others, dim=1)
        apart.append((ours - others).square().sum(1) / 2)
    return PART * float(torch.cat(apart).median())


def find_links(
    images: Images,
    features: Float[Tensor, "images dim"],
    most: float,
    *,
    archive: int = 0,
    orientations: bool = False,
    has_pixels: bool = True,
    approximate: bool = False,
    edits: bool = False,
    nearest: Nearest | None = None,
    verdicts: dict[tuple[str, str], int] | None = None,
) -> list[Link]:
    """Find pairs of images no farther apart than `most`, nearest first.

    Identical files are found by their bytes, whatever their features. Every other image is compared
    with its eight nearest. If small versions of two differ by less than a fifth of their contrast,
    the files are read and compared at full size (`compare_pixels`). Where the eighth is near too,
    further ones follow by the small versions, until these differ too much. Images of other
    proportions are compared by versions of the whole images too, as their features are those of a
    square in the centre. Others are near-duplicates if each is the nearest of the other that is no
    copy. archive: so many of the first images are an archive: each of the others is only compared
    with these, and linked to the one that is its closest copy, or else the nearest. orientations:
    find turned and mirrored copies too, whatever their features, by the small versions in all
    eight. has_pixels: False if there are features alone: all pairs are near-duplicates then.
    approximate: as for `find_nearest`. edits: find edited copies too (`find_edited`). nearest: the
    nearest others of each image, more than eight, where they are known and there is no archive;
    among more than 20 000 images no others are compared then. verdicts: relations of two files by
    their digests, as comparisons at full size found them: those that are there are not compared,
    and others are added.

    >>> images = nearfar.data.open_images("photos", image_size=32)
    >>> find_links(images, images.pixels.flatten(1).float(), most=0.0)
    [Link(distance=0.0, first=8, second=12, kind=0, turn=0, edit=None)]
    """
    same = _same_files(images)
    repeats = [(int(first), row) for row, first in enumerate(same) if first != row]
    links = [
        Link(0.0, *pair, SAME_FILE)
        for pair in repeats
        if not archive or pair[0] < archive <= pair[1]
    ]
    rows = torch.from_numpy(np.unique(same))
    known, queries = (rows[rows < archive], rows[rows >= archive]) if archive else (rows, rows)
    if len(known) < 2 - bool(archive) or not len(queries):
        return sorted(links)
    compare = _comparison(images, images, verdicts)
    if nearest is not None and has_pixels and not archive and len(images) > MANY:
        near_rows = nearest.among(known, nearest.index.shape[1])
        return _without_chains([*links, *_links_among(images, known, near_rows, most, compare)])
    count = min(NEIGHBOURS, len(known) - (not archive))
    query_features = features[queries] if archive else None
    if nearest is None or archive:
        near_rows = find_nearest(features[known], query_features, count, approximate=approximate)
    else:
        near_rows = nearest.among(rows, count)
    near, column = torch.where(near_rows.distance <= most)
    first, second = queries[near], known[near_rows.index[near, column]]
    pairs = torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 1)
    pairs, inverted = pairs.unique(dim=0, return_inverse=True)
    distance = torch.zeros(len(pairs)).index_put_((inverted,), near_rows.distance[near, column])
    if has_pixels:
        links += _confirm_pairs(images, images, pairs, distance, compare)
    else:
        links += _unconfirmed(pairs, distance)
    crowded = near_rows.distance[:, -1] <= most
    if has_pixels and count == NEIGHBOURS and bool(crowded.any()):
        links += _crowded_copies(
            images, images, known, queries[crowded], links, compare, approximate
        )
    if has_pixels:
        copied = [link for link in links if link.kind < NEAR_DUPLICATE]
        others = _stretched_copies(images, images, known, queries, copied, compare, approximate)
        links = _replaced(links, others)
    if orientations:
        sure = {link[1:3] for link in links if link.kind < NEAR_DUPLICATE}
        links = _replaced(links, _turned_copies(images, known, queries, sure, approximate))
    if edits:
        links = _replaced(links, _edited(images, features, known, queries, links, approximate))
    return _closest_in_archive(links, archive, repeats) if archive else _without_chains(links)


def _unconfirmed(pairs: Int64[Tensor, "pairs 2"], distance: Float[Tensor, " pairs"]) -> list[Link]:
    """Pairs of images without pixels: all are near-duplicates."""
    return [
        Link(far, first, second, NEAR_DUPLICATE)
        for far, (first, second) in zip(distance.tolist(), pairs.tolist(), strict=True)
    ]


def _links_among(
    images: Images,
    known: Int64[Tensor, " known"],
    near: Nearest,
    most: float,
    compare: Comparison,
) -> list[Link]:
    """Copies among the known neighbours of images, at any place of the list, and the pairs of which
    each is the other's nearest.

    Of an image eight comparisons at full size may fail; two that are in one group by now are not
    compared.
    """
    pairs: list[tuple[int, int, float]] = []
    rough = outlines(images, known)
    for places in torch.arange(len(known)).split(PAIRS // near.index.shape[1]):
        row, column = torch.where(near.distance[places] <= most)
        row = places[row]
        other, distance = near.index[row, column], near.distance[row, column]
        left = ~rough.refused(row, other)
        row, other, distance = row[left], other[left], distance[left]
        small = small_images(images, known[row]), small_images(images, known[other])
        close = pixel_difference(*small) <= COPY
        ends = torch.minimum(row, other)[close], torch.maximum(row, other)[close]
        pairs += zip(*(end.tolist() for end in ends), distance[close].tolist(), strict=True)
    pairs = sorted(set(pairs), key=lambda pair: pair[2])
    links = _confirmed(images, images, known, known, pairs, [], compare)
    sure = {link[1:3] for link in links}
    best = near.index[:, 0]
    mutual = (best[best] == torch.arange(len(known))) & (best > torch.arange(len(known)))
    for place in torch.where(mutual & (near.distance[:, 0] <= most))[0].tolist():
        # `known` is in order, so that the first is the smaller
        first, second = int(known[place]), int(known[best[place]])
        if (first, second) not in sure:
            links.append(Link(float(near.distance[place, 0]), first, second, NEAR_DUPLICATE))
    return links


def _closest_in_archive(
    links: Iterable[Link], archive: int, repeats: Iterable[tuple[int, int]]
) -> list[Link]:
    """The link of each image to its closest in the archive, for those with equal bytes too."""
    closest: dict[int, Link] = {}
    for link in sorted(links, key=lambda link: (link.kind, link)):
        closest.setdefault(link.second, link)
    again = [
        closest[first]._replace(second=row)
        for first, row in repeats
        if archive <= first and first in closest
    ]
    return sorted([*closest.values(), *again])


def _without_chains(links: Sequence[Link]) -> list[Link]:
    """Copies, and of near-duplicates those pairs of which each is the nearest of the
    other: with all of them, chains would join everything.
    """
    nearest: dict[int, Link] = {}
    for link in sorted(links):
        for row in (link.first, link.second) if link.kind == NEAR_DUPLICATE else ():
            nearest.setdefault(row, link)
    return sorted(
        link
        for link in links
        if link.kind < NEAR_DUPLICATE or nearest[link.first] == nearest[link.second]
    )


def _turned_copies(
    images: Images,
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    sure: set[tuple[int, int]],
    approximate: bool = False,
) -> list[Link]:
    """The copies in another orientation among two sets of positions; those in `sure` are skipped.

    Candidates are the nearest by the cosine of the centred small versions: where these differ by no
    more than COPY, the distance is COPY squared / 2 at most.
    """
    small = small_images(images, known)
    own = small if queries is known else small_images(images, queries)
    full = lru_cache(CACHED)(partial(full_size, images))
    exact = lru_cache(None)(partial(_is_lossless, images))
    links, tried = dict[tuple[int, int], Link](), set()
    for turn in range(1, 2 * MIRROR):
        other = torch.from_numpy(turned(own.numpy(), turn))
        count = min(NEIGHBOURS + 1, len(known))  # one may be the image itself
        near_rows = find_nearest(_centred(small), _centred(other), count, approximate=approximate)
        column, near = torch.where(near_rows.distance.T <= COPY**2 / 2)  # the nearest of each first
        if not len(near):
            continue
        place, far = near_rows.index[near, column], near_rows.distance[near, column]
        parts = zip(place.split(PAIRS), near.split(PAIRS), strict=True)
        close = torch.cat([pixel_difference(small[i], other[j]) for i, j in parts]) <= COPY
        candidates = torch.stack([known[place], queries[near]], 1)[close].tolist()
        for (first, second), distance in zip(candidates, far[close].tolist(), strict=True):
            pair, at = (
                ((first, second), turn) if first < second else ((second, first), inverse(turn))
            )
            if first == second or pair in sure or pair in links or (pair, at) in tried:
                continue
            tried.add((pair, at))
            lossless = exact(pair[0]) and exact(pair[1])
            found_as = compare_pixels(full(pair[0]), turned(full(pair[1]), at), lossless)
            if KINDS.index(found_as) <= COPIED:
                links[pair] = Link(distance, *pair, MIRRORED if at >= MIRROR else TURNED, at)
    return list(links.values())


def _edited(
    images: Images,
    features: Float[Tensor, "images dim"],
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    links: Sequence[Link],
    approximate: bool = False,
) -> list[Link]:
    """The edited copies among two sets of positions, that are no copies by `links`."""
    sure = [link[1:3] for link in links if link.kind < NEAR_DUPLICATE]
    read = partial(full_size, images)
    edited = find_edited(images, features, known, queries, sure, read, approximate)
    unit = normalize(features, dim=1)
    return [
        Link(float((unit[i] - unit[j]).square().sum() / 2), i, j, EDITED, 0, edit)
        for i, j, edit in edited
    ]


def _replaced(links: Sequence[Link], others: Sequence[Link]) -> list[Link]:
    """Links, and others in place of those of the same images."""
    pairs = {link[1:3] for link in others}
    return [*(link for link in links if link[1:3] not in pairs), *others]


def _centred(small: Float[Tensor, "images channels side side"]) -> Float[Tensor, "images pixels"]:
    return (small - small.mean((2, 3), keepdim=True)).flatten(1)


def _crowded_copies(
    first: Images,
    second: Images,
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    links: Sequence[Link],
    compare: Comparison,
    approximate: bool = False,
) -> list[Link]:
    """Further copies of images whose eight nearest are all near: series, forms, screenshots.

    queries: positions of these images in the second set; known: those in the first that they are
    compared with.
    """
    queries = _without_copy(first, second, known, queries, links)
    if not len(queries):
        return []
    small = small_images(first, known, FINER)
    own = small_images(second, queries, FINER)
    pairs = _near_pairs(small, own, approximate)
    return _confirmed(first, second, known, queries, pairs, links, compare)


def _stretched_copies(
    first: Images,
    second: Images,
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    links: Sequence[Link],
    compare: Comparison,
    approximate: bool = False,
) -> list[Link]:
    """Further copies among images of other proportions, by small versions of the whole images.

    The arguments are those of `_crowded_copies`. Nothing is read where all images have the same
    proportions. In one set, only images whose proportions are not the usual ones are asked for.
    """
    queries = _without_copy(first, second, known, queries, links)
    ratios, own_ratios = _log_ratios(first, known), _log_ratios(second, queries)
    if _are_apart(first, second, known, queries):
        other = (own_ratios[:, None] - torch.stack([ratios.min(), ratios.max()])).abs().amax(1)
        unlike = other > PROPORTIONS
    else:  # of two images of other proportions, at least one is farther than half from the median
        unlike = (own_ratios - ratios.median()).abs() > PROPORTIONS / 2
    queries, own_ratios = queries[unlike], own_ratios[unlike]
    if not len(queries):
        return []
    small = whole_images(first, known, ratios == 0, FINER)
    own = whole_images(second, queries, own_ratios == 0, FINER)
    pairs = [
        (at, by, distance)
        for at, by, distance in _near_pairs(small, own, approximate)
        if abs(ratios[at] - own_ratios[by]) > PROPORTIONS
    ]
    return _confirmed(first, second, known, queries, pairs, links, compare)


def _log_ratios(images: Images, rows: Int64[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """The logarithms of width / height of images, by position."""
    if images.originals is None:
        return torch.zeros(len(rows))
    height, width = torch.from_numpy(images.native_sizes(rows.numpy())).log().unbind(1)
    return width - height


def _are_apart(
    first: Images,
    second: Images,
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
) -> bool:
    """Return whether images are compared with those of another set, and not with one another."""
    return first is not second or not bool(torch.isin(queries, known).any())


def _without_copy(
    first: Images,
    second: Images,
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    links: Sequence[Link],
) -> Int64[Tensor, " left"]:
    """The images of `queries` to compare further: in another set than `known`, a copy of one of its
    images is enough.
    """
    if not _are_apart(first, second, known, queries):
        return queries
    copied = [link.second for link in links if link.kind < NEAR_DUPLICATE]
    return queries[~torch.isin(queries, torch.tensor(copied, dtype=queries.dtype))]


def _near_pairs(
    small: Float[Tensor, "known channels finer finer"],
    own: Float[Tensor, "asked channels finer finer"],
    approximate: bool = False,
) -> list[tuple[int, int, float]]:
    """Pairs of small versions that are near, most alike first: their places, and their distance at
    16 pixels.

    Candidates are the nearest of each of `own`, twice as many each time until the last differs too
    much; the order is that of the largest difference of versions of 32 pixels.
    """
    coarse, own_coarse = (F.adaptive_avg_pool2d(images, SIDE) for images in (small, own))
    left, count, parts = torch.arange(len(own)), 2 * NEIGHBOURS, list[tuple[Tensor, ...]]()
    while len(left):
        count = min(count, len(small))
        nearest = find_nearest(
            _centred(coarse), _centred(own_coarse[left]), count, approximate=approximate
        )
        near = nearest.distance <= COPY**2 / 2
        whole = near[:, -1] & (count < min(CROWDED, len(small)))  # there may be more
        place, column = torch.where(near & ~whole[:, None])
        parts.append((nearest.index[place, column], left[place], nearest.distance[place, column]))
        left, count = left[whole], 2 * count
    at, by, distance = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    largest = torch.empty(len(at))
    for some in torch.arange(len(at)).split(PAIRS // 8):
        rows, own_rows = at[some], by[some]
        far = (small[rows] - own[own_rows]).abs().flatten(1).amax(1)
        far[pixel_difference(coarse[rows], own_coarse[own_rows]) > COPY] = torch.inf
        largest[some] = far
    order = largest.argsort(stable=True)[: int(largest.isfinite().sum())]
    return list(zip(*(values[order].tolist() for values in (at, by, distance)), strict=True))


def _confirmed(
    first: Images,
    second: Images,
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    pairs: Sequence[tuple[int, int, float]],
    links: Sequence[Link],
    compare: Comparison,
) -> list[Link]:
    """The copies among pairs of places in `known` and `queries`, by comparing them in their order.

    Those of an image end when eight comparisons found no copy of it. Two that are in one group by
    now are not compared. In two different sets, `known` counts as one group: a copy of one of its
    images is enough.
    """
    apart = _are_apart(first, second, known, queries)
    judged = {link[1:3] for link in links}
    groups = DisjointSet([-1, *known.tolist(), *queries.tolist()])
    for link in links:
        if link.kind < NEAR_DUPLICATE:
            for end in (ends := (-1 if apart else link.first, link.second)):
                groups.add(end)
            groups.merge(*ends)
    confirmed = list[Link]()
    failed: Counter[tuple[bool, int]] = Counter()

    def is_open(pair: Pair) -> bool:
        row, other, _ = pair
        return (
            (row, other) not in judged
            and not groups.connected(-1 if apart else row, other)
            and min(failed[False, row], failed[apart, other]) < DIFFERENT
        )

    each = ((int(known[at]), int(queries[by]), distance) for at, by, distance in pairs)
    if first is second:
        each = ((min(pair[:2]), max(pair[:2]), pair[2]) for pair in each)
    tried = tracked(each, "comparing images", len(pairs))
    for (row, other, distance), kind in _compared(tried, is_open, compare):
        judged.add((row, other))
        if kind < NEAR_DUPLICATE:
            confirmed.append(Link(distance, row, other, kind))
            groups.merge(-1 if apart else row, other)
        else:
            failed.update([(False, row), (apart, other)])
    return confirmed


def _compared(
    pairs: Iterable[Pair], is_open: Callable[[Pair], bool], compare: Comparison
) -> Iterator[tuple[Pair, int]]:
    """Yield the pairs that are open when their turn comes, with their relation, in their order.

    Threads, or an engine, compare a few pairs ahead, so that what one shows may close another that
    was compared for nothing: the result is that of one thread.
    """
    begun: deque[Pair] = deque()

    def chunks() -> Iterator[list[Pair]]:
        for pair in pairs:
            if is_open(pair):
                begun.append(pair)
                yield [pair]

    for [kind] in in_order(chunks(), partial(_kind, compare), usable_cores()):
        pair = begun.popleft()
        if is_open(pair):
            yield pair, kind


def _kind(compare: Comparison, pair: Sequence[Any]) -> int:
    """The relation of a pair."""
    return compare(pair[0], pair[1])


class Leaks(NamedTuple):
    """Links of copies in two sets, one for each image of the second; complete: whether all pairs
    were compared.
    """

    links: list[Link]
    complete: bool


def find_leaks(
    train: Images,
    test: Images,
    train_x: Float[Tensor, "train dim"],
    test_x: Float[Tensor, "test dim"],
    most: float,
) -> Leaks:
    """Find test images that are copies of training images, no farther apart than `most`: first is
    that of `train`.

    Each is compared with its eight nearest training images, and confirmed as in `find_links`, the
    nearest pairs first, until a copy of it is found. After 20 000 pairs the rest is left, and
    `complete` is False. Where the eighth is near too, further ones follow, as there, and so do
    images of other proportions.
    """
    near_rows = find_nearest(train_x, test_x, min(NEIGHBOURS, len(train)))
    near, column = torch.where(near_rows.distance <= most)
    distance = near_rows.distance[near, column]
    nearest = distance.argsort(stable=True)
    pairs, distance = (
        torch.stack([near_rows.index[near, column], near], 1)[nearest],
        distance[nearest],
    )
    links: dict[int, Link] = {}
    compare = _comparison(train, test)
    done, tried = 0, 0
    with progress("looking for copies", len(pairs)) as bar:
        while done < len(pairs) and tried < CONFIRMED:
            some = slice(done, done + CHUNK)
            leaked = torch.tensor(list(links), dtype=torch.int64)
            new = torch.where(~torch.isin(pairs[some, 1], leaked))[0][: CONFIRMED - tried]
            for link in _confirm_pairs(train, test, pairs[some][new], distance[some][new], compare):
                if link.kind < NEAR_DUPLICATE:
                    links.setdefault(link.second, link)
            tried += len(new)
            done = min(done + CHUNK, len(pairs)) if tried < CONFIRMED else done + int(new[-1]) + 1
            bar.update(done)
    left = torch.isin(pairs[done:, 1], torch.tensor(list(links), dtype=torch.int64))
    known, queries = torch.arange(len(train)), torch.arange(len(test))
    if len(train) > NEIGHBOURS:
        crowded = queries[near_rows.distance[:, -1] <= most]
        sure = list(links.values())
        for link in _crowded_copies(train, test, known, crowded, sure, compare):
            links.setdefault(link.second, link)
    sure = list(links.values())
    for link in _stretched_copies(train, test, known, queries, sure, compare):
        links.setdefault(link.second, link)
    return Leaks(list(links.values()), bool(left.all()))


def _confirm_pairs(
    first: Images,
    second: Images,
    pairs: Int64[Tensor, "pairs 2"],
    distance: Float[Tensor, " pairs"],
    compare: Comparison,
) -> list[Link]:
    """The relation of pairs of images, by their positions in the first and the second set."""
    if not len(pairs):
        return []
    small = []
    for images, rows in zip((first, second), pairs.T, strict=True):
        involved, at = rows.unique(return_inverse=True)
        small.append((small_images(images, involved), at.split(PAIRS)))
    (left, at_left), (right, at_right) = small
    apart = torch.cat(
        [pixel_difference(left[i], right[j]) for i, j in zip(at_left, at_right, strict=True)]
    )
    kinds = torch.full((len(pairs),), NEAR_DUPLICATE)
    close = torch.where(apart <= COPY)[0]
    chunks = pairs[close, None].tolist()  # of one pair
    compared = in_order(chunks, partial(_kind, compare), usable_cores())
    for place, [kind] in zip(close, tracked(compared, "comparing images", len(close)), strict=True):
        kinds[place] = kind
    rows = zip(distance.tolist(), *pairs.T.tolist(), kinds.tolist(), strict=True)
    return [Link(*row) for row in rows]


class _AtFullSize:
    """Images of a set as they are compared at full size; the last ones read stay in memory."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.pixels = lru_cache(CACHED)(partial(full_size, images))
        self.reduced = lru_cache(REDUCTIONS)(lambda row: reduced(self.pixels(row)))
        self.is_lossless = lru_cache(None)(partial(_is_lossless, images))

    def __reduce__(self) -> tuple[Any, ...]:  # in another process nothing is read yet
        return type(self), (self.images,)


def _comparison(
    first: Images, second: Images, verdicts: dict[tuple[str, str], int] | None = None
) -> Comparison:
    """Compares an image of each set at full size, unless small versions differ, or there is a
    verdict on the two files.
    """
    own = _AtFullSize(first)
    compare = partial(_compare, own, own if first is second else _AtFullSize(second))
    if verdicts is None:
        return compare
    marks, other_marks = first.digests, second.digests

    def compare_once(row: int, other: int) -> int:
        mark, other_mark = marks[row], other_marks[other]
        if mark is None or other_mark is None:
            return compare(row, other)
        pair = min(mark, other_mark), max(mark, other_mark)
        if pair not in verdicts:
            verdicts[pair] = compare(row, other)
        return verdicts[pair]

    return compare_once


def _compare(own: _AtFullSize, others: _AtFullSize, row: int, other: int) -> int:
    if differs(own.reduced(row), others.reduced(other)):
        return NEAR_DUPLICATE
    lossless = own.is_lossless(row) and others.is_lossless(other)
    return KINDS.index(compare_pixels(own.pixels(row), others.pixels(other), lossless))


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
    a file rather than a link to one, then has the most pixels, then the largest file, then lies in
    git-annex, then has the shortest name: it is the one to keep.
    """

    def order(row: int) -> tuple[int, ...]:
        return _rank(facts[row], row >= archive, len(names[row]), row)

    same = {row: row for row in facts} | {
        link.second: link.first for link in links if link.kind == SAME_FILE
    }
    kind = _closest_kinds(links, same, distance)
    copies, near_duplicates = group_links(links, len(names), distance)
    proportions = same_proportions(links, len(names))
    firsts = [min(group, key=order) for group in copies]
    turns, edits = _turns(links, firsts), _edits(links, firsts)
    unedited = components(len(names), [link[1:3] for link in links if link.kind < EDITED])
    best: dict[int, int] = {}  # represents a group of copies among near-duplicates
    members = []
    for number, group in enumerate(copies, 1):
        kept: dict[int, int] = {}  # the first image with these bytes
        best |= dict.fromkeys(group, min(group, key=order))
        for row in sorted(group, key=order):
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


def _edits(links: Sequence[Link], first: Sequence[int]) -> dict[int, Edit]:
    """The edits by which the first of a group of copies becomes each image of the group."""
    steps: dict[int, list[tuple[int, Edit]]] = {}
    for link in links:
        if link.kind < NEAR_DUPLICATE:
            edit = link.edit or edit_of_turn(link.turn)
            steps.setdefault(link.first, []).append((link.second, edit))
            steps.setdefault(link.second, []).append((link.first, edit.undone()))
    edits, reached = dict.fromkeys(first, Edit()), list(first)
    for row in reached:  # which grows
        for other, edit in steps[row]:
            if other not in edits:
                edits[other] = edits[row].then(edit)
                reached.append(other)
    return edits


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


def image_stats(images: Images, rows: Sequence[int]) -> dict[int, Facts]:
    """Size in pixels and bytes of the files of images, by position; zero bytes for one that exists
    as pixels alone.

    They come from the table of the data set; a file is read only where the table does not say.
    """
    originals = images.originals
    if originals is None:
        return {row: Facts(images.image_size, images.image_size, 0) for row in rows}
    places = images.table_rows[list(rows)]
    columns = [_of_table(images, name, places) for name in ("width", "height", "bytes", "pages")]
    paths, stats = paths_of(images), {}
    for row, *known in zip(rows, *columns, strict=True):
        path = paths[row]
        link = path is not None and os.path.islink(path)
        annexed = link and ANNEX in os.readlink(path or "").replace(os.sep, "/")
        if None not in known:
            width, height, size, pages = map(int, known)
        else:
            data = originals[row]
            shape = header(data)
            width, height, size, pages = shape.width, shape.height, _size(data), shape.pages
        stats[row] = Facts(width, height, size, link and not annexed, pages, annexed)
    return stats


def _of_table(images: Images, name: str, places: Int64[np.ndarray, " rows"]) -> list[Any]:
    """A column of the table of a data set in these rows of it; None where it does not say."""
    table = images.table
    if name not in table.column_names:
        return [None] * len(places)
    return table[name].take(places).to_pylist()


def paths_of(images: Images) -> list[str | None]:
    """The file of each image, None for one that is none of its own; members of archives are not
    read to find out.
    """
    originals = images.originals
    if originals is None:
        return [None] * len(images)
    places = _of_table(images, "place", images.table_rows)
    paths = (
        originals[row] if place is None or place < 0 else None for row, place in enumerate(places)
    )
    return [data if isinstance(data, str) else None for data in paths]


def _size(data: bytes | str) -> int:
    return len(data) if isinstance(data, bytes) else os.path.getsize(data)


def _same_files(images: Images) -> np.ndarray:
    """For each image the first one with the same bytes, by the digests of the table.

    Without these the encoded images are compared, those alone of which another has the same size.
    """
    originals, first = images.originals, np.arange(len(images))
    if originals is None:
        return first
    seen: dict[str, int] = {}
    digests = _of_table(images, "digest", images.table_rows)
    unknown = [row for row, mark in enumerate(digests) if mark is None]
    if not unknown:
        for row, mark in enumerate(digests):
            first[row] = seen.setdefault(mark, row) if mark else row
        return first
    known_sizes = _of_table(images, "bytes", images.table_rows)
    sizes = np.array(
        [_size(originals[row]) if size is None else size for row, size in enumerate(known_sizes)]
    )
    _, inverse, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    ambiguous = np.flatnonzero(counts[inverse] > 1).tolist()
    for row in tracked(ambiguous, "comparing files"):
        mark = digests[row]
        if mark is None:
            data = originals[row]
            mark = digest(data) if isinstance(data, bytes) else digest_of_file(data)
        # what can no longer be read stays alone
        first[row] = seen.setdefault(mark, row) if mark else row
    return first


def full_size(images: Images, row: int) -> np.ndarray:
    """An image as its file has it, [channels, height, width]; see-through ones on white and then on
    black.
    """
    originals = images.originals
    if originals is None:
        return images.gather(torch.tensor([row]))[0].numpy()
    return file_at_full_size(originals[row])


def file_at_full_size(data: bytes | str) -> np.ndarray:
    """The pixels of an encoded image, as `full_size` has them."""
    grounds = look(data).grounds()
    is_same = np.array_equal(grounds[0], grounds[-1])
    return grounds[0] if is_same else np.concatenate(grounds)


def _is_lossless(images: Images, row: int) -> bool:
    """Return whether the file of an image holds its pixels exactly; pixels alone may come from JPEG
    files.
    """
    return images.originals is not None and is_lossless(images.originals[row])
