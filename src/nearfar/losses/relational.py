"""Relational losses: the soft target holds similarities to other images (ReSSL), and the positive
(SCE); they are those of a momentum encoder, or of a frozen teacher.
"""

from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.running import FullPrecision
from nearfar.losses.temperature import log_scale, temperature_now
from nearfar.pairs import attend, attend_in_batch, log_sum_exp, relation_sum
from nearfar.pairs.arithmetic import Queue, Rows, Scalar, check_rows, unit_rows
from nearfar.pairs.joined import on_joined_batch


class ReSSL(FullPrecision):
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


class SCE(FullPrecision):
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
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.target_temperature = target_temperature
        self.gather = gather
        self.lam, self.mu, self.eta = _weights(lam, mu, eta)

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
        return _joined(positive, negative, relation, self.lam, self.mu, self.eta)


def _weights(lam: float, mu: float | None, eta: float | None) -> tuple[float, float, float]:
    """The weights of InfoNCE, ReSSL and Ceil, the last two 1 - lam where they are None."""
    checks.fraction(lam=lam)
    mu, eta = (1 - lam if weight is None else weight for weight in (mu, eta))
    checks.not_negative(mu=mu, eta=eta)
    return lam, mu, eta


def _joined(
    positive: Tensor, negative: Tensor, relation: Tensor, lam: float, mu: float, eta: float
) -> Scalar:
    """lam InfoNCE + mu ReSSL + eta Ceil, mean over the rows; each has a relation, or all its mean.

    InfoNCE is f = -logsigmoid(positive - negative), ReSSL negative - relation, Ceil f + positive -
    negative.
    """
    loss = -(lam + eta) * F.logsigmoid(positive - negative)
    return (
        loss.add(positive, alpha=eta).sub(relation, alpha=mu).add(negative, alpha=mu - eta).mean()
    )


class TeacherSCE(FullPrecision):
    """SCE with the similarities of a frozen teacher: lam InfoNCE + (1 - lam) H(s, p), mean over the
    2 * batch rows.

    p_i is the softmax over j of z1_i.z2_j / t, and s_i that of t_i.t_j / t_m over j != i, where the
    t are the teacher's features of the same images; both views in turn are z1, and both get the
    gradient. So H(s, p) = -sum_j s_ij log p_ij alone (lam = 0) is a relational term for any loss,
    and the whole is the cross entropy of lam one-hot + (1 - lam) s and p. In SCE's form: lam
    InfoNCE + mu ReSSL + eta Ceil, with mu = eta = 1 - lam; at lam = eta = 0, mu = 1 it is ReSSL's,
    in which the positive is on neither side.

    Shapes: z1, z2 [batch, dim] of two views; teacher [batch, teacher_dim], raw or unit rows.
    Defaults: temperature 0.1, target_temperature 0.05, lam 0.5; mu and eta None, which means 1 -
    lam. Source: Denize et al. 2023 (SCE), Proposition 1, whose targets are those of a momentum
    encoder; a frozen teacher as in Fang et al. 2021 (SEED), whose keys are in a queue.

    >>> z = torch.eye(3)
    >>> TeacherSCE(temperature=1.0, lam=0.0)(z, z, z)  # log(e + 2): the teacher prefers no image
    tensor(1.5514)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        target_temperature: float = 0.05,
        lam: float = 0.5,
        mu: float | None = None,
        eta: float | None = None,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature, target_temperature=target_temperature)
        self.temperature = temperature
        self.target_temperature = target_temperature
        self.lam, self.mu, self.eta = _weights(lam, mu, eta)
        self.log_scale = log_scale(learn_temperature, temperature)
        self.gather = gather

    @on_joined_batch("z1", "z2", "teacher")
    def forward(self, z1: Rows, z2: Rows, teacher: Float[Tensor, "batch teacher_dim"]) -> Scalar:
        temperature = temperature_now(self, z1, z2)
        positive, negative = log_sum_exp(z1, z2, temperature, across=True)
        relation = relation_sum(z1, z2, teacher, self.target_temperature)
        mean_relation = relation / (temperature * negative.numel())
        return _joined(positive, negative, mean_relation, self.lam, self.mu, self.eta)
