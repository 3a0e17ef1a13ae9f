"""Every loss written plainly, with its whole similarity matrix and autograd.

In float64 these are the references of the benchmark; in float32 they are the forms that people write by hand.
`state` is a dictionary of the loss's own that survives from call to call; losses without state ignore it.
Definitions and symbols are those of the losses in `nearfar.losses`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]


def unit_rows(z1: Tensor, z2: Tensor) -> Tensor:
    return F.normalize(torch.cat([z1, z2]), dim=1)


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


def simclr(state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.1) -> Tensor:
    z = unit_rows(z1, z2)
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -math.inf)
    return F.cross_entropy(logits, positives(len(z)))


def dcl(state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.1) -> Tensor:
    z = unit_rows(z1, z2)
    logits = (z @ z.T / temperature).masked_fill(~negatives(len(z)), -math.inf)
    return (logits.logsumexp(1) - positive_similarity(z) / temperature).mean()


def dclw(state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.1, sigma: float = 0.5) -> Tensor:
    z = unit_rows(z1, z2)
    logits = (z @ z.T / temperature).masked_fill(~negatives(len(z)), -math.inf)
    similarity = positive_similarity(z)
    weight = 2 - len(z1) * (similarity.detach()[: len(z1)] / sigma).softmax(0)
    return (logits.logsumexp(1) - weight.repeat(2) * similarity / temperature).mean()


def saclr_all(
    state: State,
    z1: Tensor,
    z2: Tensor,
    index: Tensor,
    per_image: bool = False,
    alpha: float = 0.125,
    bandwidth: float = 0.5,
    initial: float = 0.01,
) -> Tensor:
    z, rho = unit_rows(z1, z2), 0.9 if per_image else 0.99
    log_q = (z @ z.T - 1) / bandwidth**2
    repulsion = log_q.exp().masked_fill(~negatives(len(z)), 0).sum(1) / (len(z) - 2)
    log_positive = (positive_similarity(z) - 1) / bandwidth**2
    scale = state.get("partition", torch.full([len(z1)] if per_image else [], initial, dtype=z.dtype))
    estimate = (alpha * log_positive.exp() + (1 - alpha) * repulsion).detach()
    estimate = estimate.view(2, -1).mean(0) if per_image else estimate.mean()
    state["partition"] = rho * scale + (1 - rho) * estimate
    return (repulsion / (scale.repeat(2) if per_image else scale) - log_positive).mean()


def sigclr(
    state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.2, bias: float = -10.0
) -> Tensor:
    z = unit_rows(z1, z2)
    sign = torch.full([len(z), len(z)], -1.0, dtype=z.dtype)
    sign[torch.arange(len(z)), positives(len(z))] = 1
    terms = F.softplus(-sign * (z @ z.T / temperature + bias))
    return terms.masked_fill(torch.eye(len(z), dtype=torch.bool), 0).sum() / len(z)


def sogclr(state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.1, gamma: float = 0.9) -> Tensor:
    """SogCLR on a batch that holds all images: every image has been seen, or none has."""
    z = unit_rows(z1, z2)
    g = (z @ z.T / temperature).exp().masked_fill(~negatives(len(z)), 0).sum(1) / (len(z) - 2)
    u = g.detach()
    if "u" in state:
        u = (1 - gamma) * state["u"].repeat(2) + gamma * u
    state["u"] = u.view(2, -1).mean(0)
    return (g / u - positive_similarity(z) / temperature).mean()


def isogclr(state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.1) -> Tensor:
    """iSogCLR on a batch that holds all images; t in [0.05, 0.7], eta 0.01, rho 0.3, beta and gamma 0.9."""
    z, blank = unit_rows(z1, z2), torch.full([len(z1)], temperature, dtype=z1.dtype)
    t = state.get("t", blank).repeat(2)
    s = z @ z.T
    e = (s / t[:, None]).exp().masked_fill(~negatives(len(z)), 0)
    g = e.sum(1) / (len(z) - 2)
    u = g.detach()
    if "u" in state:
        u = 0.1 * state["u"].repeat(2) + 0.9 * u
    state["u"] = u.view(2, -1).mean(0)
    weighted = (e * s).detach().sum(1) / (u * (len(z) - 2) * t)
    slope = (u.log() + 0.3 - weighted).view(2, -1).mean(0)
    state["m"] = 0.1 * state.get("m", torch.zeros_like(blank)) + 0.9 * slope
    state["t"] = (t[: len(z1)] - 0.01 * state["m"]).clamp(0.05, 0.7)
    return (g / u - positive_similarity(z) / t).mean()


def clip(state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.1) -> Tensor:
    """Two sets, both directions: rows of one view against the rows of the other."""
    logits = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T / temperature
    target = torch.arange(len(z1))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def siglip(
    state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.1, bias: float = -10.0
) -> Tensor:
    logits = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T / temperature + bias
    sign = 2 * torch.eye(len(z1), dtype=z1.dtype) - 1
    return F.softplus(-sign * logits).sum() / len(z1)


def moco(state: State, query: Tensor, key: Tensor, queue: Tensor, temperature: float = 0.2) -> Tensor:
    q, k = F.normalize(query, dim=1), F.normalize(key, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def ressl(state: State, query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
    q, k = F.normalize(query, dim=1), F.normalize(key, dim=1)
    return F.cross_entropy(q @ queue.T / 0.1, (k @ queue.T / 0.04).softmax(1))


def sce(state: State, query: Tensor, key: Tensor, queue: Tensor, lam: float = 0.5) -> Tensor:
    q, k = F.normalize(query, dim=1), F.normalize(key, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / 0.1
    target = (1 - lam) * (k @ queue.T / 0.07).softmax(1)
    return F.cross_entropy(logits, torch.cat([torch.full([len(q), 1], lam, dtype=q.dtype), target], dim=1))


def lorac(state: State, queries: Tensor, key: Tensor, queue: Tensor, t: float = 0.2, beta: float = 2.0) -> Tensor:
    """LORAC with the laplace prior; beta = infinity is MoCo-M. queries [M - 1, batch, dim]."""
    q, k = F.normalize(queries, dim=2), F.normalize(key, dim=1)
    positive = (q * k).sum(2) / t
    if math.isfinite(beta):
        stacked = torch.cat([q, k[None]]).transpose(0, 1)  # [batch, M, dim]
        positive = positive - torch.linalg.svdvals(stacked).sum(1) / (stacked.shape[1] * beta * t)
    logits = torch.cat([positive[..., None], q @ queue.T / t], dim=2).flatten(0, 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def jcl(state: State, query: Tensor, keys: Tensor, queue: Tensor, temperature: float = 0.2, lam: float = 2.0) -> Tensor:
    """keys [views, batch, dim]; the covariance of the keys is the biased one."""
    q, k = F.normalize(query, dim=1), F.normalize(keys, dim=2)
    similarity = (q * k).sum(2)  # [views, batch]
    mean, variance = similarity.mean(0), similarity.var(0, unbiased=False)
    first = mean / temperature + lam / (2 * temperature**2) * variance
    logits = torch.cat([first[:, None], q @ queue.T / temperature], dim=1)
    return (logits.logsumexp(1) - mean / temperature).mean()


def moco_v3(state: State, z1: Tensor, z2: Tensor, index: Tensor, temperature: float = 0.2) -> Tensor:
    logits = F.normalize(z1, dim=1) @ F.normalize(z2.detach(), dim=1).T / temperature
    return 2 * temperature * F.cross_entropy(logits, index)


def sce_in_batch(state: State, z1: Tensor, z2: Tensor, index: Tensor, lam: float = 0.5) -> Tensor:
    q, k = F.normalize(z1, dim=1), F.normalize(z2.detach(), dim=1)
    diagonal = torch.eye(len(q), dtype=torch.bool)
    others = (k @ k.T / 0.07).masked_fill(diagonal, -math.inf).softmax(1)
    return F.cross_entropy(q @ k.T / 0.1, torch.where(diagonal, lam, (1 - lam) * others))


def nnclr(state: State, prediction: Tensor, projection: Tensor, queue: Tensor, temperature: float = 0.1) -> Tensor:
    nearest = queue[(F.normalize(projection.detach(), dim=1) @ queue.T).argmax(1)]
    return F.cross_entropy(nearest @ F.normalize(prediction, dim=1).T / temperature, torch.arange(len(nearest)))


def negative_cosine(state: State, z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
    return 2 - 2 * F.cosine_similarity(z1, z2.detach()).mean()


def barlow_twins(state: State, z1: Tensor, z2: Tensor, index: Tensor, redundancy: float = 0.0051) -> Tensor:
    a, b = ((z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() for z in (z1, z2))
    c = a.T @ b / len(a)
    on = torch.eye(len(c), dtype=torch.bool)
    return (c[on] - 1).square().sum() + redundancy * c[~on].square().sum()


def vicreg(state: State, z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
    off = ~torch.eye(z1.shape[1], dtype=torch.bool)
    total = 25 * F.mse_loss(z1, z2)
    for z in (z1, z2):
        covariance = torch.cov(z.T)
        hinge = F.relu(1 - (covariance.diagonal() + 1e-4).sqrt()).mean()
        total = total + 25 * hinge / 2 + covariance[off].square().sum() / z.shape[1]
    return total


def w_mse(state: State, z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
    """W-MSE of a batch that is whitened as a whole."""
    whitened = []
    for z in (z1, z2):
        covariance = torch.cov(z.T)
        ridge = 1e-6 * covariance.trace() / len(covariance) * torch.eye(len(covariance), dtype=z.dtype)
        factor = torch.linalg.cholesky(covariance + ridge)
        whitened.append(torch.linalg.solve_triangular(factor, (z - z.mean(0)).T, upper=False).T)
    return 2 - 2 * F.cosine_similarity(*whitened).mean()


def prototypes(dim: int) -> Tensor:
    """The 3000 prototypes that SwAV is measured with."""
    return F.normalize(torch.randn(3000, dim, generator=torch.Generator().manual_seed(1)), dim=1)


def swav(state: State, z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
    a, b = (F.normalize(z, dim=1) @ prototypes(z.shape[1]).to(z.dtype).T for z in (z1, z2))
    codes = []
    for scores in (a, b):
        q = (scores.detach() / 0.05).exp()
        for _ in range(3):
            q = q / q.sum(0)
            q = q / q.sum(1, keepdim=True)
        codes.append(q)
    return (F.cross_entropy(b / 0.1, codes[0]) + F.cross_entropy(a / 0.1, codes[1])) / 2
