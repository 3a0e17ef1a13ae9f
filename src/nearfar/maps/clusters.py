"""Clusters of rows, in a number that fits the data."""

from __future__ import annotations

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
SAME = 1e-4  # unit rows with smaller differences in all dimensions are of the same image


class Clusters(NamedTuple):
    """Clusters 0, 1, ... from large to small; distance of each row to its centre, 1 - cos;
    silhouettes by count.
    """

    number: Int64[Tensor, " rows"]
    distance: Float[Tensor, " rows"]
    scores: dict[int, float]

    def members(self, number: int) -> list[int]:
        """The rows of a cluster, from its centre to its edge."""
        rows = (self.number == number).nonzero()[:, 0]
        return rows[self.distance[rows].argsort(stable=True)].tolist()


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
    sizes = np.bincount(labels)
    rank = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    number = torch.from_numpy(rank[labels].astype(np.int64))
    centres = unit_rows(
        unit.new_zeros(len(sizes), unit.shape[1]).index_add_(0, number, unit), torch.float32
    )
    return Clusters(number, (1 - (unit * centres[number]).sum(1)).clamp_min(0), scores)


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
