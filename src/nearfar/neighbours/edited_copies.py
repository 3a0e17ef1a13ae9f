"""Edited copies among many images, and the origin of one: candidates by features, confirmed by
`edits.find_edit`.

Candidates are pairs that a small net finds alike, which sees small versions and was trained on
edits. A thorough search takes local features of all images instead: candidates are the nearest by
the features at hand, and by VLAD (Jegou et al. 2010) of local features, also of the mirror image,
which hold what a turn, a crop or a border leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from scipy.cluster.hierarchy import DisjointSet
from sklearn.cluster import MiniBatchKMeans
from sklearn.random_projection import GaussianRandomProjection
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.data import Images
from nearfar.data.decoding import whole_planes
from nearfar.data.resources import in_order, usable_cores
from nearfar.neighbours.ahead import compared_ahead
from nearfar.neighbours.approximate import find_nearest
from nearfar.neighbours.copies import compare_pixels
from nearfar.neighbours.edit_maps import (
    LONGEST_SIDE,
    Local,
    Map,
    comparable,
    local_features,
    matched_map,
    mirrored,
    opencv,
    opencv_in_one_thread,
    root_descriptors,
)
from nearfar.neighbours.edits import SMALLEST, Edit, are_large_enough, find_edit, shares
from nearfar.networks.edit_net import EditNet, edit_features, edit_net
from nearfar.progress import log, tracked
from nearfar.threads import use_threads

CANDIDATES = 4  # nearest images of each, by the features, by VLAD, and by that of its mirror image
WORDS, A_WORD = 64, 40  # words of VLAD, and descriptors from which each is learned at least
SAMPLE = 100_000  # descriptors that words are learned from
# nearest images of a part; what is added to its distances, since parts are more
OF_A_PART, FARTHER = 2, 0.03
# nearest images, from and to, whose mean distance is taken off that of a pair: images of one kind
# are near each other (as the normalised scores of SSCD, Pizzi et al. 2022)
COMMON = 15, 48
# share of all images, and images at least, whose local features are taken in vain before likely
# pairs end; pairs after which that is asked; images that the net sees at a time
LOOKED, LEAST_LOOKED, AT_ONCE, PART_OF_NET = 0.1, 300, 64, 64
NUMBERS = 512  # of a vector of VLAD at most, by random projection
PART = 512  # images whose vectors are made at a time
TAKEN = 16_384  # images whose local features are in memory: 29 kB each at most
CACHED = 8  # images in memory at full size
LOOKED_AT = 30  # nearest images that are all compared with a query; further ones until one is found
IN_ITS_PLACE = 0.05  # difference of a map from none, up to which images may be copies without edits

Read = Callable[[int], np.ndarray]
"""Of the position of an image: its pixels at full size."""
Pair = tuple[int, int, tuple[bool, ...]]
"""The positions of two images, and whether the second is to be mirrored, in the order of trying."""


class Edited(NamedTuple):
    """Two images by their positions, and how the first becomes the second."""

    first: int
    second: int
    edit: Edit


def find_edited(
    images: Images,
    features: Float[Tensor, "images dim"],
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    sure: Sequence[tuple[int, int]],
    read: Read,
    approximate: bool = False,
    thorough: bool = True,
) -> list[Edited]:
    """Find images that are edited copies of others, the likeliest candidates first.

    Each of `queries` is compared with its nearest of `known`. Two that are in one group of copies
    by now are not compared. sure: pairs of copies. thorough: whether local features of all images
    give the candidates; else the net of the package does, and local features are taken of these
    alone. Images must be grayscale or colour of 8 bits; others, and those below 36 x 36 pixels, are
    left out, and a line says how many. ValueError where OpenCV is not installed.
    """
    opencv()
    say = log.warning if thorough else log.info
    if images.channels not in (1, 3) or images.value_range is not None:
        say("edited copies are found among grayscale and colour images of 8 bits alone")
        return []
    count = len(torch.cat([known, queries]).unique())
    fit = _comparable(images, known)
    queries = fit if queries is known else _comparable(images, queries)
    known = fit
    rows = torch.cat([known, queries]).unique()
    if len(rows) < count:
        others = f"{count - len(rows)} of {count} have more bits or fewer pixels"
        which = f"images of 8 bits and at least {SMALLEST} x {SMALLEST} pixels"
        say("edited copies are found among %s alone: %s", which, others)
    if not len(known) or not len(queries):
        return []
    groups = DisjointSet(rows.tolist())
    for first, second in sure:
        if first in groups and second in groups:
            groups.merge(first, second)
    if not thorough:
        likely = _likely(images, known, queries, groups, approximate)
        return list(_among_likely(_Edits(images, read, {}), groups, likely))
    local = _local_features(images, rows.tolist(), read)
    pairs = list(_candidates(features, known, queries, local, approximate))
    edited = _compared(_Edits(images, read, local), groups, pairs)
    return [each for _, each in edited if each is not None]


def _comparable(images: Images, rows: Int64[Tensor, " rows"]) -> Int64[Tensor, " comparable"]:
    """Return those of some positions whose images have 8 bits and are large enough."""
    fit = are_large_enough(_sizes(images, rows)) & of_eight_bits(images, rows)
    return rows[torch.from_numpy(fit)]


def of_eight_bits(images: Images, rows: Int64[Tensor, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Return which images, of some positions, have 8 bits; those whose header is not known do."""
    if "bits" not in images.table.column_names:
        return np.ones(len(rows), dtype=bool)
    bits = images.table["bits"].take(images.table_rows[rows.numpy()])
    return bits.fill_null(8).to_numpy() == 8


