"""The losses that compare all rows of two views, and of two sets."""

from __future__ import annotations

import math

import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from references.rows import unit

State = dict[str, Tensor]


def positives(n: int) -> Tensor:
    """Index of every row's positive, [n]."""
    return torch.arange(n).roll(n // 2)


def negatives(n: int) -> Tensor:
    """True where column j is a negative of row i, [n, n]."""
    mask = ~torch.eye(n, dtype=torch.bool)
    mask[torch.arange(n), positives(n)] = False
    return mask


def positive_similarity(z: Tensor) -> Tensor:
    return (z * z[positives(len(z))]).sum(1)


def simclr(z1: Tensor, z2: Tensor, temperature: float = 0.2) -> Tensor:
    z = unit(torch.cat([z1, z2]))
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -math.inf)
    return F.cross_entropy(logits, positives(len(z)))


def wcl(z1: Tensor, z2: Tensor, weak1: Tensor, weak2: Tensor, temperature: float = 0.1) -> Tensor:
    weak1, weak2 = unit(weak1), unit(weak2)
    one = supervised(weak1, weak_labels(weak2), temperature)
    other = supervised(weak2, weak_labels(weak1), temperature)
    return simclr(z1, z2, temperature) + (one + other) / 2


def supervised(z: Tensor, label: Tensor, temperature: float) -> Tensor:
    """SupCon (Khosla et al. 2020) of the unit rows of one view."""
    itself = torch.eye(len(z), dtype=torch.bool)
    logits = (z @ z.T / temperature).masked_fill(itself, -math.inf)
    same = (label[:, None] == label) & ~itself
    of_pairs = logits.log_softmax(1).masked_fill(~same, 0.0)
    return -(of_pairs.sum(1) / same.sum(1)).mean()


def weak_labels(z: Tensor) -> Tensor:
    """The connected components of the graph of nearest neighbours."""
    similarity = (z @ z.T).detach().fill_diagonal_(-math.inf)
    joined = torch.zeros_like(similarity)
    joined[torch.arange(len(z)), similarity.argmax(1)] = 1
    graph = scipy.sparse.csr_array(joined.numpy())
    return torch.from_numpy(scipy.sparse.csgraph.connected_components(graph, directed=False)[1])


def dcl(z1: Tensor, z2: Tensor, temperature: float = 0.2, sigma: float | None = None) -> Tensor:
    """DCL; with sigma DCLW."""
    z = unit(torch.cat([z1, z2]))
    logits = (z @ z.T / temperature).masked_fill(~negatives(len(z)), -math.inf)
    similarity = positive_similarity(z)
    weight = torch.ones_like(similarity)
    if sigma is not None:
        weight = (2 - len(z1) * (similarity.detach()[: len(z1)] / sigma).softmax(0)).repeat(2)
    return (logits.logsumexp(1) - weight * similarity / temperature).mean()


def saclr(
    state: State,
    z1: Tensor,
    z2: Tensor,
    index: Tensor,
    images: int | None = None,
    others: Tensor | None = None,
    per_image: bool = False,
    alpha: float = 0.125,
    rho: float | None = None,
    kernel: str = "gaussian",
    bandwidth: float = 0.5,
    initial: float = 0.01,
) -> Tensor:
    """SACLR; the negatives of image i are both views of the images others[i], or of all others."""
    rho = rho if rho is not None else 0.9 if per_image else 0.99
    z = torch.cat([z1, z2])
    if kernel == "cauchy":
        log_q = -torch.log1p((z[:, None] - z[None]).square().sum(2))
    else:
        cosines = unit(z) @ unit(z).T
        log_q = (cosines - 1) / bandwidth**2 if kernel == "gaussian" else cosines / bandwidth
    mask = negatives(len(z))
    if others is not None:
        of_image = torch.zeros(len(z1), len(z1), dtype=torch.bool)
        of_image.scatter_(1, others, True)
        mask = of_image.repeat(2, 2)
    repulsion = log_q.exp().masked_fill(~mask, 0).sum(1) / mask[0].sum()
    log_positive = log_q[torch.arange(len(z)), positives(len(z))]
    blank = torch.full([images or len(z1)] if per_image else [1], initial, dtype=z.dtype)
    partition = state.setdefault("partition", blank)
    index = index if per_image else torch.zeros_like(index)
    scale = partition[index].repeat(2)
    estimate = (alpha * log_positive.exp() + (1 - alpha) * repulsion).detach().view(2, -1).mean(0)
    if not per_image:
        index, estimate = index[:1], estimate.mean(0, keepdim=True)
    state["partition"] = partition.index_copy(
        0, index, rho * partition[index] + (1 - rho) * estimate
    )
    return (repulsion / scale - log_positive).mean()


