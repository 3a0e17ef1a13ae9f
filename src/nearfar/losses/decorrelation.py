"""Losses on features instead of pairs: Barlow Twins, VICReg and W-MSE."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.rows import full, outside_autocast, row_dot
from nearfar.pairs import sample_order
from nearfar.pairs.joined import on_joined_batch
from nearfar.pairs.precision import accumulation_dtype, unit_rows


class BarlowTwins(nn.Module):
    """sum_i (c_ii - 1)^2 + redundancy sum_{i != j} c_ij^2, c the cross-correlation of the batch.

    Each feature is standardised over the batch (batch normalisation without affine or running statistics, eps 1e-5).
    Shapes: z1, z2 [batch, dim] raw embeddings. Returns a scalar. Gradient: to both views.
    Defaults: redundancy 0.0051.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for redundancy < 0, unequal shapes, a batch of one.
    Source: Zbontar et al. 2021, Eq. 1-2.
    """

    def __init__(self, redundancy: float = 0.0051, gather: bool = False) -> None:
        super().__init__()
        checks.not_negative(redundancy=redundancy)
        self.redundancy = redundancy
        self.gather = gather

    @on_joined_batch("z1", "z2")
    @outside_autocast
    def forward(self, z1: Float[Tensor, "batch dim"], z2: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        checks.same_rows(2, z1=z1, z2=z2)
        a, b = (F.batch_norm(full(z), None, None, training=True) for z in (z1, z2))
        c = a.T @ b / len(a)  # [dim, dim]
        diagonal = c.diagonal()
        off_diagonal = c - diagonal.diag()
        return (diagonal - 1).square().sum() + self.redundancy * off_diagonal.square().sum()


class VICReg(nn.Module):
    """invariance MSE(z1, z2) + variance hinge on the deviations + covariance of the features, both views.

    Hinge: half the mean of max(0, 1 - sqrt(var + 1e-4)) of each view. Covariance: squared off-diagonal entries, summed
    and divided by dim, of both views.
    Shapes: z1, z2 [batch, dim] raw embeddings, not normalised. Returns a scalar. Gradient: to both views.
    Defaults: invariance 25, variance 25, covariance 1.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for a coefficient < 0, unequal shapes, a batch of one.
    Source: Bardes et al. 2022, Eq. 1-6.
    Differs from the paper:
    1. Eq. 6 adds the hinges of the two views; released code and this module take half of each.
    2. Eq. 5 sums the squared differences over the features; released code and this module take their mean.
    """

    def __init__(
        self, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0, gather: bool = False
    ) -> None:
        super().__init__()
        checks.not_negative(invariance=invariance, variance=variance, covariance=covariance)
        self.invariance = invariance
        self.variance = variance
        self.covariance = covariance
        self.gather = gather

    @on_joined_batch("z1", "z2")
    @outside_autocast
    def forward(self, z1: Float[Tensor, "batch dim"], z2: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        checks.same_rows(2, z1=z1, z2=z2)
        z1, z2 = full(z1), full(z2)
        spread = (_hinge(z1) + _hinge(z2)) / 2
        correlated = _covariance(z1) + _covariance(z2)
        return self.invariance * F.mse_loss(z1, z2) + self.variance * spread + self.covariance * correlated


def _hinge(z: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    return F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()


def _covariance(z: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    centred = z - z.mean(0)
    c = centred.T @ centred / (len(z) - 1)  # [dim, dim]
    return (c - c.diagonal().diag()).square().sum() / z.shape[1]


class WMSE(nn.Module):
    """2 - 2 cos of the two views after whitening each over sub-batches of images, mean over the batch.

    The batch is shuffled (torch's global generator of the input's device) and cut into batch // sub_batch nearly equal
    parts, so that no part is smaller than sub_batch and none is left over; a batch smaller than sub_batch is one part.
    Each part of each view is centred and multiplied by the inverse Cholesky factor of its covariance, in float64.
    Shapes: z1, z2 [batch, dim] raw embeddings. Returns a scalar. Gradient: to both views.
    Defaults: sub_batch None, which means 2 dim; iterations 1 (shuffles averaged); eps 1e-6, the share of the mean
    variance that is added to the diagonal of the covariance.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for sub_batch < 2, iterations < 1, eps < 0, unequal shapes, a part of dim images or fewer.
    Source: Ermolov et al. 2021 (Whitening for self-supervised representation learning), Eq. 4-6.
    Differs from the paper:
    1. Left-over images join the other parts; released code needs a batch that divides by the sub-batch.
    2. The covariance is regularised in proportion to the mean variance and factored in float64.
    """

    def __init__(
        self, sub_batch: int | None = None, iterations: int = 1, eps: float = 1e-6, gather: bool = False
    ) -> None:
        super().__init__()
        checks.at_least(2, **({} if sub_batch is None else {"sub_batch": sub_batch}))
        checks.at_least(1, iterations=iterations)
        checks.not_negative(eps=eps)
        self.sub_batch = sub_batch
        self.iterations = iterations
        self.eps = eps
        self.gather = gather

    @on_joined_batch("z1", "z2")
    @outside_autocast
    def forward(self, z1: Float[Tensor, "batch dim"], z2: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        checks.same_rows(2, z1=z1, z2=z2)
        batch, dim = z1.shape
        sub_batch = self.sub_batch or 2 * dim
        parts = max(1, batch // sub_batch)
        if batch // parts <= dim:
            raise ValueError(
                f"whitening {dim} features needs more than {dim} images at a time, got {batch // parts}: "
                "use a larger batch or sub_batch, or fewer features"
            )
        z = torch.stack((z1, z2)).double()
        losses = []
        for _ in range(self.iterations):
            order = sample_order(batch, z.device) if parts > 1 else torch.arange(batch, device=z.device)
            for rows in order.tensor_split(parts):
                a, b = unit_rows(self._whiten(z[:, rows]))
                losses.append(2 - 2 * row_dot(a, b))
        return torch.cat(losses).mean().to(accumulation_dtype(z1, z2))

    def _whiten(self, z: Float[Tensor, "views rows dim"]) -> Float[Tensor, "views rows dim"]:
        centred = z - z.mean(1, keepdim=True)
        covariance = centred.mT @ centred / (z.shape[1] - 1)
        mean_variance = covariance.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        ridge = (self.eps * mean_variance).clamp(min=1e-12) * torch.eye(z.shape[2], dtype=z.dtype, device=z.device)
        factor, _ = torch.linalg.cholesky_ex(covariance + ridge)  # nan in, nan out: the loop reports it
        return torch.linalg.solve_triangular(factor, centred.mT, upper=False).mT
