"""Groups of rows without labels, as many as fit the data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from nearfar.pairs.precision import unit_rows

COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 23, 26, 30, 35, 40, 50, 60)  # that are tried
JUDGED = 3000  # rows of which the silhouette is computed
BATCH, STARTS = 2048, 5


class Clusters(NamedTuple):
    """Clusters 0, 1, ... from large to small. `distance`: of each row to its centre, 1 - cos; `score`: by count."""

    number: Int64[Tensor, " rows"]
    distance: Float[Tensor, " rows"]
    scores: dict[int, float]


def clusters_of(rows: Float[Tensor, "rows dim"], count: int | None = None, seed: int = 0) -> Clusters:
    """Group rows by k-means on unit rows (spherical up to the length of centres), in mini-batches.

    count: None chooses the number with the largest mean silhouette (Rousseeuw 1987, "Silhouettes: a graphical aid to
    the interpretation and validation of cluster analysis") of at most 3000 rows at random, among numbers from 2 to 60
    and below the square root of twice the rows; `scores` holds what was tried.
    ValueError for fewer rows than clusters, or fewer than three.
    """
    from sklearn.cluster import MiniBatchKMeans  # here: it takes a second to import
    from sklearn.metrics import silhouette_score

    if not 1 <= (count or 1) <= len(rows) or len(rows) < 3:
        raise ValueError(f"{len(rows)} images cannot be put into {count or 'two or more'} clusters")
    unit = unit_rows(rows, torch.float32).numpy()
    sample = np.random.default_rng(seed).permutation(len(unit))[:JUDGED]
    scores: dict[int, float] = {}
    best: tuple[float, MiniBatchKMeans | None] = (-np.inf, None)
    for tried in [one for one in COUNTS if one <= max(2, (2 * len(rows)) ** 0.5)] if count is None else [count]:
        means = MiniBatchKMeans(tried, batch_size=min(BATCH, len(unit)), n_init=STARTS, random_state=seed).fit(unit)
        labels = means.labels_[sample]
        several = 1 < len(np.unique(labels)) < len(sample)
        scores[tried] = float(silhouette_score(unit[sample], labels)) if several else -1.0
        best = max(best, (scores[tried], means), key=lambda one: one[0])
    means = best[1]
    assert means is not None
    sizes = np.bincount(means.labels_, minlength=means.n_clusters)
    place = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    number = torch.from_numpy(place[means.labels_].astype(np.int64))
    centres = unit_rows(torch.from_numpy(means.cluster_centers_), torch.float32)[torch.from_numpy(means.labels_).long()]
    distance = (1 - (torch.from_numpy(unit) * centres).sum(1)).clamp_min(0)
    return Clusters(number, distance, scores)
