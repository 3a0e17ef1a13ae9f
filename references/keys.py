"""The losses of a query against keys, in a queue or in the batch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from references.rows import unit


def candidates(query: Tensor, key: Tensor, queue: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosines of the unit queries and of the unit keys with the negatives: the queue, or the
    batch's other keys.
    """
    if queue is not None:
        return query @ queue.T, key @ queue.T
    own = torch.eye(len(key), dtype=torch.bool)
    return (query @ key.T).masked_fill(own, -math.inf), (key @ key.T).masked_fill(own, -math.inf)


def info_nce(
    query: Tensor, key: Tensor, queue: Tensor | None = None, temperature: float = 0.2
) -> Tensor:
    """MoCo; without a queue the other keys of the batch are the negatives."""
    q, k = unit(query), unit(key.detach())
    if queue is None:
        return F.cross_entropy(q @ k.T / temperature, torch.arange(len(q)))
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def moco_v3(query: Tensor, key: Tensor, temperature: float = 0.2) -> Tensor:
    return 2 * temperature * info_nce(query, key, None, temperature)


def ressl(
    query: Tensor,
    key: Tensor,
    queue: Tensor | None,
    temperature: float = 0.1,
    target_temperature: float = 0.04,
) -> Tensor:
    online, relation = candidates(unit(query), unit(key.detach()), queue)
    if (
        queue is None
    ):  # the own key has no part in either distribution, and 0 times infinity must not count
        online = online.nan_to_num(neginf=-1e9)
    return F.cross_entropy(online / temperature, (relation / target_temperature).softmax(1))


def ceil(query: Tensor, key: Tensor, queue: Tensor | None, temperature: float = 0.1) -> Tensor:
    """-log of the negatives' part of the softmax: the third term of SCE's Proposition 1."""
    q, k = unit(query), unit(key.detach())
    negative = (candidates(q, k, queue)[0] / temperature).logsumexp(1)
    return F.softplus((q * k).sum(1) / temperature - negative).mean()


def sce(
    query: Tensor,
    key: Tensor,
    queue: Tensor | None = None,
    temperature: float = 0.1,
    target_temperature: float = 0.07,
    lam: float = 0.5,
) -> Tensor:
    """The cross entropy of SCE's Eq. 8."""
    q, k = unit(query), unit(key.detach())
    if queue is None:
        own = torch.eye(len(q), dtype=torch.bool)
        others = (k @ k.T / target_temperature).masked_fill(own, -math.inf).softmax(1)
        return F.cross_entropy(q @ k.T / temperature, torch.where(own, lam, (1 - lam) * others))
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / temperature
    target = (1 - lam) * (k @ queue.T / target_temperature).softmax(1)
    return F.cross_entropy(
        logits, torch.cat([torch.full([len(q), 1], lam, dtype=q.dtype), target], dim=1)
    )


def teacher_sce(
    z1: Tensor,
    z2: Tensor,
    teacher: Tensor,
    temperature: float = 0.1,
    target_temperature: float = 0.05,
    lam: float = 0.5,
) -> Tensor:
    """The cross entropy of SCE's Eq. 8 both ways, where a teacher's rows make the targets."""
    x, y, rows = unit(z1), unit(z2), unit(teacher.detach())
    own = torch.eye(len(x), dtype=torch.bool)
    others = (rows @ rows.T / target_temperature).masked_fill(own, -math.inf).softmax(1)
    target = torch.where(own, lam, (1 - lam) * others)
    logits = x @ y.T / temperature
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def nuclear_norm(matrices: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrices).sum(-1)


def lorac(
    queries: Tensor,
    key: Tensor,
    queue: Tensor,
    temperature: float = 0.2,
    beta: float = 2.0,
    prior: str = "laplace",
    batchwise: bool = False,
    variance: float = 2.0,
    margin: float = 3.0,
    large: Tensor | None = None,
) -> Tensor:
    """LORAC; beta = infinity is MoCo-M. queries [queries, batch, dim], large [M, batch, dim], the
    rows of Q.
    """
    q, k, t = unit(queries), unit(key.detach()), temperature
    positive = (q * k).sum(2) / t
    if math.isfinite(beta):
        rows = unit(large) if large is not None else q if batchwise else torch.cat([q, k[None]])
        stacked, m = rows.transpose(0, 1), len(rows)  # [batch, M, dim]
        if prior == "constant":
            log_prior = torch.tensor(-margin / (m * beta * t), dtype=q.dtype)
        elif prior == "gaussian":
            log_prior = -((nuclear_norm(stacked) - math.sqrt(m)) ** 2) / (variance * m * t)
        elif batchwise:
            apart = (rows - rows.mean(0)).flatten(0, 1)
            log_prior = -nuclear_norm(apart) / (len(apart) * beta * t)
        else:
            log_prior = -nuclear_norm(stacked) / (m * beta * t)
        positive = positive + log_prior
    logits = torch.cat([positive[..., None], q @ queue.T / t], dim=2).flatten(0, 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def jcl(
    query: Tensor, keys: Tensor, queue: Tensor, temperature: float = 0.2, lam: float = 2.0
) -> Tensor:
    """keys [views, batch, dim]; the covariance of the keys is the biased one."""
    q, k = unit(query), unit(keys.detach())
    similarity = (q * k).sum(2)  # [views, batch]
    mean, variance = similarity.mean(0), similarity.var(0, unbiased=False)
    first = mean / temperature + lam / (2 * temperature**2) * variance
    logits = torch.cat([first[:, None], q @ queue.T / temperature], dim=1)
    return (logits.logsumexp(1) - mean / temperature).mean()


def nnclr(
    projection: Tensor, prediction: Tensor, queue: Tensor, temperature: float = 0.1
) -> Tensor:
    nearest = queue[(unit(projection.detach()) @ queue.T).argmax(1)]
    return F.cross_entropy(nearest @ unit(prediction).T / temperature, torch.arange(len(nearest)))
