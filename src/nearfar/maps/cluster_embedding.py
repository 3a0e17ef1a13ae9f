"""Cluster embedding: a 2-D layout of any rows by their nearest neighbours, and of new rows among
them.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.data.resources import usable_cores
from nearfar.device import seeded
from nearfar.isolation import isolated
from nearfar.maps.repulsion import Mesh, similarity_sums
from nearfar.messages import check_range
from nearfar.neighbours.nearest import Metric, Nearest, nearest_rows
from nearfar.progress import tracked
from nearfar.threads import Mapped, map_in_threads

START = 1e-4  # standard deviation of the initial coordinates along the widest direction
LONGEST = 5.0  # longest move of a point in a step, as in openTSNE
# share of the steps in which the attraction is as many times as strong
EARLY, EXAGGERATION = 0.2, 12.0
AT_LEAST = 10  # steps without exaggeration, which momentum takes to build up
MOMENTUM, LEAST_GAIN = 0.8, 0.01
CHUNK = 2**14  # rows whose affinities, or attractions, are computed at a time
SORTED, STRIP = 50, 2**13  # steps after which points are sorted by place, and points of a strip
GROUPS = 16  # at most, of rows whose attractions are added up on their own
HALVINGS = 40  # of the interval of each row's precision
ATTRACTING = 30  # neighbours of a row
NEIGHBOURS, PERPLEXITY = 25, 5.0  # of a new point
SETTLING, RENEWED = 50, 5  # steps of new points alone, and those with one mesh
ROUNDS = 30  # after which a new point moves by less than a thousandth of its neighbours' spread


@dataclass(eq=False, repr=False)
class ClusterEmbedding(BaseEstimator):
    """Cluster embedding (Yang et al. 2023) of rows [n, dim] into [n, n_components], as an
    estimator.

    Minimises sum_ij p_ij log(p_ij / (s q_ij)) - p_ij + s q_ij, q_ij = 1 / (1 + |y_i - y_j|^2),
    where p is the matrix of nearest neighbours and s^-1 = sum_{i != j} (alpha p_ij n (n - 1) + 1 -
    alpha) q_ij is updated in every step. With alpha 0 this is the gradient of t-SNE. Memory and
    time per step O(n * n_neighbors): the repulsion of all pairs is summed on a mesh
    (`nearfar.maps.repulsion`), the attraction over all neighbours.

    n_components: dimensions of the map, 1 to 3. alpha: 0 keeps most neighbours; towards 1 the
    repulsion gets weaker and clusters tighter. n_neighbors: of each row, or all of fewer rows.
    perplexity: of p_j|i over these neighbours, which all weigh the same if it is at least their
    number. t-SNE's usual p has a perplexity of 30 and 90 neighbours. metric: "euclidean" or
    "cosine". max_iter: steps, of which the first fifth exaggerates the attraction. init: "pca"
    (random coordinates for equal or too few rows), or initial coordinates [n, n_components].
    random_state: seed; torch's own state stays as it is. least_move: share of the map's longest
    side; after the exaggeration the steps end when points move less on average. 0: all steps.
    early_exaggeration: how many times as strong; 1, for initial coordinates of an earlier map: not.
    Attributes after fit: embedding_ float32 [n, n_components], centred; partition_: 1 / (s n (n -
    1)). Raises ValueError for numbers out of range, fewer than two rows and numbers that are not
    finite. Source: SACLR, section 3.1; Yang, Chen, Sedov, Kaski & Corander, "Stochastic Cluster
    Embedding", 2023.

    Differs from the paper:
    1. Every step follows the gradient over all pairs, by the optimiser of t-SNE (momentum, gains,
       early exaggeration; Belkina et al. 2019: a rate of n over the exaggeration); the paper
       samples pairs, one attracting and one repelling, so its maps of as many seconds keep fewer
       neighbours.
    2. The default p has a perplexity of 20 over 30 neighbours (there 30 over 90): the map keeps
       more of the nearest, and is made in less time (docs/layouts.md).
    3. The default alpha is 0 (there 0.5 in effect), and the first coordinates are principal
       components (there random).

    >>> ClusterEmbedding(max_iter=10).fit_transform(np.random.rand(50, 8)).shape
    (50, 2)
    """

    n_components: int = 2
    _: KW_ONLY
    alpha: float = 0.0
    n_neighbors: int = ATTRACTING
    perplexity: float = 20.0
    metric: Metric = "euclidean"
    max_iter: int = 300
    init: Any = "pca"
    random_state: int = 0
    least_move: float = 0.0
    early_exaggeration: float = EXAGGERATION

    def fit(self, X: Any, y: Any = None, *, neighbours: Nearest | None = None) -> ClusterEmbedding:
        """Lay out the rows of X [n, dim]; y is ignored. neighbours: n_neighbors of each row or
        more, if known.
        """
        check_range("n_components", self.n_components, 1, 3)
        check_range("alpha", self.alpha, 0, 1)
        for name in ("n_neighbors", "max_iter"):
            check_range(name, getattr(self, name), 1, inf)
        rows = torch.from_numpy(check_array(X, dtype=np.float32, ensure_min_samples=2))
        with isolated(), torch.no_grad(), seeded("cpu", self.random_state):
            k = min(self.n_neighbors, len(rows) - 1)
            distance, index = neighbours or nearest_rows(rows, k=k, metric=self.metric)
            probability = entropic_affinities(
                squared_distances(distance[:, :k], self.metric), min(self.perplexity, k)
            )  # p_j|i, each row of which sums to one
            coordinates, self.partition_ = self._optimise(
                self._start(rows), index[:, :k], probability
            )
        self.n_features_in_ = rows.shape[1]
        self.embedding_ = (coordinates - coordinates.mean(0)).numpy()
        self._rows = rows
        return self

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Lay out the rows of X [n, dim] and return their coordinates, float32 [n,
        n_components].
        """
        return self.fit(X).embedding_

    def transform(self, X: Any) -> np.ndarray:
        """Coordinates of new rows [m, dim] among the rows of `fit`, which stay; see
        `NeighborInterpolation`.
        """
        check_is_fitted(self, "embedding_")
        rows = torch.from_numpy(check_array(X, dtype=np.float32))
        return NeighborInterpolation(self._rows, torch.from_numpy(self.embedding_), self.metric)(
            rows
        ).numpy()

    def _start(self, rows: Tensor) -> Tensor:
        shape = (len(rows), self.n_components)
        if not isinstance(self.init, str):
            return torch.from_numpy(check_array(self.init, dtype=np.float32)).reshape(shape)
        if self.init != "pca":
            raise ValueError(f"init must be 'pca' or an array, not {self.init!r}")
        noise = torch.randn(shape)
        if min(rows.shape) < self.n_components or not rows.var(0).any():
            return START * noise
        rows = F.normalize(rows, dim=1) if self.metric == "cosine" else rows
        pca = PCA(self.n_components, random_state=self.random_state)
        pca.set_output(transform="default")  # whatever scikit-learn is set to return elsewhere
        start = torch.from_numpy(pca.fit_transform(rows.numpy()))
        return START * (
            start / start[:, 0].std().clamp_min(1e-12) + 1e-2 * noise
        )  # noise, so that equal rows can part

    def _optimise(self, points: Tensor, index: Tensor, probability: Tensor) -> tuple[Tensor, float]:
        steps, partition, order = _Steps(points), 1.0, torch.arange(len(points))
        early = EARLY * self.max_iter if self.early_exaggeration > 1 else AT_LEAST
        with map_in_threads(usable_cores()) as each:
            for step in tracked(range(self.max_iter), "laying out the map"):
                if step % SORTED == 0:
                    by_place = _by_place(points)
                    points, order = points[by_place], order[by_place]
                    index, probability = _renumbered(index, by_place), probability[by_place]
                    steps.sort(by_place)
                attraction, repulsion, partition = forces(
                    points, index, probability, self.alpha, each
                )
                exaggeration = self.early_exaggeration if step < early else 1.0
                gradient = exaggeration * attraction - repulsion
                move = steps.next(gradient, len(points) / exaggeration)
                points = points + move
                if self.least_move and step >= early:
                    side = (points.amax(0) - points.amin(0)).max()
                    if move.norm(dim=1).mean() < self.least_move * side:
                        break
        return points[order.argsort()], partition


