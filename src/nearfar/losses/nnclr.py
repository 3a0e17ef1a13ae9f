"""NNCLR: the nearest neighbour in a queue of past embeddings is the positive."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.rows import full, outside_autocast
from nearfar.pairs import cross_log_sum_exp
from nearfar.pairs.joined import on_joined_batch

TILE = 2**20  # similarities with the queue in memory at once


class NNCLR(nn.Module):
    """CE(neighbour_i . predictions / t, own prediction), mean over the batch.

    neighbour_i is the row of the queue nearest to the projection of one view; the predictions are the predictor's
    outputs for the other view, the other images of the batch are the negatives.
    Shapes: projection, prediction [batch, dim] raw embeddings of the two views; queue [keys, dim] unit rows.
    Returns a scalar: one direction; the method averages the two.
    Defaults: temperature 0.1.
    Gradient: to the prediction only. The queue is read, never pushed to.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for temperature <= 0, unequal shapes, an empty queue, a batch of one.
    Source: Dwibedi et al. 2021 (NNCLR), the loss with a prediction head.
    """

    def __init__(self, temperature: float = 0.1, gather: bool = False) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.gather = gather

    @on_joined_batch("projection", "prediction")
    @outside_autocast
    def forward(
        self,
        projection: Float[Tensor, "batch dim"],
        prediction: Float[Tensor, "batch dim"],
        queue: Float[Tensor, "keys dim"],
    ) -> Float[Tensor, ""]:
        checks.same_rows(2, projection=projection, prediction=prediction)
        checks.queue_of(projection.shape[1], queue)
        positive, negative, _ = cross_log_sum_exp(nearest(projection, queue), prediction, self.temperature)
        return -F.logsigmoid(positive - negative).mean()


def nearest(rows: Float[Tensor, "batch dim"], queue: Float[Tensor, "keys dim"]) -> Float[Tensor, "batch dim"]:
    """The row of the queue of unit rows nearest to each row, in the rows' dtype; no gradient. A tile at a time."""
    rows, queue = full(rows.detach()), queue.detach()
    best = rows.new_full((len(rows),), -torch.inf)
    index = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    start = 0
    for tile in queue.split(max(1, TILE // len(rows))):
        value, position = (rows @ tile.to(rows.dtype).T).max(1)
        index = torch.where(value > best, position + start, index)
        best = torch.maximum(best, value)
        start += len(tile)
    return queue[index].to(rows.dtype)
