"""Relational losses: the soft target holds similarities to other images (ReSSL), and the positive
(SCE).
"""

from torch import nn
from torch.linalg import vecdot
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.temperature import log_scale, temperature_now
from nearfar.pairs import attend, attend_in_batch
from nearfar.pairs.arithmetic import Queue, Rows, Scalar, check_rows, unit_rows
from nearfar.pairs.joined import on_joined_batch


class ReSSL(nn.Module):
    """Cross entropy of softmax(k.queue / t_m) and softmax(q.queue / t), mean over the batch.

    The positive is on neither side.
    Shapes: query, key (of the weak view) [batch, dim]; queue [keys, dim] unit rows.
    Source: Zheng et al. 2021 (ReSSL); Denize et al. 2023 (SCE), Eq. 3-4.

    >>> query, queue = torch.eye(4).split(2)
    >>> ReSSL()(query, query, queue)  # log(2)
    tensor(0.6931)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        target_temperature: float = 0.04,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature, target_temperature=target_temperature)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.target_temperature = target_temperature
        self.gather = gather

    @on_joined_batch("query", "key")
    def forward(self, query: Rows, key: Rows, queue: Queue) -> Scalar:
        temperature = temperature_now(self, query, key)
        check_rows(query=query, key=key)
        query, key = unit_rows(query), unit_rows(key.detach())
        negative, _ = attend(query, queue, temperature)
        _, target_key = attend(key, queue, self.target_temperature)
        return (negative - vecdot(query, target_key) / temperature).mean()


class SCE(nn.Module):
    """Cross entropy of a soft target and softmax([q.k, q.queue] / t), mean over the batch.

    The target gives lam to the positive and 1 - lam to softmax(k.queue / t_m), in which the
    positive is masked (weight exactly 0). Computed as Proposition 1, lam InfoNCE + mu ReSSL + eta
    Ceil, which is the same number at mu = eta = 1 - lam. Shapes: query, key [batch, dim]; queue
    [keys, dim] unit rows, or None: the other images' keys in the batch are the negatives (Eq. 5-8).
    One direction; the method averages the two. Defaults: temperature 0.1, target_temperature 0.07
    (ImageNet), lam 0.5; mu and eta None, which means 1 - lam. Source: Denize et al. 2023 (SCE), Eq.
    6-9 and Proposition 1; Table 3 for free mu and eta. Differs from the paper:
    1. With a queue, Algorithm 1 and the released code give the positive the target logit 0, so that
       it keeps part of the 1 - lam; here it is masked, as in Eq. 3 and 6.

    >>> query, queue = torch.eye(4).split(2)
    >>> SCE(temperature=1.0, lam=1.0)(query, query, queue)  # MoCo"s
    tensor(0.5514)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        target_temperature: float = 0.07,
        lam: float = 0.5,
        mu: float | None = None,
        eta: float | None = None,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature, target_temperature=target_temperature)
        checks.fraction(lam=lam)
        checks.not_negative(
            **{name: value for name, value in (("mu", mu), ("eta", eta)) if value is not None}
        )
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.target_temperature = target_temperature
        self.gather = gather
        self.lam = lam
        self.mu = mu
        self.eta = eta

    @on_joined_batch("query", "key")
    def forward(self, query: Rows, key: Rows, queue: Queue | None = None) -> Scalar:
        temperature = temperature_now(self, query, key)
        if queue is None:
            positive, negative, relation = attend_in_batch(
                query, key, temperature, self.target_temperature
            )
        else:
            check_rows(query=query, key=key)
            query, key = unit_rows(query), unit_rows(key.detach())
            negative, _ = attend(query, queue, temperature)
            _, target_key = attend(key, queue, self.target_temperature)
            positive, relation = (vecdot(query, other) / temperature for other in (key, target_key))
        # InfoNCE is f = -logsigmoid(positive - negative), ReSSL negative - relation, Ceil f +
        # positive - negative.
        mu = 1 - self.lam if self.mu is None else self.mu
        eta = 1 - self.lam if self.eta is None else self.eta
        loss = -(self.lam + eta) * F.logsigmoid(positive - negative)
        return (
            loss.add(positive, alpha=eta)
            .sub(relation, alpha=mu)
            .add(negative, alpha=mu - eta)
            .mean()
        )
