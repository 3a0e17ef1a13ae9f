"""InfoNCE of a query against keys of a queue (MoCo v1, v2) or the batch (v3), several (JCL), or a
neighbour (NNCLR).
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.running import FullPrecision
from nearfar.losses.temperature import log_scale, temperature_now
from nearfar.pairs import attend, attend_in_batch, log_sum_exp
from nearfar.pairs.arithmetic import (
    Queue,
    Rows,
    Scalar,
    Views,
    accumulation_dtype,
    check_queue,
    check_rows,
    unit_rows,
)
from nearfar.pairs.joined import on_joined_batch

TILE = 2**20  # similarities with the queue in memory at once


class MoCo(FullPrecision):
    """InfoNCE with a queue of negatives: CE([q.k, q.queue] / t, 0), mean over the batch.

    Shapes: query, key [batch, dim]; queue [keys, dim] unit rows.
    Defaults: temperature 0.2 (v2; v1 used 0.07).
    Source: He et al. 2020 (MoCo), Eq. 1; Chen et al. 2020 (MoCo v2).

    >>> query, queue = torch.eye(4).split(2)
    >>> MoCo(temperature=1.0)(query, query, queue)  # log(1 + 2 / e)
    tensor(0.5514)
    """

    def __init__(
        self,
        temperature: float = 0.2,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.gather = gather

    @on_joined_batch("query", "key")
    def forward(self, query: Rows, key: Rows, queue: Queue) -> Scalar:
        temperature = temperature_now(self, query, key)
        check_rows(query=query, key=key)
        query, key = unit_rows(query), unit_rows(key.detach())
        negative, _ = attend(query, queue, temperature)
        return -F.logsigmoid(vecdot(query, key) / temperature - negative).mean()


class MoCoV3(FullPrecision):
    """InfoNCE with the other images' keys of the batch as negatives: 2t CE(q.keys / t, own key),
    mean over the batch.

    Shapes: query (predictor's output), key (momentum encoder's, other view) [batch, dim]: one
    direction; the method adds the two. Defaults: temperature 0.2 (ViT; the ResNet-50 recipe uses
    1.0). Source: Chen, Xie, He 2021 (MoCo v3), Eq. 1 and Algorithm 1.

    >>> z = torch.eye(4)
    >>> MoCoV3(temperature=1.0)(z, z)  # 2 log(1 + 3 / e)
    tensor(1.4873)
    """

    def __init__(
        self,
        temperature: float = 0.2,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.gather = gather

    @on_joined_batch("query", "key")
    def forward(self, query: Rows, key: Rows) -> Scalar:
        temperature = temperature_now(self, query, key)
        positive, negative = attend_in_batch(query, key, temperature)
        return -2 * temperature * F.logsigmoid(positive - negative).mean()


class JCL(FullPrecision):
    """-q.mu/t + log[exp(q.mu/t + lam/(2 t^2) q'Sigma q) + sum exp(q.queue/t)], mean over the batch.

    mu is the mean of the image's unit keys (not scaled to length one again), Sigma their biased
    covariance. With one key this is MoCo. Shapes: query [batch, dim], keys [views, batch, dim];
    queue [keys, dim] unit rows. Defaults: temperature 0.2, lam 2 (the method ramps it up over the
    epochs). Source: Cai et al. 2020 (JCL), the closed-form bound; Wang et al. 2022 (LORAC), Eq. 16.
    Differs from the paper:
    1. LORAC's Eq. 16 prints the covariance term outside the exponential; it belongs inside, as in
       JCL.

    >>> query, queue = torch.eye(4).split(2)
    >>> JCL(temperature=1.0)(query, torch.stack([query, query]), queue)  # equal keys: MoCo"s
    tensor(0.5514)
    """

    def __init__(
        self,
        temperature: float = 0.2,
        lam: float = 2.0,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        checks.not_negative(lam=lam)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.lam = lam
        self.gather = gather

    @on_joined_batch("query", "keys")
    def forward(self, query: Rows, keys: Views, queue: Float[Tensor, "negatives dim"]) -> Scalar:
        temperature = temperature_now(self, query, keys)
        checks.same_views(query, keys=keys)
        query, keys = unit_rows(query), unit_rows(keys.detach())
        mean = keys.mean(0)
        positive = vecdot(query, mean) / temperature
        spread = vecdot(query, keys - mean).square().mean(0)  # q' Sigma q
        excess = self.lam / (2 * temperature**2) * spread
        negative, _ = attend(query, queue, temperature)
        return (excess - F.logsigmoid(positive + excess - negative)).mean()


class NNCLR(FullPrecision):
    """CE(neighbour_i . predictions / t, own prediction), mean over the batch.

    neighbour_i is the row of the queue nearest to the projection of one view; the predictions are
    the predictor's outputs for the other view, the other images of the batch are the negatives.
    Shapes: projection, prediction [batch, dim] of the two views; queue [keys, dim] unit rows. One
    direction; the method averages the two. Only the prediction gets a gradient. Source: Dwibedi et
    al. 2021 (NNCLR), the loss with a prediction head.

    >>> z = torch.eye(4)
    >>> NNCLR(temperature=1.0)(z, z, queue=z)  # log(1 + 3 / e)
    tensor(0.7437)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.gather = gather

    @on_joined_batch("projection", "prediction")
    def forward(self, projection: Rows, prediction: Rows, queue: Queue) -> Scalar:
        temperature = temperature_now(self, projection, prediction)
        check_rows(2, projection=projection, prediction=prediction)
        check_queue(projection.shape[1], queue)
        neighbour = nearest(projection, queue)
        positive, (negative, _) = log_sum_exp(neighbour, prediction, temperature, across=True)
        return -F.logsigmoid(positive - negative).mean()


def nearest(rows: Rows, queue: Queue) -> Rows:
    """The row of the queue of unit rows nearest to each row, in the rows' dtype; no gradient. A
    tile at a time.
    """
    rows, queue = rows.detach().to(accumulation_dtype(rows)), queue.detach()
    best = rows.new_full((len(rows),), -torch.inf)
    index = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    start = 0
    for tile in queue.split(max(1, TILE // len(rows))):
        value, position = (rows @ tile.to(rows.dtype).T).max(1)
        index = torch.where(value > best, position + start, index)
        best = torch.maximum(best, value)
        start += len(tile)
    return queue[index].to(rows.dtype)