def _sizes(images: Images, rows: Int64[Tensor, " rows"]) -> Int64[np.ndarray, "rows 2"]:
    """Height and width of images at full size, by position."""
    if images.originals is None:
        return np.full((len(rows), 2), images.image_size)
    return images.native_sizes(rows.numpy())


class _Edits:
    """Work that finds how the first image of a pair becomes the second, by local features and
    pixels; None if it does not.

    local: local features that are known, by position; others are taken, and the last ones stay in
    memory. Of a pair, with the positions, whether the second image is to be mirrored: each way is
    tried until one shows an edit.
    """

    def __init__(self, images: Images, read: Read, local: Mapping[int, Local]) -> None:
        self.images, self.read, self.local = images, read, local
        self.take = lru_cache(TAKEN)(partial(_local, images, read=read))
        self.full = lru_cache(CACHED)(lambda row: comparable(read(row)))

    def __reduce__(self) -> tuple[Any, ...]:  # in another process nothing is read yet
        return type(self), (self.images, self.read, {})

    def __call__(self, pair: Pair) -> Edit | None:
        first, second, ways = pair
        with opencv_in_one_thread():
            for is_mirrored in ways:
                matrix = _matched(self._of(first), self._of(second), is_mirrored)
                if matrix is None:
                    continue
                pixels, others = self.full(first), self.full(second)
                if pixels is None or others is None:
                    return None
                edit = find_edit(pixels, others, matrix)
                if edit is not None:
                    return edit
        return None

    def _of(self, row: int) -> Local:
        return self.local[row] if row in self.local else self.take(row)


def _compared(
    edit_of: Callable[[Pair], Edit | None], groups: DisjointSet, pairs: Sequence[Pair]
) -> Iterator[tuple[int, Edited | None]]:
    """Yield the place of each pair whose images are in no group when its turn comes, with what is
    found of it, in their order; the images of an edited copy are in one group from then on.
    """

    def is_open(item: tuple[int, Pair]) -> bool:
        return not groups.connected(*item[1][:2])

    def compare(chunks: Iterator[list[tuple[int, Pair]]]) -> Iterator[list[Edit | None]]:
        of_chunks = ([pair for _, pair in chunk] for chunk in chunks)
        return in_order(of_chunks, edit_of, usable_cores())

    every = enumerate(tracked(pairs, "comparing images"))
    with opencv_in_one_thread():
        for (place, (first, second, _)), edit in compared_ahead(every, is_open, compare):
            if edit is not None:
                groups.merge(first, second)
            yield place, None if edit is None else Edited(first, second, edit)


def _among_likely(
    edit_of: Callable[[Pair], Edit | None],
    groups: DisjointSet,
    pairs: Sequence[tuple[int, int]],
) -> Iterator[Edited]:
    """Yield the edited copies among likely pairs.

    It ends where a share of the images were looked at since the last edited copy, 64 pairs at a
    time: in a large set, ever more images look alike by chance. A line says how many pairs are left
    out.
    """
    most = max(LEAST_LOOKED, LOOKED * len(groups))
    looked, part, is_edited = 0, 0, False
    new = _new_images(pairs)
    for place, edited in _compared(edit_of, groups, [(*pair, (False, True)) for pair in pairs]):
        while part < place // AT_ONCE and looked < most:
            looked = 0 if is_edited else looked + new[part]
            part, is_edited = part + 1, False
        if looked >= most:
            log.info(
                "edited copies: the %d likeliest of %d pairs were compared, the last without "
                "finding any; a thorough search (`edits`) takes about twice as long",
                part * AT_ONCE,
                len(pairs),
            )
            return
        if edited is not None:
            is_edited = True
            yield edited


