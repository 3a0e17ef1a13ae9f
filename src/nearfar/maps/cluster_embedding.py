"""Stochastic cluster embedding: a 2-D layout of any rows by their nearest neighbours, and of new rows among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.device import seeded
from nearfar.neighbours.nearest import Metric, nearest_rows
from nearfar.pairs import cauchy, sample_others, sampled_sum, weighted_sum

MOST_EXACT = 1000  # points up to which every step is over all pairs
START = 1e-4  # standard deviation of the initial coordinates along the widest direction
LONGEST = 5.0  # longest move of a point in a step, as in openTSNE: for a small Z, one sampled pair can push very far
RHO = 0.9  # of the running mean of Z over sampled pairs
CHUNK = 2**14  # rows whose affinities are computed at a time
HALVINGS = 60  # of the interval of each row's precision
NEIGHBOURS, PERPLEXITY = 25, 5.0  # of a new point
ROUNDS = 30  # after which a new point moves by less than a thousandth of its neighbours' spread


class ClusterEmbedding(BaseEstimator):
    """Stochastic cluster embedding (Yang et al. 2023) of rows [n, dim] into [n, n_components], as an estimator.

    Minimises sum_ij p_ij log(p_ij / (s q_ij)) - p_ij + s q_ij, q_ij = 1 / (1 + |y_i - y_j|^2), where p is the matrix of
    nearest neighbours and s^-1 = sum_{i != j} (alpha p_ij n (n - 1) + 1 - alpha) q_ij is updated after every step.
    Memory O(n * neighbours), time per step O(n^2 / 2) tiles of pairs if exact and O(n * negatives) if sampled.

    n_components: dimensions of the map. alpha: 0 gives the repulsion of t-SNE; nearer to 1 it gets weaker, clusters
    tighter. perplexity: of p_j|i over 3 * perplexity neighbours, made symmetric. metric: "euclidean" or "cosine".
    max_iter: steps; in each, one neighbour attracts a point (if exact, all do). learning_rate: of the first step; falls
    linearly to 0. negatives: with m, some 4 m + 1 random points repel each point in a step. exact: all do; "auto": up
    to 1000 points. init: "pca" (random coordinates for equal or too few rows), or initial coordinates
    [n, n_components]. random_state: seed; torch's own state stays as it is. progress: called with (steps done, steps).
    Attributes after fit: embedding_ float32 [n, n_components], centred; partition_: 1 / (s n (n - 1)).
    Raises ValueError for numbers out of range, fewer than two rows and numbers that are not finite.
    Source: SACLR, section 3.1; Yang, Chen, Sedov, Kaski & Corander, "Stochastic Cluster Embedding", 2023.

    Differs from the paper:
    1. One step moves every point (as many edges as points), as the released code does on a GPU with as many workers.
    2. s follows a running mean over about ten steps of all sampled pairs; the released code moves it by each pair's
       share of all n (n - 1), and its sampling of one edge with one pair stands for alpha = 1/2.
    3. The initial coordinates are principal components by default (random there): large distances mean more.
    4. The initial rate is half of that code's, and no point moves by more than 5 in a step: all move at once here.

    >>> ClusterEmbedding(max_iter=10).fit_transform(np.random.rand(50, 8)).shape
    (50, 2)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha: float = 0.5,
        perplexity: float = 30.0,
        metric: Metric = "euclidean",
        max_iter: int = 1000,
        learning_rate: float = 0.5,
        negatives: int = 5,
        exact: bool | Literal["auto"] = "auto",
        init: Any = "pca",
        random_state: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.perplexity = perplexity
        self.metric = metric
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.negatives = negatives
        self.exact = exact
        self.init = init
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> ClusterEmbedding:
        """Lay out the rows of X [n, dim]; y is ignored."""
        self._check()
        rows = torch.from_numpy(check_array(X, dtype=np.float32, ensure_min_samples=2))
        with torch.enable_grad(), seeded("cpu", self.random_state):
            index, probability = self._graph(rows)
            coordinates, partition = self._optimise(self._start(rows), index, probability)
        self.n_features_in_ = rows.shape[1]
        self.embedding_ = (coordinates - coordinates.mean(0)).numpy()
        self.partition_ = float(partition)
        self._rows = rows
        return self

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Lay out the rows of X [n, dim] and return their coordinates, float32 [n, n_components]."""
        return self.fit(X).embedding_

    def transform(self, X: Any) -> np.ndarray:
        """Coordinates of new rows [m, dim] among the rows of `fit`, which stay; see `NeighbourPlacement`."""
        check_is_fitted(self, "embedding_")
        rows = torch.from_numpy(check_array(X, dtype=np.float32))
        return NeighbourPlacement(self._rows, torch.from_numpy(self.embedding_), self.metric)(rows).numpy()

    def _check(self) -> None:
        for name in ("n_components", "perplexity", "max_iter", "negatives"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be 0 to 1, not {self.alpha}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")
        if self.exact not in (True, False, "auto"):
            raise ValueError(f"exact must be True, False or 'auto', not {self.exact!r}")

    def _graph(self, rows: Tensor) -> tuple[Int[Tensor, "rows k"], Float[Tensor, "rows k"]]:
        """The neighbours of each row, and p_j|i, which sums to one."""
        k = min(round(3 * self.perplexity), len(rows) - 1)
        squared, index = nearest_squared(rows, None, k, self.metric)
        return index, entropic_affinities(squared, min(self.perplexity, k))

    def _start(self, rows: Tensor) -> Tensor:
        shape = (len(rows), self.n_components)
        if not isinstance(self.init, str):
            return torch.from_numpy(check_array(self.init, copy=True, dtype="numeric")).reshape(shape)
        if self.init != "pca":
            raise ValueError(f"init must be 'pca' or an array, not {self.init!r}")
        noise = torch.randn(shape)
        if min(rows.shape) < self.n_components or not rows.var(0).any():
            return START * noise
        rows = F.normalize(rows, dim=1) if self.metric == "cosine" else rows
        pca = PCA(self.n_components, random_state=self.random_state)
        start = torch.from_numpy(pca.fit_transform(rows.numpy()))
        return START * (start / start[:, 0].std().clamp_min(1e-12) + 1e-2 * noise)  # noise, so that equal rows can part

    def _optimise(self, coordinates: Tensor, index: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
        count, k = index.shape
        exact = count <= MOST_EXACT if self.exact == "auto" else self.exact
        exact = exact or count < 4
        if exact:
            edges = torch.arange(count).repeat_interleave(k), index.flatten()
            weights = probability.flatten().to(coordinates) / count
        else:
            weights = coordinates.new_full((count,), 1 / count)
            cumulative = probability.cumsum(1)
        steps, negatives = self.max_iter, None if exact else self.negatives
        coordinates = coordinates.requires_grad_()
        partition = torch.ones((), dtype=coordinates.dtype)
        for step in range(steps):
            if not exact:
                chosen = torch.searchsorted(cumulative, torch.rand(count, 1) * cumulative[:, -1:]).clamp_max(k - 1)
                edges = torch.arange(count), index.gather(1, chosen).squeeze(1)
            loss, seen = divergence(coordinates, *edges, weights, partition, self.alpha, negatives)
            [gradient] = torch.autograd.grad(loss, coordinates)
            rate = self.learning_rate * (1 - step / steps)
            move = (rate * count * gradient).renorm(2, 0, LONGEST)
            coordinates = (coordinates.detach() - move).requires_grad_()
            partition = seen if exact else partition.lerp(seen, 1 - RHO)
            if self.progress is not None:
                self.progress(step + 1, steps)
        return coordinates.detach().float(), partition


def divergence(
    coordinates: Float[Tensor, "rows dim"],
    first: Int[Tensor, " edges"],
    second: Int[Tensor, " edges"],
    weights: Float[Tensor, " edges"],
    partition: Float[Tensor, ""],
    alpha: float,
    negatives: int | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The part of the I-divergence that depends on the coordinates, differentiable, and Z at these, without gradient.

    first, second, weights: edges that stand for p. partition: the previous Z = 1 / (s n (n - 1)). The repulsion is the
    mean of q over all pairs, divided by Z; negatives: over sampled pairs, see `ClusterEmbedding`.
    """
    columns = coordinates.T.contiguous()  # half the time of gathering rows of two numbers
    squared = (columns.index_select(1, first) - columns.index_select(1, second)).square().sum(0)
    attraction = (weights * squared.log1p()).sum()
    mean = mean_similarity(coordinates) if negatives is None else sampled_mean_similarity(coordinates, negatives)
    with torch.no_grad():
        seen = alpha * (weights / (1 + squared)).sum() + (1 - alpha) * mean
    return attraction + mean / partition, seen


