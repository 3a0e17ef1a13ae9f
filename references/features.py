"""The losses without negatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from references.rows import unit


def negative_cosine(prediction: Tensor, projection: Tensor) -> Tensor:
    return 2 - 2 * F.cosine_similarity(prediction, projection.detach()).mean()


def barlow_twins(z1: Tensor, z2: Tensor, redundancy: float = 0.0051) -> Tensor:
    a, b = ((z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() for z in (z1, z2))
    c = a.T @ b / len(a)
    on = torch.eye(len(c), dtype=torch.bool)
    return (c[on] - 1).square().sum() + redundancy * c[~on].square().sum()


def vicreg(
    z1: Tensor,
    z2: Tensor,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
) -> Tensor:
    off = ~torch.eye(z1.shape[1], dtype=torch.bool)
    total = invariance * F.mse_loss(z1, z2)
    for z in (z1, z2):
        c = torch.cov(z.T)
        hinge = F.relu(1 - (c.diagonal() + 1e-4).sqrt()).mean()
        total = total + variance * hinge / 2 + covariance * c[off].square().sum() / z.shape[1]
    return total


def wmse(
    z1: Tensor, z2: Tensor, parts: Sequence[Tensor] | None = None, eps: float = 1e-6
) -> Tensor:
    """W-MSE of a batch that is whitened as a whole, or in parts of these images."""
    cosines = []
    for rows in [slice(None)] if parts is None else parts:
        whitened = []
        for z in (z1[rows], z2[rows]):
            covariance = torch.cov(z.T)
            ridge = (
                eps
                * covariance.trace()
                / len(covariance)
                * torch.eye(len(covariance), dtype=z.dtype)
            )
            factor = torch.linalg.cholesky(covariance + ridge)
            whitened.append(torch.linalg.solve_triangular(factor, (z - z.mean(0)).T, upper=False).T)
        cosines.append(F.cosine_similarity(*whitened))
    return 2 - 2 * torch.cat(cosines).mean()


def sigreg(z: Tensor, directions: Tensor) -> Tensor:
    """directions [directions, dim]: unit rows."""
    t = torch.linspace(-5, 5, 17, dtype=z.dtype)
    normal = (-(t**2) / 2).exp()
    statistics = []
    for direction in unit(directions.to(z.dtype)):
        phi = torch.exp(1j * t[:, None] * (z @ direction)).mean(1)
        statistics.append(len(z) * torch.trapezoid((phi - normal).abs().square() * normal, t))
    return torch.stack(statistics).mean()


def lejepa(
    projections: Tensor, directions: Tensor, lam: float = 0.05, global_views: int = 2
) -> Tensor:
    """projections [views, batch, dim], the global views first."""
    target = projections[:global_views].mean(0)
    prediction = torch.stack([F.mse_loss(z, target) for z in projections]).mean()
    normality = torch.stack([sigreg(z, directions) for z in projections]).mean()
    return (1 - lam) * prediction + lam * normality


def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    q = (scores / epsilon).exp()
    for _ in range(iterations):
        q = q / q.sum(0)
        q = q / q.sum(1, keepdim=True)
    return q


def swav(
    projections: Tensor,
    prototypes: Tensor,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
    global_views: int = 2,
    past: Tensor | None = None,
) -> Tensor:
    """projections [views, batch, dim]; prototypes and past [global views, rows, dim] are unit rows.

    The rows of `past` help to balance the codes.
    """
    z, batch = unit(projections), projections.shape[1]
    losses = []
    for source in range(global_views):
        scores = z[source] if past is None else torch.cat([z[source], past[source]])
        code = sinkhorn((scores @ prototypes.T).detach(), epsilon, iterations)[:batch]
        losses += [
            F.cross_entropy(z[view] @ prototypes.T / temperature, code)
            for view in range(len(z))
            if view != source
        ]
    return torch.stack(losses).mean()
