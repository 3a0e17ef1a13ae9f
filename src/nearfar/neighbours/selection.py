"""Selection of a few rows: the most diverse, the most typical, the outliers."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from nearfar.neighbours.nearest import nearest_rows
from nearfar.pairs.arithmetic import unit_rows

MOST_CLUSTERS = 500  # TypiClust's bound
FEWEST_IN_CLUSTER = 5  # smaller clusters come last, as in TypiClust
TYPICAL_K = 20  # neighbours over which distances are averaged: TypiClust, section 3.2
BATCH = 1024  # rows of a step of k-means, at least


def diverse_rows(
    rows: Float[Tensor, "rows dim"], count: int, labelled: Int64[Tensor, " labelled"] | None = None
) -> tuple[Int64[Tensor, " count"], Float[Tensor, " count"]]:
    """Choose rows such that every row is near a chosen one, by cosine: farthest point first.

    Gonzalez 1985, "Clustering to minimize the maximum intercluster distance", whose choice is at
    most twice as far from any row as in the best choice; the k-centre greedy of Sener & Savarese
    2018, "Active learning for convolutional neural networks: a core-set approach" (algorithm 1). It
    begins with the row nearest to the mean of all. labelled: positions of rows that count as chosen
    already. Returns positions in the order of choice, so that any first part is such a choice too,
    and the distance (1 - cos) of each to the rows chosen before it; for the very first, the largest
    distance of any row to it.

    >>> rows, distance = diverse_rows(torch.eye(4).repeat(2, 1), count=4)
    >>> sorted((rows % 4).tolist())
    [0, 1, 2, 3]
    """
    unit = unit_rows(rows, torch.float32)
    near = torch.full((len(unit),), torch.inf, device=rows.device)
    known = [] if labelled is None else labelled.tolist()
    for row in known:
        torch.minimum(near, 1 - unit @ unit[row], out=near)
    near[known] = -torch.inf
    chosen, distances = [], []
    following = int(near.argmax() if known else (unit @ unit.mean(0)).argmax())
    for _ in range(count):
        chosen.append(following)
        distances.append(near[following].clone())
        torch.minimum(near, 1 - unit @ unit[following], out=near)
        near[following] = -torch.inf  # also if only copies are left
        following = int(near.argmax())
        if len(chosen) == 1 and not known:
            distances[0] = near[following].clone().clamp_min(0)
    return torch.tensor(chosen), torch.stack(distances).clamp_min(0).cpu()


def typical_rows(
    rows: Float[Tensor, "rows dim"],
    count: int,
    seed: int = 0,
    labelled: Int64[Tensor, " labelled"] | None = None,
) -> tuple[Int64[Tensor, " count"], Float[Tensor, " count"]]:
    """Choose the most typical rows of as many clusters.

    TypiClust: Hacohen, Dekel & Weinshall 2022, "Active learning on a budget: opposite strategies
    suit high and low budgets": k-means on unit rows into `count` clusters (at most 500), and of
    each cluster the row with the smallest mean distance to its 20 nearest within the cluster, whose
    inverse is its typicality (equation 1). Clusters take turns, from large to small; those of fewer
    than five rows come last. labelled: positions of rows that are labelled already: they add as
    many clusters, and the clusters with the fewest of them come first (algorithm 1). Returns
    positions in the order of choice, and their mean Euclidean distances between unit rows.

    >>> rows, distance = typical_rows(torch.eye(4).repeat(8, 1), count=4)
    >>> sorted((rows % 4).tolist())
    [0, 1, 2, 3]
    """
    from sklearn.cluster import MiniBatchKMeans  # here: it takes a second to import

    unit = unit_rows(rows, torch.float32)
    known = np.zeros(len(rows), bool)
    known[[] if labelled is None else labelled.numpy()] = True
    clusters = min(count + int(known.sum()), MOST_CLUSTERS)
    size = min(len(rows), max(BATCH, 4 * clusters))
    means = MiniBatchKMeans(clusters, batch_size=size, n_init=3, random_state=seed)
    cluster = means.fit_predict(unit.cpu().numpy())
    sizes, covered = (
        np.bincount(cluster, minlength=clusters),
        np.bincount(cluster[known], minlength=clusters),
    )
    queues: list[list[tuple[int, float]]] = []
    for number in np.lexsort((-sizes, covered)):
        members = torch.from_numpy(np.flatnonzero(cluster == number))
        mean = torch.zeros(len(members))
        if len(members) > 1:
            k = min(TYPICAL_K, len(members) - 1)
            mean = (
                nearest_rows(unit[members.to(unit.device)], k=k, metric="euclidean")
                .distance.mean(1)
                .cpu()
            )
        mean, order = mean.sort(stable=True)
        queue = zip(members[order].tolist(), mean.tolist(), strict=True)
        queues.append([entry for entry in queue if not known[entry[0]]])
    small = [queue for queue in queues if len(queue) < FEWEST_IN_CLUSTER]
    queues = [queue for queue in queues if len(queue) >= FEWEST_IN_CLUSTER]
    chosen = _in_turns(queues)[:count]
    chosen += _in_turns(small)[: count - len(chosen)]
    positions, means_ = zip(*chosen, strict=True)
    return torch.tensor(positions), torch.tensor(means_)


def _in_turns(queues: list[list[tuple[int, float]]]) -> list[tuple[int, float]]:
    """The first of each queue, then the second of each, and so on."""
    return [row for turn in zip_longest(*queues) for row in turn if row is not None]


def outlier_rows(
    distance: Float[Tensor, "rows k"], count: int
) -> tuple[Int64[Tensor, " count"], Float[Tensor, " count"]]:
    """Choose the rows that are farthest from their k-th nearest other row: the last column of
    `nearest_rows`.

    Ramaswamy, Rastogi & Shim 2000, "Efficient algorithms for mining outliers from large data sets";
    on unit features: Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors".
    Returns positions, the farthest first, and these distances.

    >>> near = nearest_rows(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), k=1)
    >>> outlier_rows(near.distance, count=1)[0]
    tensor([2])
    """
    far, order = distance[:, -1].sort(descending=True, stable=True)
    return order[:count], far[:count]
