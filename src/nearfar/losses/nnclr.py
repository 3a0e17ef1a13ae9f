"""NNCLR: the nearest neighbour in a queue of past embeddings is the positive."""

from jaxtyping import Float
from torch import Tensor, nn

from nearfar.losses import checks
from nearfar.losses.in_batch import column_cross_entropy, nearest
from nearfar.losses.rows import outside_autocast, unit_rows


class NNCLR(nn.Module):
    """CE(neighbour_i . predictions / t, own prediction), mean over the batch.

    neighbour_i is the row of the queue nearest to the projection of one view; the predictions are the predictor's
    outputs for the other view, the other images of the batch are the negatives.
    Shapes: projection, prediction [batch, dim] raw embeddings of the two views; queue [keys, dim] unit rows.
    Returns a scalar: one direction; the method averages the two.
    Defaults: temperature 0.1.
    Gradient: to the prediction only. The queue is read, never pushed to.
    Errors: ValueError for temperature <= 0, unequal shapes, an empty queue, a batch of one.
    Source: Dwibedi et al. 2021 (NNCLR), the loss with a prediction head.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature

    @outside_autocast
    def forward(
        self,
        projection: Float[Tensor, "batch dim"],
        prediction: Float[Tensor, "batch dim"],
        queue: Float[Tensor, "keys dim"],
    ) -> Float[Tensor, ""]:
        checks.same_rows(2, projection=projection, prediction=prediction)
        checks.queue_of(projection.shape[1], queue)
        prediction = unit_rows(prediction)
        neighbours = nearest(unit_rows(projection.detach()), queue).to(prediction.dtype)
        return column_cross_entropy(neighbours, prediction, self.temperature)