def mean_similarity(coordinates: Float[Tensor, "rows dim"]) -> Float[Tensor, ""]:
    """Mean of q over all pairs of different rows, exact, in linear memory; differentiable once."""
    count, half = len(coordinates), len(coordinates) // 2
    if count < 4:
        return (1 / (1 + torch.pdist(coordinates).square())).mean()
    ones = coordinates.new_ones(2, half)
    u, rest, _ = weighted_sum(coordinates[:half], coordinates[half : 2 * half], ones, cauchy())
    total = rest / 2 + (1 / u).sum()  # each pair once
    if count % 2:
        total = total + (1 / (1 + (coordinates[:-1] - coordinates[-1]).square().sum(1))).sum()
    return total / (count * (count - 1) / 2)


def sampled_mean_similarity(coordinates: Float[Tensor, "rows dim"], negatives: int) -> Float[Tensor, ""]:
    """Mean of q over sampled pairs of different rows, all equally likely."""
    half = len(coordinates) // 2
    order = torch.randperm(len(coordinates))[: 2 * half]
    first, second = (coordinates.index_select(0, rows) for rows in order.split(half))
    negatives = min(negatives, half - 1)
    u, rest, _ = sampled_sum(first, second, sample_others(half, negatives), coordinates.new_ones(2, half), cauchy())
    return (rest + 2 * (1 / u).sum()) / (2 * half * (2 * negatives + 1))


