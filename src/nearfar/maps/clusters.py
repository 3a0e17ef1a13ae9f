"""Clusters of rows, in a number that fits the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from nearfar.maps.cluster_embedding import ClusterEmbedding
from nearfar.pairs.arithmetic import unit_rows
from nearfar.progress import tracked

COUNTS = (
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    14,
    16,
    18,
    20,
    23,
    26,
    30,
    35,
    40,
    50,
    60,
)  # that are tried
LAID_OUT = 20_000  # rows that are laid out on the plane; the others are placed among them
JUDGED = 3000  # rows over which the silhouette is computed
BATCH, STARTS = 2048, 5
LAYERS = ((13, 60), (2, 12))  # numbers of clusters of the layers above the finest, the next first
FINEST = 300  # clusters of the finest layer, at most
PART = 2**15  # rows whose distances are computed at a time
SAME = 1e-4  # unit rows with smaller differences in all dimensions are of the same image


class Clusters(NamedTuple):
    """Clusters 0, 1, ... from large to small; distance of each row to its centre, 1 - cos;
    silhouettes by count.
    """

    number: Int64[Tensor, " rows"]
    distance: Float[Tensor, " rows"]
    scores: dict[int, float]

    def members(self) -> list[Int64[Tensor, " rows"]]:
        """The rows of each cluster, from its centre to its edge."""
        by_distance = self.distance.argsort(stable=True)
        rows = by_distance[self.number[by_distance].argsort(stable=True)]
        return list(rows.split(self.number.bincount().tolist()))


def clusters_of(
    rows: Float[Tensor, "rows dim"],
    count: int | None = None,
    seed: int = 0,
) -> Clusters:
    """Group rows by k-means on a plane that keeps their neighbours.

    The plane is a `ClusterEmbedding` of at most 20 000 random unit rows. Groups of any shape in
    feature space are compact there (McConville et al. 2021, "N2D", with UMAP and a mixture of
    Gaussians). count: None chooses the number with the largest mean silhouette on the plane
    (Rousseeuw 1987, "Silhouettes: a graphical aid to the interpretation and validation of cluster
    analysis") over at most 3000 random rows, from 2 to 60 and below the square root of twice the
    rows; `scores` has the silhouette of each. Rows that are equal but for rounding share a cluster:
    with fewer distinct rows than `count`, each is a cluster. ValueError for fewer rows than
    clusters, or fewer than three.
    """
    if not 1 <= (count or 1) <= len(rows) or len(rows) < 3:
        raise ValueError(f"{len(rows)} images cannot be put into {count or 'two or more'} clusters")
    unit = unit_rows(rows, torch.float32)
    same = _same(unit)
    different = int(same.max()) + 1
    labels: np.ndarray = same
    scores: dict[int, float] = {}
    if count == 1:
        labels = np.zeros(len(unit), dtype=np.int64)
    elif different > (count or 2):
        labels, scores = _grouped(unit, same, count, seed)
    return _described(unit, labels, scores)


def _described(
    unit: Float[Tensor, "rows dim"], labels: np.ndarray, scores: dict[int, float]
) -> Clusters:
    """Clusters in the order of their sizes, with the distances to their centres."""
    sizes = np.bincount(labels)
    rank = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    number = torch.from_numpy(rank[labels].astype(np.int64))
    centres = unit_rows(
        unit.new_zeros(len(sizes), unit.shape[1]).index_add_(0, number, unit), torch.float32
    )
    near = [
        (part * centres[own]).sum(1)
        for part, own in zip(unit.split(PART), number.split(PART), strict=True)
    ]
    return Clusters(number, (1 - torch.cat(near)).clamp_min(0), scores)


def layered_clusters(
    rows: Float[Tensor, "rows dim"],
    coordinates: Float[Tensor, "rows 2"],
    seed: int = 0,
) -> list[Clusters]:
    """Group rows that lie on a plane which keeps their neighbours in up to three granularities,
    coarse to fine: each cluster lies in one of the next coarser.

    The finest are those of k-means, as many as the square root of half the rows and at most 300.
    Their centres are joined by Ward's criterion, weighted by their sizes; of the numbers up to 12
    and from 13 to 60 those with the largest silhouette (Rousseeuw 1987) over 3000 rows are taken,
    each at most half of the next finer. ValueError for fewer than three rows.
    """
    from sklearn.cluster import MiniBatchKMeans  # here: it takes a second to import
    from sklearn.metrics import silhouette_score

    if len(rows) < 3:
        raise ValueError(f"{len(rows)} images cannot be put into two or more clusters")
    unit, places = unit_rows(rows, torch.float32), coordinates.numpy()
    finest = int(min(FINEST, max(2, (len(rows) / 2) ** 0.5), len(np.unique(places, axis=0))))
    means = MiniBatchKMeans(
        finest, batch_size=min(BATCH, len(rows)), n_init=STARTS, random_state=seed
    ).fit(places)
    of_finest = _renumbered(means.labels_)
    merges = _merged(places, of_finest)
    sample = np.random.default_rng(seed).permutation(len(rows))[:JUDGED]
    layers = [_described(unit, of_finest, {})]
    for least, most in LAYERS:
        most = min(most, (int(layers[0].number.max()) + 1) // 2)
        scores: dict[int, float] = {}
        cuts = {count: _cut(merges, count) for count in COUNTS if least <= count <= most}
        for count, cut in cuts.items():
            labels = cut[of_finest[sample]]
            several = 1 < len(np.unique(labels)) < len(sample)
            scores[count] = float(silhouette_score(places[sample], labels)) if several else -1.0
        if scores:
            best = max(scores, key=lambda count: scores[count])
            layers.insert(0, _described(unit, cuts[best][of_finest], scores))
    return layers


def _renumbered(labels: np.ndarray) -> np.ndarray:
    """Labels 0, 1, ... without gaps."""
    return np.unique(labels, return_inverse=True)[1]


def _merged(places: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    """The pairs of clusters that Ward's criterion joins in turn, nearest first; a joined one keeps
    the first of the two numbers. Sizes count, which scipy and scikit-learn take to be equal.
    """
    sizes = np.bincount(labels).astype(float)
    centres = np.stack([np.bincount(labels, axis) for axis in places.T], 1) / sizes[:, None]
    gone: np.ndarray = np.zeros(len(sizes), bool)
    merges = []
    for _ in range(len(sizes) - 1):
        apart = np.square(centres[:, None] - centres).sum(2)
        cost = apart * sizes[:, None] * sizes / (sizes[:, None] + sizes)
        cost[gone], cost[:, gone] = np.inf, np.inf
        np.fill_diagonal(cost, np.inf)
        first, second = sorted(int(end) for end in np.unravel_index(cost.argmin(), cost.shape))
        both = sizes[first] + sizes[second]
        centres[first] = (sizes[first] * centres[first] + sizes[second] * centres[second]) / both
        sizes[first], gone[second] = both, True
        merges.append((first, second))
    return merges


def _cut(merges: Sequence[tuple[int, int]], count: int) -> np.ndarray:
    """The cluster of each of the finest when so many are left."""
    owner = np.arange(len(merges) + 1)
    for first, second in merges[: len(merges) + 1 - count]:
        owner[owner == second] = first
    return _renumbered(owner)


def _same(unit: Float[Tensor, "rows dim"]) -> np.ndarray:
    """Number the distinct rows from 0, in their order; rows that differ by rounding alone share a
    number.

    Such rows are neighbours in the order of their projections onto a random direction.
    """
    direction = torch.randn(unit.shape[1], generator=torch.Generator().manual_seed(0))
    order = (unit @ direction).argsort()
    pairs = zip(order[:-1].split(BATCH), order[1:].split(BATCH), strict=True)
    apart = torch.cat(
        [(unit[first_row] - unit[other]).abs().amax(1) > SAME for first_row, other in pairs]
    )
    group = np.zeros(len(unit), dtype=np.int64)
    group[order[1:].numpy()] = apart.cumsum(0).numpy()
    first = np.unique(group, return_index=True)[1]
    return np.argsort(np.argsort(first))[group]


def _grouped(
    unit: Float[Tensor, "rows dim"],
    same: np.ndarray,
    count: int | None,
    seed: int,
) -> tuple[np.ndarray, dict[int, float]]:
    """Return a label for each row, and the silhouette by number of clusters: `count`, or those in
    COUNTS.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans  # here: it takes a second to import
    from sklearn.metrics import silhouette_score

    first = np.unique(same, return_index=True)[1]
    order = np.random.default_rng(seed).permutation(len(first))
    plane = ClusterEmbedding(random_state=seed)
    coordinates = plane.fit_transform(unit[first[order[:LAID_OUT]]].numpy())
    if len(order) > LAID_OUT:
        coordinates = np.concatenate(
            [coordinates, plane.transform(unit[first[order[LAID_OUT:]]].numpy())]
        )
    coordinates = coordinates[np.argsort(order)][same]
    sample = np.random.default_rng(seed).permutation(len(unit))[:JUDGED]
    counts = (
        [count for count in COUNTS if count <= max(2, (2 * len(first)) ** 0.5)]
        if count is None
        else [count]
    )
    scores: dict[int, float] = {}
    clusterings: dict[int, np.ndarray] = {}
    for tried in tracked(counts, "grouping images"):
        means = MiniBatchKMeans(
            tried, batch_size=min(BATCH, len(unit)), n_init=STARTS, random_state=seed
        )
        means = means.fit(coordinates)
        if len(np.unique(means.labels_)) < tried:  # k-means on everything leaves no cluster empty
            means = KMeans(tried, init=means.cluster_centers_, n_init=1).fit(coordinates)
        clusterings[tried], labels = means.labels_, means.labels_[sample]
        several = 1 < len(np.unique(labels)) < len(sample)
        scores[tried] = float(silhouette_score(coordinates[sample], labels)) if several else -1.0
    return clusterings[max(scores, key=lambda tried: scores[tried])], scores
