"""BYOL's and SimSiam's loss: the squared distance of a prediction from the other view's projection on the sphere."""

from jaxtyping import Float
from torch import Tensor, nn

from nearfar.losses import checks
from nearfar.losses.rows import outside_autocast, row_dot
from nearfar.pairs.joined import averaged_over_ranks
from nearfar.pairs.precision import unit_rows


class NegativeCosine(nn.Module):
    """2 - 2 cos(prediction, projection), mean over the batch; in [0, 4].

    Shapes: prediction, projection [batch, dim] raw embeddings, the projection of the other view (BYOL: the momentum
    encoder's). Returns a scalar: one direction.
    Gradient: to the prediction only.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for unequal shapes.
    Source: Grill et al. 2020 (BYOL), Eq. 2; Chen, He 2021 (SimSiam), Eq. 1.
    Differs from the paper:
    1. SimSiam writes -cos; this is twice that plus 2, so its gradient is twice SimSiam's.
    """

    def __init__(self, gather: bool = False) -> None:
        super().__init__()
        self.gather = gather

    @averaged_over_ranks("prediction")
    @outside_autocast
    def forward(
        self, prediction: Float[Tensor, "batch dim"], projection: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, ""]:
        checks.same_rows(prediction=prediction, projection=projection)
        return 2 - 2 * row_dot(unit_rows(prediction), unit_rows(projection.detach())).mean()