class NeighbourPlacement(nn.Module):
    """Features [new, dim] -> coordinates [new, 2] among old points, which stay; new points do not affect each other.

    features, coordinates: of the old points. A new point has p_j|i of perplexity 5 over its 25 nearest old points (all,
    if there are fewer), starts at their median (both as in openTSNE: Policar, Strazar & Zupan 2019) and moves to where
    sum_j p_j|i log(1 + |y - y_j|^2), the attraction of cluster embedding, is stationary: the mean of the y_j with
    weights p_j|i q_j, repeated. The repulsion is left out: one more point changes it by 1 / n.
    """

    features: Tensor
    coordinates: Tensor

    def __init__(
        self, features: Float[Tensor, "old dim"], coordinates: Float[Tensor, "old 2"], metric: Metric = "cosine"
    ) -> None:
        super().__init__()
        self.metric = metric
        self.register_buffer("features", features)
        self.register_buffer("coordinates", coordinates)

    @torch.no_grad()
    def forward(self, features: Float[Tensor, "new dim"]) -> Float[Tensor, "new 2"]:
        k = min(NEIGHBOURS, len(self.coordinates))
        squared, index = nearest_squared(self.features.float(), features, k, self.metric)
        probability = entropic_affinities(squared, min(PERPLEXITY, k))
        around = self.coordinates[index]  # [new, k, 2]
        coordinates = around.median(1).values
        for _ in range(ROUNDS):
            weights = probability / (1 + (coordinates[:, None] - around).square().sum(2))
            coordinates = (weights[..., None] * around).sum(1) / weights.sum(1, keepdim=True)
        return coordinates


def nearest_squared(
    rows: Float[Tensor, "rows dim"], queries: Float[Tensor, "queries dim"] | None, k: int, metric: Metric
) -> tuple[Float[Tensor, "queries k"], Int[Tensor, "queries k"]]:
    """Squared distances and positions of the k nearest rows of each query (None: the rows, each without itself).

    metric: "euclidean", or "cosine" for the distances of unit rows. Raises ValueError for a k that is out of range.
    """
    distance, index = nearest_rows(rows, queries, k, metric=metric)
    return 2 * distance if metric == "cosine" else distance.square(), index


def entropic_affinities(squared: Float[Tensor, "rows k"], perplexity: float) -> Float[Tensor, "rows k"]:
    """p_j|i proportional to exp(-beta_i d_ij^2) over the neighbours of a row, with exp(entropy) = perplexity.

    squared: finite squared distances. Rows sum to one. Raises ValueError unless 1 <= perplexity <= k; at k all
    neighbours weigh the same.
    Source: Hinton & Roweis 2002 (SNE), Eq. 1; entropic affinities: Vladymyrov & Carreira-Perpinan 2013.
    """
    k = squared.shape[1]
    if not 1 <= perplexity <= k:
        raise ValueError(f"perplexity must be 1 to the number of neighbours, {k}, not {perplexity}")
    return torch.cat([_entropic(part.double(), np.log(perplexity)) for part in squared.split(CHUNK)]).to(squared)


def _entropic(squared: Tensor, entropy: float) -> Tensor:
    """Bisection of log beta, in units in which the mean distance above the nearest is one."""
    above = squared - squared.amin(1, keepdim=True)
    above = above / above.mean(1, keepdim=True).clamp_min(1e-300)
    low, high = torch.full((2, len(above), 1), -30.0, dtype=torch.float64)
    high = -low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        log_p = F.log_softmax(-middle.exp() * above, 1)
        too_even = -(log_p.exp() * log_p).sum(1, keepdim=True) > entropy
        low, high = torch.where(too_even, middle, low), torch.where(too_even, high, middle)
    return F.softmax(-((low + high) / 2).exp() * above, 1)