def sigclr(
    z1: Tensor, z2: Tensor, temperature: float | Tensor = 0.2, bias: float | Tensor = -10.0
) -> Tensor:
    z = unit(torch.cat([z1, z2]))
    sign = torch.full([len(z), len(z)], -1.0, dtype=z.dtype)
    sign[torch.arange(len(z)), positives(len(z))] = 1
    terms = F.softplus(-sign * (z @ z.T / temperature + bias), threshold=50)
    return terms.masked_fill(torch.eye(len(z), dtype=torch.bool), 0).sum() / len(z)


def moving_average(state: State, g: Tensor, index: Tensor, images: int, gamma: float) -> Tensor:
    """SogCLR's u of every row after this step, g itself at an image's first visit; the views' mean
    is kept.
    """
    kept = state.setdefault("u", g.new_full([images], math.nan))
    before = kept[index].repeat(2)
    u = torch.where(before.isnan(), g, (1 - gamma) * before + gamma * g).detach()
    state["u"] = kept.index_copy(0, index, u.view(2, -1).mean(0))
    return u


def sogclr(
    state: State,
    z1: Tensor,
    z2: Tensor,
    index: Tensor,
    images: int | None = None,
    temperature: float = 0.1,
    gamma: float = 0.9,
) -> Tensor:
    z = unit(torch.cat([z1, z2]))
    g = (z @ z.T / temperature).exp().masked_fill(~negatives(len(z)), 0).sum(1) / (len(z) - 2)
    u = moving_average(state, g, index, images or len(z1), gamma)
    return (g / u - positive_similarity(z) / temperature).mean()


def isogclr(
    state: State,
    z1: Tensor,
    z2: Tensor,
    index: Tensor,
    images: int | None = None,
    temperature: float = 0.1,
    temperature_range: tuple[float, float] = (0.05, 0.7),
    lr: float = 0.01,
    rho: float = 0.3,
    beta: float = 0.9,
    gamma: float = 0.9,
    gradient_limit: float = math.inf,
) -> Tensor:
    z, images = unit(torch.cat([z1, z2])), images or len(z1)
    temperatures = state.setdefault("temperatures", z1.new_full([images], temperature))
    momentum = state.setdefault("momentum", z1.new_zeros(images))
    t, s = temperatures[index].repeat(2), z @ z.T
    e = (s / t[:, None]).exp().masked_fill(~negatives(len(z)), 0)
    g = e.sum(1) / (len(z) - 2)
    u = moving_average(state, g, index, images, gamma)
    weighted = (e * s).detach().sum(1) / (u * (len(z) - 2) * t)
    slope = (u.log() + rho - weighted).view(2, -1).mean(0).clamp(-gradient_limit, gradient_limit)
    state["momentum"] = momentum.index_copy(0, index, (1 - beta) * momentum[index] + beta * slope)
    moved = (temperatures[index] - lr * state["momentum"][index]).clamp(*temperature_range)
    state["temperatures"] = temperatures.index_copy(0, index, moved)
    return (t * g / u - positive_similarity(z)).mean()


def clip(z1: Tensor, z2: Tensor, temperature: float = 0.1) -> Tensor:
    """Two sets, both directions: rows of one view against the rows of the other."""
    logits = unit(z1) @ unit(z2).T / temperature
    own = torch.arange(len(z1))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def siglip(z1: Tensor, z2: Tensor, temperature: float = 0.1, bias: float = -10.0) -> Tensor:
    logits = unit(z1) @ unit(z2).T / temperature + bias
    sign = 2 * torch.eye(len(z1), dtype=z1.dtype) - 1
    return F.softplus(-sign * logits).sum() / len(z1)
