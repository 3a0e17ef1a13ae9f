"""InfoNCE of a query against keys: from a queue (MoCo v1, v2), from the batch (v3), or of several positives (JCL)."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.rows import outside_autocast, row_dot
from nearfar.pairs import attend, attend_in_batch
from nearfar.pairs.joined import averaged_over_ranks, on_joined_batch
from nearfar.pairs.precision import unit_rows


class MoCo(nn.Module):
    """InfoNCE with a queue of negatives: CE([q.k, q.queue] / t, 0), mean over the batch.

    Shapes: query, key [batch, dim] raw embeddings; queue [keys, dim] unit rows. Returns a scalar.
    Defaults: temperature 0.2 (v2; v1 used 0.07).
    Gradient: to the query only. The queue is read, never pushed to.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for temperature <= 0, unequal shapes, an empty queue.
    Source: He et al. 2020 (MoCo), Eq. 1; Chen et al. 2020 (MoCo v2).
    """

    def __init__(self, temperature: float = 0.2, gather: bool = False) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.gather = gather

    @averaged_over_ranks("query")
    @outside_autocast
    def forward(
        self, query: Float[Tensor, "batch dim"], key: Float[Tensor, "batch dim"], queue: Float[Tensor, "keys dim"]
    ) -> Float[Tensor, ""]:
        checks.same_rows(query=query, key=key)
        checks.queue_of(query.shape[1], queue)
        query, key = unit_rows(query), unit_rows(key.detach())
        negative, _ = attend(query, queue.detach(), self.temperature)
        return -F.logsigmoid(row_dot(query, key) / self.temperature - negative).mean()


class MoCoV3(nn.Module):
    """InfoNCE with the other images' keys of the batch as negatives: 2t CE(q.keys / t, own key), mean over the batch.

    Shapes: query (predictor's output), key (momentum encoder's, other view) [batch, dim] raw embeddings. Returns a
    scalar: one direction; the method adds the two directions.
    Defaults: temperature 0.2 (ViT; the ResNet-50 recipe uses 1.0).
    Gradient: to the query only.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for temperature <= 0, unequal shapes, a batch of one (its loss is 0 whatever the embeddings).
    Source: Chen, Xie, He 2021 (MoCo v3), Eq. 1 and Algorithm 1.
    """

    def __init__(self, temperature: float = 0.2, gather: bool = False) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.gather = gather

    @on_joined_batch("query", "key")
    def forward(self, query: Float[Tensor, "batch dim"], key: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        checks.same_rows(2, query=query, key=key)
        positive, negative = attend_in_batch(query, key, self.temperature)
        return -2 * self.temperature * F.logsigmoid(positive - negative).mean()


class JCL(nn.Module):
    """-q.mu/t + log[exp(q.mu/t + lam/(2 t^2) q'Sigma q) + sum exp(q.queue/t)], mean over the batch.

    mu is the mean of the image's unit keys (not scaled to length one again), Sigma their biased covariance.
    With one key this is MoCo.
    Shapes: query [batch, dim], keys [views, batch, dim] raw embeddings; queue [keys, dim] unit rows. Returns a scalar.
    Defaults: temperature 0.2, lam 2 (the method ramps it up over the epochs).
    Gradient: to the query only. The queue is read, never pushed to.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for temperature <= 0, lam < 0, unequal shapes, an empty queue.
    Source: Cai et al. 2020 (JCL), the closed-form bound; Wang et al. 2022 (LORAC), Eq. 16.
    Differs from the paper:
    1. LORAC's Eq. 16 prints the covariance term outside the exponential; it belongs inside, as in JCL.
    """

    def __init__(self, temperature: float = 0.2, lam: float = 2.0, gather: bool = False) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        checks.not_negative(lam=lam)
        self.temperature = temperature
        self.lam = lam
        self.gather = gather

    @averaged_over_ranks("query")
    @outside_autocast
    def forward(
        self,
        query: Float[Tensor, "batch dim"],
        keys: Float[Tensor, "views batch dim"],
        queue: Float[Tensor, "negatives dim"],
    ) -> Float[Tensor, ""]:
        checks.same_views({"keys": keys}, {"query": query})
        checks.queue_of(query.shape[1], queue)
        query, keys = unit_rows(query), unit_rows(keys.detach())
        mean = keys.mean(0)
        positive = row_dot(query, mean) / self.temperature
        spread = row_dot(query, keys - mean).square().mean(0)  # q' Sigma q
        excess = self.lam / (2 * self.temperature**2) * spread
        negative, _ = attend(query, queue.detach(), self.temperature)
        return (excess - F.logsigmoid(positive + excess - negative)).mean()