def _new_images(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Count the images of each 64 pairs that are in no pair before."""
    seen, counts = set[int](), list[int]()
    for start in range(0, len(pairs), AT_ONCE):
        images = {*chain.from_iterable(pairs[start : start + AT_ONCE])}
        counts.append(len(images - seen))
        seen |= images
    return counts


def _likely(
    images: Images,
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    groups: DisjointSet,
    approximate: bool,
) -> list[tuple[int, int]]:
    """Pairs of images, each query with its nearest by the net of the package, in the order of
    `_near`.

    Of a group of copies the largest image stands for all. A query that has a copy in another set is
    left out.
    """
    own = left = _largest_of_groups(images, known, groups)
    if queries is not known:
        roots = {groups[row] for row in known.tolist()}
        left = queries[[groups[row] not in roots for row in queries.tolist()]]
    if not len(left):
        return []
    of_own = _by_net(images, own)
    of_left = of_own if queries is known else _by_net(images, left)
    return _near(own, of_own, left, of_left, approximate)


def _near(
    known: Int64[Tensor, " known"],
    of_known: tuple[Float[Tensor, "known numbers"], Float[Tensor, "known parts numbers"]],
    queries: Int64[Tensor, " queries"],
    of_queries: tuple[Float[Tensor, "queries numbers"], Float[Tensor, "queries parts numbers"]],
    approximate: bool = False,
) -> list[tuple[int, int]]:
    """Pairs of positions, each query with its nearest by features: whole images, and a part of one
    with the whole of the other.

    Those come first that are nearer than the query is to its 16th to 48th nearest on average.
    """
    (wholes, parts), (others, other_parts) = of_known, of_queries
    nearest = partial(find_nearest, approximate=approximate)
    whole = nearest(wholes, others, min(COMMON[1], len(known)))
    common = whole.distance[:, min(COMMON[0], len(known) - 1) :].mean(1, keepdim=True)
    few, of_a_part = CANDIDATES + 1, OF_A_PART + 1  # an image may be its own nearest
    near = [_pairs(known[whole.index], queries, whole.distance - common, few)]
    part = nearest(wholes, other_parts.flatten(0, 1), min(of_a_part, len(known)))
    each = parts.shape[1]
    apart = part.distance - common.repeat_interleave(each, 0) + FARTHER
    near.append(_pairs(known[part.index], queries.repeat_interleave(each), apart))
    if queries is not known:
        part = nearest(others, parts.flatten(0, 1), min(of_a_part, len(queries)))
        apart = part.distance - common[part.index, 0] + FARTHER
        near.append(_pairs(queries[part.index], known.repeat_interleave(each), apart))
    distance, pairs = (torch.cat(every) for every in zip(*near, strict=True))
    return list(dict.fromkeys(map(tuple, pairs[distance.argsort(stable=True)].tolist())))


def _by_net(
    images: Images, rows: Int64[Tensor, " rows"]
) -> tuple[Float[Tensor, "rows numbers"], Float[Tensor, "rows parts numbers"]]:
    """Features of images, and of parts of each, by the net of the package."""
    work = partial(_features, edit_net(), images)
    pieces = [[piece] for piece in rows.split(PART_OF_NET)]
    with use_threads(1):
        each = chain.from_iterable(in_order(pieces, work, usable_cores()))
        made = list(tracked(each, "features for edited copies", len(pieces)))
    wholes, parts = (torch.cat(vectors) for vectors in zip(*made, strict=True))
    return wholes, parts


def _features(net: EditNet, images: Images, rows: Int64[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
    """Some of `_by_net`."""
    return edit_features(net, images.gather(rows))


def _pairs(
    first: Int64[Tensor, "rows near"],
    second: Int64[Tensor, " rows"],
    distance: Float[Tensor, "rows near"],
    count: int | None = None,
) -> tuple[Float[Tensor, " pairs"], Int64[Tensor, "pairs 2"]]:
    """Distances and positions of the pairs of different images, of each row its first `count`."""
    ends = first[:, :count].flatten(), second.repeat_interleave(first[:, :count].shape[1])
    pairs, apart = torch.stack([torch.minimum(*ends), torch.maximum(*ends)], 1), ends[0] != ends[1]
    return distance[:, :count].flatten()[apart], pairs[apart]


def _largest_of_groups(
    images: Images, rows: Int64[Tensor, " rows"], groups: DisjointSet
) -> Int64[Tensor, " largest"]:
    """Of each group the image with the most pixels, in the order of positions."""
    largest: dict[int, int] = {}
    sizes = _sizes(images, rows).prod(1)
    for place in np.argsort(-sizes, kind="stable").tolist():
        row = int(rows[place])
        largest.setdefault(groups[row], row)
    return torch.tensor(sorted(largest.values()))


class Origin(NamedTuple):
    """The image that another was made from, by its position, and how; the width and the height of
    both. confirmed: whether their pixels are the same; else their local features alone agree.
    equal: whether every pixel is.
    """

    row: int
    edit: Edit
    size: tuple[int, int]
    made: tuple[int, int]
    confirmed: bool = True
    equal: bool = False


def find_origin(
    images: Images,
    query: Shaped[np.ndarray, "bands height width"],
    order: Iterable[int],
    local: dict[int, Local],
    read: Read,
) -> Origin | None:
    """Find the image that another one is a crop, an edited copy or a copy of; None without one.

    order: positions of images, the likely ones first. The first 30 are compared, and others until
    one is found. Of several that is the one which has most of the query, then most beside it.
    Without one it is the likeliest of the 30 whose local features agree on a map, unconfirmed.
    local: local features by position, which this fills. ValueError where OpenCV is not installed,
    and for a query that is neither grayscale nor colour of 8 bits.
    """
    pixels = comparable(query)
    if pixels is None:
        raise ValueError("crops are found by images that are grayscale or colour of 8 bits")
    ours, confirmed, likely = local_features(pixels), list[Origin](), None
    for place, row in enumerate(tracked(list(order), "comparing images")):
        if confirmed and place >= LOOKED_AT:
            break
        if row not in local:
            local[row] = _local(images, row, read)
        origin = _origin(row, local[row], ours, pixels, read)
        if origin is not None and origin.confirmed:
            confirmed.append(origin)
        elif place < LOOKED_AT:
            likely = likely or origin
    return max(confirmed, key=_most_of_it, default=likely)


def _origin(row: int, local: Local, ours: Local, pixels: np.ndarray, read: Read) -> Origin | None:
    """Return what the image at a position is to a query: its origin, confirmed or by local features
    alone, or None.
    """
    alike = None
    for is_mirrored in (False, True):
        matrix = _matched(local, ours, is_mirrored)
        whole = None if matrix is None else comparable(read(row))
        if matrix is None or whole is None:
            continue
        sizes = whole.shape[:0:-1], pixels.shape[:0:-1]
        edit = find_edit(whole, pixels, matrix) or _unedited(whole, pixels, matrix)
        if edit is not None:
            return Origin(row, edit, *sizes, equal=np.array_equal(whole, pixels))
        rough = Edit(tuple(matrix.ravel().tolist()))
        alike = alike or Origin(row, rough, *sizes, confirmed=False)
    return alike


def _most_of_it(origin: Origin) -> tuple[float, float, bool]:
    """Return what orders origins: how much of the query they have, then how much beside it, then
    whether all pixels are equal.
    """
    shown, covered = shares(origin.edit)
    return round(covered, 2), -shown, origin.equal


def _unedited(first: np.ndarray, second: np.ndarray, matrix: Map) -> Edit | None:
    """Return an edit that changes nothing, of copies; None for images that differ."""
    if np.abs(matrix - np.eye(2, 3)).max() > IN_ITS_PLACE:
        return None
    return Edit() if compare_pixels(first, second) in ("same pixels", "copy") else None


def _local(images: Images, row: int, read: Read) -> Local:
    """The local features of the whole image at a position."""
    if images.originals is None:
        image = comparable(read(row))
        assert image is not None
    else:
        image = whole_planes(images.originals[row], images.channels, None, LONGEST_SIDE).numpy()
    with opencv_in_one_thread():
        return local_features(image)


def _local_features(images: Images, rows: Sequence[int], read: Read) -> dict[int, Local]:
    """The local features of images, by position."""
    chunks = ([row] for row in rows)
    with opencv_in_one_thread():
        made = chain.from_iterable(
            in_order(chunks, partial(_local, images, read=read), usable_cores())
        )
        return dict(zip(rows, tracked(made, "local features", len(rows)), strict=True))


def _matched(first: Local, second: Local, is_mirrored: bool) -> Map | None:
    """The map from an image to another, or to its mirror image and back."""
    if not is_mirrored:
        return matched_map(first, second)
    matrix = matched_map(first, mirrored(second))
    return None if matrix is None else np.diag([-1.0, 1.0]) @ matrix


def _candidates(
    features: Float[Tensor, "images dim"],
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    local: dict[int, Local],
    approximate: bool,
) -> Iterator[Pair]:
    """Pairs of images that may be edited copies, and whether one is to be mirrored."""
    seen = set()
    rows, own = features[known], features[queries]
    for vectors, others, tried in (
        (rows, own, (False, True)),
        *_by_local_features([local[row] for row in known.tolist()], known, queries, local),
    ):
        count = min(CANDIDATES + 1, len(known))  # one may be the image itself
        nearest = find_nearest(vectors, others, count, approximate=approximate)
        order = nearest.distance.flatten().argsort(stable=True).tolist()
        place = nearest.index.flatten()
        for at in order:
            first, second = int(known[place[at]]), int(queries[at // count])
            if first == second:
                continue
            for is_mirrored in tried:
                pair = (min(first, second), max(first, second), (is_mirrored,))
                if pair not in seen:
                    seen.add(pair)
                    yield pair


def _by_local_features(
    of_known: Sequence[Local],
    known: Int64[Tensor, " known"],
    queries: Int64[Tensor, " queries"],
    local: dict[int, Local],
) -> Iterator[tuple[Tensor, Tensor, tuple[bool, ...]]]:
    """Vectors by VLAD of known images and of queries, as they are and mirrored."""
    words = _words(of_known)
    if words is None:
        return
    shorter = None
    if words.size > NUMBERS:
        shorter = GaussianRandomProjection(NUMBERS, random_state=0)
        shorter.fit(np.zeros((1, words.size), np.float32))
    wanted = [local[row] for row in queries.tolist()]
    vectors = _vectors(of_known, words, shorter)
    yield vectors, vectors if queries is known else _vectors(wanted, words, shorter), (False,)
    yield vectors, _vectors([mirrored(features) for features in wanted], words, shorter), (True,)


def _words(local: Sequence[Local]) -> Float[np.ndarray, "words 128"] | None:
    """Means of clusters of descriptors, of up to 100 000 of them; None where there are too few."""
    chance = np.random.default_rng(0)
    every = np.concatenate([image.descriptors for image in local])
    if len(every) < A_WORD:
        return None
    some = every[chance.permutation(len(every))[:SAMPLE]]
    words = min(WORDS, len(some) // A_WORD)
    clusters = MiniBatchKMeans(words, batch_size=4096, n_init=1, random_state=0)
    return clusters.fit(root_descriptors(some)).cluster_centers_


def _vectors(
    local: Sequence[Local],
    words: Float[np.ndarray, "words 128"],
    shorter: GaussianRandomProjection | None,
) -> Float[Tensor, "images dim"]:
    """VLAD of images, perhaps shortened, of length 1."""
    parts = []
    for start in range(0, len(local), PART):
        some = local[start : start + PART]
        flat = vlad([root_descriptors(image.descriptors) for image in some], words)
        parts.append(flat if shorter is None else shorter.transform(flat).astype(np.float32))
    return normalize(torch.from_numpy(np.concatenate(parts)), dim=1)


def vlad(
    descriptors: Sequence[Float[np.ndarray, "_ dim"]], words: Float[np.ndarray, "words dim"]
) -> Float[np.ndarray, "images numbers"]:
    """The descriptors of each image as one vector (Jegou et al. 2010): of each word the sum of the
    differences of those nearest to it from it, of length 1.
    """
    sums = np.zeros((len(descriptors), *words.shape), np.float32)
    every, half = np.eye(len(words), dtype=np.float32), np.square(words).sum(1) / 2
    for of_image, rows in zip(sums, descriptors, strict=True):
        chosen = every[(rows @ words.T - half).argmax(1)]
        of_image[:] = chosen.T @ rows - chosen.sum(0)[:, None] * words
    sums /= np.linalg.norm(sums, axis=2, keepdims=True).clip(1e-6)
    return sums.reshape(len(sums), -1)
