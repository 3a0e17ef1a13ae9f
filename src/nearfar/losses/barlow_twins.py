"""Barlow Twins: the cross-correlation of two views should be the identity."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.rows import full, outside_autocast
from nearfar.pairs.joined import on_joined_batch


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
