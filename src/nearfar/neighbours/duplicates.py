"""Duplicates in a data set: which images are copies or near-duplicates of which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.cluster.hierarchy import DisjointSet
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import normalize

from nearfar.data import Images
from nearfar.data.resources import in_order, usable_cores
from nearfar.engine import each, engine
from nearfar.neighbours.ahead import TOGETHER, compared_ahead
from nearfar.neighbours.approximate import find_nearest
from nearfar.neighbours.copies import (
    COPY,
    MIRROR,
    PROPORTIONS,
    SIDE,
    compare_pixels,
    inverse,
    outlines,
    perturb,
    pixel_difference,
    small_images,
    turned,
    whole_images,
)
from nearfar.neighbours.edited_copies import find_edited
from nearfar.neighbours.files import same_files
from nearfar.neighbours.full_size import CACHED, Comparison, full_size, is_file_lossless
from nearfar.neighbours.links import (
    COPIED,
    EDITED,
    KINDS,
    MIRRORED,
    NEAR_DUPLICATE,
    SAME_FILE,
    TURNED,
    Link,
)
from nearfar.neighbours.nearest import Nearest
from nearfar.progress import progress, tracked
from nearfar.views import eight_bits

NEIGHBOURS = 8  # of each image that are compared with it
# images whose altered versions give the distance of copies, and its quantile
TRIED, SHARE = 128, 0.99
# nearest at most among many near-duplicates; pixels of the versions that order them
CROWDED, FINER = 512, 32
DIFFERENT = 8  # comparisons at full size that find no copy of an image there, after which they end
PAIRS = 8192  # that are compared at a time at 16 pixels
MANY = 20_000  # images of which known neighbours alone are compared, and one walk keeps less
CHUNK = 128  # pairs between two sets that are compared at a time
CONFIRMED = 20_000  # such pairs at most
# random pairs, and the fraction of their median distance that makes near-duplicates
CHANCE, PART = 20_000, 0.1
AT_ONCE = 512  # such pairs whose features are in memory
Pair = tuple[int, int, float]
"""The positions of two images, and the distance of their features."""


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
    edits: bool | None = False,
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
    approximate: as for `find_nearest`. edits: find edited copies too (`find_edited`): True by a
    thorough search, None among likely pairs. nearest: the nearest others of each image, more than
    eight, where they are known and there is no archive; among more than 20 000 images no others are
    compared then. verdicts: relations of two files by
    their digests, as comparisons at full size found them: those that are there are not compared,
    and others are added.

    >>> images = nearfar.data.open_images("photos", image_size=32)
    >>> find_links(images, images.pixels.flatten(1).float(), most=0.0)
    [Link(distance=0.0, first=8, second=12, kind=0, turn=0, edit=None)]
    """
    same = same_files(images)
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
    compare = Comparison(images, images, verdicts)
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
    if edits is not False:
        thorough = bool(edits)
        edited = _edited(images, features, known, queries, links, approximate, thorough)
        links = _replaced(links, edited)
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
    rough, likely = outlines(images, known), list[Tensor]()
    for places in torch.arange(len(known)).split(PAIRS // near.index.shape[1]):
        place, column = torch.where(near.distance[places] <= most)
        row = places[place]
        left = ~rough.refused(row, near.index[row, column])
        likely.append(torch.stack([row[left], column[left]], 1))
    for some in torch.cat(likely).split(PAIRS):  # small versions lie in many files
        row, column = some.unbind(1)
        other, distance = near.index[row, column], near.distance[row, column]
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
    exact = lru_cache(None)(partial(is_file_lossless, images))
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
    approximate: bool,
    thorough: bool,
) -> list[Link]:
    """The edited copies among two sets of positions, that are no copies by `links`."""
    sure = [link[1:3] for link in links if link.kind < NEAR_DUPLICATE]
    read = partial(full_size, images)
    edited = find_edited(images, features, known, queries, sure, read, approximate, thorough)
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
    rows = [(int(known[at]), int(queries[by]), distance) for at, by, distance in pairs]
    if first is second:
        rows = [(min(pair[:2]), max(pair[:2]), pair[2]) for pair in rows]
    groups = DisjointSet({-1}.union(*(pair[:2] for pair in rows)))
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

    tried = tracked(rows, "comparing images", len(pairs))
    relations = partial(_relations, compare)
    for (row, other, distance), kind in compared_ahead(tried, is_open, relations):
        judged.add((row, other))
        if kind < NEAR_DUPLICATE:
            confirmed.append(Link(distance, row, other, kind))
            groups.merge(-1 if apart else row, other)
        else:
            failed.update([(False, row), (apart, other)])
    return confirmed


def _relations(compare: Comparison, chunks: Iterable[list[Any]]) -> Iterator[list[int]]:
    """The relations of the pairs of each chunk: in threads, or by an engine, which keeps them until
    its job is done.
    """
    if engine() is None:
        work = partial(_kind, compare)
        yield from in_order(chunks, work, usable_cores())
        return
    results: Iterator[dict[str, np.ndarray]] = each(compare.kinds, chunks, compare.key)
    for result in results:
        yield result["kinds"].tolist()


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
    compare = Comparison(train, test)
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
    together = 1 if engine() is None else TOGETHER
    chunks = (some.tolist() for some in pairs[close].split(together)) if len(close) else ()
    compared = chain.from_iterable(_relations(compare, chunks))
    for place, kind in zip(close, tracked(compared, "comparing images", len(close)), strict=True):
        kinds[place] = kind
    rows = zip(distance.tolist(), *pairs.T.tolist(), kinds.tolist(), strict=True)
    return [Link(*row) for row in rows]
