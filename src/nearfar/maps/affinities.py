"""Which points should lie together: nearest neighbours and the probabilities of each as a partner."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nearfar.neighbours.nearest import Metric, nearest_rows

CHUNK = 2**14  # rows whose probabilities are searched for at a time
HALVINGS = 60  # of the interval of each row's precision


def nearest_squared(
    rows: Float[Tensor, "rows dim"], queries: Float[Tensor, "queries dim"] | None, k: int, metric: Metric
) -> tuple[Float[Tensor, "queries k"], Int[Tensor, "queries k"]]:
    """Squared distances and positions of the k nearest rows of each query (None: the rows, each without itself).

    metric: "euclidean", or "cosine" for the distances of unit rows. Raises ValueError for a k that is out of range.
    """
    distance, index = nearest_rows(rows, queries, k, metric=metric)
    return 2 * distance if metric == "cosine" else distance.square(), index


def entropic_affinities(squared: Float[Tensor, "rows k"], perplexity: float) -> Float[Tensor, "rows k"]:
    """p_j|i proportional to exp(-beta_i d_ij^2) over the neighbours of a row, beta_i such that exp(entropy) is given.

    squared: distances, finite. Rows sum to one. Raises ValueError unless 1 <= perplexity <= k; at k all neighbours
    weigh the same.
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
