"""Which points should lie together: nearest neighbours and the probabilities of each as a partner."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn import functional as F

from nearfar.evaluation import neighbours

Metric = Literal["euclidean", "cosine"]
METRICS = ("euclidean", "cosine")
CHUNK = 2**14  # rows whose probabilities are searched for at a time
HALVINGS = 60  # of the interval of each row's precision


def nearest_others(
    rows: Float[Tensor, "rows dim"], k: int, metric: Metric = "euclidean"
) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """Squared distance and position of the k nearest other rows of each row, nearest first; exact, in linear memory.

    metric: of the rows as they are, or of unit rows. Raises ValueError unless 1 <= k < rows.
    """
    if not 1 <= k < len(rows):
        raise ValueError(f"{k} neighbours cannot be taken from {len(rows)} points: give k from 1 to {len(rows) - 1}")
    if metric == "euclidean":
        distance, index = NearestNeighbors(n_neighbors=k).fit(rows.numpy()).kneighbors()
        return torch.from_numpy(distance).to(rows.dtype).square(), torch.from_numpy(index)
    cosine, index = neighbours(rows, rows, k + 1)
    own = index == torch.arange(len(rows))[:, None]
    own[:, -1] |= ~own.any(1)  # among many equal rows a row need not be its own nearest
    return (2 - 2 * cosine[~own].view(-1, k)).clamp_min(0), index[~own].view(-1, k)


def nearest_among(
    old: Float[Tensor, "old dim"], new: Float[Tensor, "new dim"], k: int, metric: Metric = "euclidean"
) -> tuple[Float[Tensor, "new k"], Int[Tensor, "new k"]]:
    """Squared distance and position of the k nearest old rows of each new row, nearest first."""
    if metric == "euclidean":
        distance, index = NearestNeighbors(n_neighbors=k).fit(old.numpy()).kneighbors(new.numpy())
        return torch.from_numpy(distance).to(new.dtype).square(), torch.from_numpy(index)
    cosine, index = neighbours(old, new, k)
    return (2 - 2 * cosine).clamp_min(0), index


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
