"""VICReg: equal views, spread features, uncorrelated features."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.rows import full, outside_autocast
from nearfar.pairs.joined import on_joined_batch


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
