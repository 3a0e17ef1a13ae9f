"""Groups of rows without labels, as many as fit the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from nearfar.maps.cluster_embedding import ClusterEmbedding
from nearfar.pairs.precision import unit_rows

COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 23, 26, 30, 35, 40, 50, 60)  # that are tried
LAID_OUT = 20_000  # rows that make the plane; others are placed among them
JUDGED = 3000  # rows of which the silhouette is computed
BATCH, STARTS = 2048, 5


class Clusters(NamedTuple):
    """Clusters 0, 1, ... from large to small. `distance`: of each row to its centre, 1 - cos; `score`: by count."""

    number: Int64[Tensor, " rows"]
    distance: Float[Tensor, " rows"]
    scores: dict[int, float]


def clusters_of(
    rows: Float[Tensor, "rows dim"],
    count: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Clusters:
    """Group rows by k-means on a plane that keeps their neighbours.

    The plane is that of `ClusterEmbedding` of unit rows, with the repulsion of t-SNE (alpha 0); of more than 20 000
    rows so many at random make it. Groups of any shape in the features are compact there (McConville et al. 2021,
    "N2D", which has UMAP and a mixture of Gaussians).
    count: None chooses the number with the largest mean silhouette on the plane (Rousseeuw 1987, "Silhouettes: a
    graphical aid to the interpretation and validation of cluster analysis") of at most 3000 rows at random, among
    numbers from 2 to 60 and below the square root of twice the rows; `scores` holds what was tried.
    progress: called with (steps done, steps) of the plane.
    ValueError for fewer rows than clusters, or fewer than three.
    """
    from sklearn.cluster import MiniBatchKMeans  # here: it takes a second to import
    from sklearn.metrics import silhouette_score

    if not 1 <= (count or 1) <= len(rows) or len(rows) < 3:
        raise ValueError(f"{len(rows)} images cannot be put into {count or 'two or more'} clusters")
    unit = unit_rows(rows, torch.float32)
    order = np.random.default_rng(seed).permutation(len(unit))
    plane = ClusterEmbedding(alpha=0.0, random_state=seed, progress=progress)
    places = plane.fit_transform(unit[order[:LAID_OUT]].numpy())
    if len(unit) > LAID_OUT:
        places = np.concatenate([places, plane.transform(unit[order[LAID_OUT:]].numpy())])
    places = places[np.argsort(order)]
    sample = order[:JUDGED]
    scores: dict[int, float] = {}
    best: tuple[float, MiniBatchKMeans | None] = (-np.inf, None)
    for tried in [one for one in COUNTS if one <= max(2, (2 * len(rows)) ** 0.5)] if count is None else [count]:
        means = MiniBatchKMeans(tried, batch_size=min(BATCH, len(unit)), n_init=STARTS, random_state=seed).fit(places)
        labels = means.labels_[sample]
        several = 1 < len(np.unique(labels)) < len(sample)
        scores[tried] = float(silhouette_score(places[sample], labels)) if several else -1.0
        best = max(best, (scores[tried], means), key=lambda one: one[0])
    means = best[1]
    assert means is not None
    sizes = np.bincount(means.labels_, minlength=means.n_clusters)
    rank = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    number = torch.from_numpy(rank[means.labels_].astype(np.int64))
    centres = unit_rows(unit.new_zeros(means.n_clusters, unit.shape[1]).index_add_(0, number, unit), torch.float32)
    return Clusters(number, (1 - (unit * centres[number]).sum(1)).clamp_min(0), scores)