class _Steps:
    """The optimiser of t-SNE: moves of points from gradients, with momentum and gains."""

    def __init__(self, points: Tensor) -> None:
        self.move, self.gain = torch.zeros_like(points), torch.ones_like(points)

    def sort(self, order: Tensor) -> None:
        """Follow the points into another order."""
        self.move, self.gain = self.move[order], self.gain[order]

    def next(self, gradient: Tensor, rate: float) -> Tensor:
        """Return the next move of each point."""
        turned = gradient * self.move < 0
        self.gain = torch.where(turned, self.gain + 0.2, self.gain * 0.8).clamp_(min=LEAST_GAIN)
        move = MOMENTUM * self.move - rate * self.gain * gradient
        self.move = move.renorm(2, 0, LONGEST)
        return self.move


def _by_place(points: Float[Tensor, "n dim"]) -> Int[Tensor, " n"]:
    """An order in which points that are near each other are also near in memory, strip by strip."""
    low, high = points.amin(0), points.amax(0)
    places = ((points - low) / (high - low).clamp_min(1e-12)).double()
    strip = (places[:, 0] * (len(points) // STRIP)).floor()
    return (strip + 0.5 * places[:, -1]).argsort(stable=True)


def _renumbered(index: Int[Tensor, "n k"], order: Int[Tensor, " n"]) -> Int[Tensor, "n k"]:
    """Neighbours of points in another order, by their places there: in four bytes each, since they
    take most of the memory of a layout.
    """
    place = torch.empty(len(order), dtype=torch.int32)
    place[order] = torch.arange(len(order), dtype=torch.int32)
    out = torch.empty(index.shape, dtype=torch.int32)
    for some, rows in zip(out.split(CHUNK), order.split(CHUNK), strict=True):
        some.copy_(place[index[rows]])
    return out


def forces(
    points: Float[Tensor, "n dim"],
    index: Int[Tensor, "n k"],
    probability: Float[Tensor, "n k"],
    alpha: float,
    each: Mapped = map,
) -> tuple[Float[Tensor, "n dim"], Float[Tensor, "n dim"], float]:
    """Attraction and repulsion, whose difference is the gradient of the I-divergence, and Z = 1 /
    (s n (n - 1)).

    index, probability: neighbours of each point and p_j|i; p_ij = (p_j|i + p_i|j) / (2 n). each:
    `map`, or one that works in threads. Source: SACLR, Eq. 1.
    """
    pairs = len(points) * (len(points) - 1)
    attraction, near = _attraction(points, torch.arange(len(points)), index, probability, each)
    sums, slopes = similarity_sums(points, each)
    partition = alpha * near + (1 - alpha) * float(sums.sum()) / pairs
    return attraction, -2 / (pairs * partition) * slopes, partition


def _attraction(
    points: Float[Tensor, "n dim"],
    rows: Int[Tensor, " rows"],
    index: Int[Tensor, "rows k"],
    probability: Float[Tensor, "rows k"],
    each: Mapped = map,
) -> tuple[Float[Tensor, "n dim"], float]:
    """Attraction between some rows and their neighbours, and sum_ij p_ij q_ij of these pairs."""
    columns = points.T.contiguous()  # half the time of gathering rows of two numbers
    own, others, near = torch.zeros_like(columns), torch.zeros_like(columns), 0.0
    groups = min(GROUPS, math.ceil(len(rows) / CHUNK))
    parts = [of_all.chunk(groups) for of_all in (rows, index, probability)]
    made = each(partial(_pulled, columns), zip(*parts, strict=True))
    for some, (pulled, opposite, sum_of_pulls) in zip(parts[0], made, strict=True):
        own[:, some] = pulled
        others += opposite
        near += sum_of_pulls
    return (own - others).T, near


def _pulled(columns: Tensor, group: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, float]:
    """Attraction of each row of a group to its neighbours [dim, rows], that of the neighbours to
    the rows [dim, n], and the sum of p_ij q_ij.
    """
    own, others, near = [], torch.zeros_like(columns), 0.0
    parts = (of_group.split(CHUNK) for of_group in group)
    for some, neighbours, weight in zip(*parts, strict=True):
        flat = neighbours.flatten()
        apart = columns[:, some, None] - columns.index_select(1, flat).view(-1, *neighbours.shape)
        pull = (weight / columns.shape[1]) / _one_and_squares(apart)
        near += float(pull.sum())
        apart *= 2 * pull
        own.append(apart.sum(2))
        others.index_add_(1, flat, apart.flatten(1))
    return torch.cat(own, 1), others, near


def _one_and_squares(apart: Tensor) -> Tensor:
    """1 + the sum of squares over the first axis."""
    squares = torch.ones_like(apart[0])
    for along in apart:
        squares.addcmul_(along, along)
    return squares


class NeighborInterpolation(nn.Module):
    """Features [new, dim] -> coordinates [new, 2] among old points, which stay; new points do not
    affect each other.

    features, coordinates: of the old points. A new point has p_j|i of perplexity 5 over its 25
    nearest old points (all, if there are fewer), starts at their median (both as in openTSNE:
    Policar, Strazar & Zupan 2019) and moves to where sum_j p_j|i log(1 + |y - y_j|^2), the
    attraction of cluster embedding, is stationary: the mean of the y_j with weights p_j|i q_j,
    repeated. The repulsion is left out: one more point changes it by 1 / n.
    """

    features: Tensor
    coordinates: Tensor

    def __init__(
        self,
        features: Float[Tensor, "old dim"],
        coordinates: Float[Tensor, "old 2"],
        metric: Metric = "cosine",
    ) -> None:
        super().__init__()
        self.metric = metric
        self.register_buffer("features", features)
        self.register_buffer("coordinates", coordinates)

    @torch.no_grad()
    def forward(self, features: Float[Tensor, "new dim"]) -> Float[Tensor, "new 2"]:
        k = min(NEIGHBOURS, len(self.coordinates))
        near = nearest_rows(self.features.float(), features, k, metric=self.metric)
        return among_neighbours(near, self.coordinates, self.metric)


def among_neighbours(
    near: Nearest, coordinates: Float[Tensor, "old 2"], metric: Metric
) -> Float[Tensor, "new 2"]:
    """Coordinates of new points among their nearest old ones; see `NeighborInterpolation`.

    Old points at NaN count for nothing, and a new one without others lies at 0.
    """
    squared = squared_distances(near.distance, metric)
    probability = entropic_affinities(squared, min(PERPLEXITY, squared.shape[1]))
    around = coordinates[near.index]  # [new, k, 2]
    places = around.nanmedian(1).values.nan_to_num()
    probability = probability * around.isfinite().all(2)
    around = around.nan_to_num()
    for _ in range(ROUNDS):
        weights = probability / (1 + (places[:, None] - around).square().sum(2))
        places = (weights[..., None] * around).sum(1) / weights.sum(1, keepdim=True).clamp_min(1e-9)
    return places


def settled(
    near: Nearest, coordinates: Float[Tensor, "n dim"], metric: Metric
) -> Float[Tensor, "n dim"]:
    """Coordinates of all points, where those at NaN are new: they start among their nearest others
    and move by steps of the layout, while the others stay.

    near: the neighbours of all points. The repulsion is that of all points, on a mesh which is made
    again every few steps.
    """
    new = coordinates.isnan().any(1)
    if not new.any():
        return coordinates
    points = coordinates.clone()
    of_new = Nearest(near.distance[new], near.index[new])
    points[new] = among_neighbours(of_new, coordinates, metric)
    (rows,) = torch.where(new | new[near.index].any(1))  # of which one end is new
    index, squared = near.index[rows], squared_distances(near.distance[rows], metric)
    perplexity = min(ClusterEmbedding.perplexity, index.shape[1])
    probability = entropic_affinities(squared, perplexity)
    steps, count = _Steps(points[new]), len(points)
    with map_in_threads(usable_cores()) as each:
        mesh = Mesh(points, each)
        scale = -2 / float(mesh.sums(points, each)[0].sum())
        for step in range(SETTLING):
            if step and step % RENEWED == 0:
                mesh = Mesh(points, each)
            attraction, _ = _attraction(points, rows, index, probability, each)
            gradient = attraction[new] - scale * mesh.sums(points[new], each)[1]
            points[new] += steps.next(gradient, count)
    return points


def squared_distances(distance: Float[Tensor, "rows k"], metric: Metric) -> Float[Tensor, "rows k"]:
    """Squares of the distances of `nearest_rows`; for "cosine", whose distance is 1 - cos, those of
    unit rows.
    """
    return 2 * distance if metric == "cosine" else distance.square()


def entropic_affinities(
    squared: Float[Tensor, "rows k"], perplexity: float
) -> Float[Tensor, "rows k"]:
    """p_j|i proportional to exp(-beta_i d_ij^2) over the neighbours of a row, with exp(entropy) =
    perplexity.

    squared: finite squared distances. Rows sum to one. Raises ValueError unless 1 <= perplexity <=
    k; at k all neighbours weigh the same. Source: Hinton & Roweis 2002 (SNE), Eq. 1; entropic
    affinities: Vladymyrov & Carreira-Perpinan 2013.
    """
    check_range("perplexity", perplexity, 1, squared.shape[1])  # of as many neighbours
    work = partial(_entropic, math.log(perplexity))
    with map_in_threads(usable_cores()) as each:
        return torch.cat(list(each(work, squared.split(CHUNK))))


def _entropic(entropy: float, distances: Tensor) -> Tensor:
    """Bisection of log beta, in units in which the mean distance above the nearest is one."""
    squared = distances.double()
    above = squared - squared.amin(1, keepdim=True)
    above = above / above.mean(1, keepdim=True).clamp_min(1e-300)
    low, high = torch.full((2, len(above), 1), -30.0, dtype=torch.float64)
    high = -low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        log_p = F.log_softmax(-middle.exp() * above, 1)
        too_even = -(log_p.exp() * log_p).sum(1, keepdim=True) > entropy
        low, high = torch.where(too_even, middle, low), torch.where(too_even, high, middle)
    return F.softmax(-((low + high) / 2).exp() * above, 1).to(distances)
