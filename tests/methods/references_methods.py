"""Losses of every method by the plain forms in `references`: which embeddings meet, and what stays
between steps.

Every entry of REFERENCES takes (method, state at the start, epoch, epochs) and returns a function
(embeddings, index) -> loss, to be called once for each step.
"""

import itertools
import math

import torch

import references as plain

IMAGES = 20  # of the models in conftest.py


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def two_views(loss):
    """A loss of the projections of two views: loss(method, what it keeps, first, second, index)."""

    def reference(method, state, epoch, epochs):
        kept = {}
        return lambda embeddings, index: loss(method, kept, *embeddings["projection"], index)

    return reference


def simclr(method, state, epoch, epochs):
    """The mean over every two views, but for two small ones."""

    def step(embeddings, index):
        pairs = itertools.combinations(enumerate(embeddings["projection"]), 2)
        return mean(
            plain.simclr(a, b, method.temperature)
            for (first, a), (_, b) in pairs
            if first < method.large_views
        )

    return step


def both_ways(loss, first, second):
    """Each view's embeddings of one kind against the other view's of another kind: loss(method,
    queue, one, other).
    """

    def reference(method, state, epoch, epochs):
        queue = state.get("queues", [None])[0]

        def step(embeddings, index):
            nonlocal queue
            (a1, a2), (b1, b2) = embeddings[first], embeddings[second]
            value = mean([loss(method, queue, a1, b2), loss(method, queue, a2, b1)])
            queue = None if queue is None else pushed(queue, a1)
            return value

        return step

    return reference


def pushed(queue, keys):
    """The queue after these keys, oldest first."""
    return torch.cat([queue, plain.unit(keys)])[-len(queue) :]


def against_keys(loss):
    """Each key's rows against the queries of all other views, or the only query: loss(method,
    query, key, queue).
    """

    def reference(method, state, epoch, epochs):
        queues = list(state["queues"]) if state["queues"] else [None]

        def step(embeddings, index):
            kind = "prediction" if getattr(method, "predictor", ()) else "projection"
            queries, keys = embeddings[kind], embeddings["key"]
            both = len(keys) > 1
            pairs = [
                (q, k) for k in range(len(keys)) for q in range(len(queries)) if q != k or not both
            ]
            value = mean(
                loss(method, queries[q], keys[k], queues[k if len(queues) > 1 else 0])
                for q, k in pairs
            )
            if len(queues) > 1:
                queues[:] = [pushed(queue, key) for queue, key in zip(queues, keys, strict=True)]
            elif queues[0] is not None:
                queues[0] = pushed(queues[0], keys.flatten(0, 1))
            return value

        return step

    return reference


def sce(method, query, key, queue):
    """Eq. 6-9; with free mu and eta the sum of Proposition 1. Half way lam is half way."""
    t, target, lam = method.temperature, method.target_temperature, method.lam
    if method.final_lam is not None:
        lam = (lam + method.final_lam) / 2
    if method.mu is None and method.eta is None:
        return plain.sce(query, key, queue, t, target, lam)
    mu, eta = (1 - lam if weight is None else weight for weight in (method.mu, method.eta))
    cross = plain.ressl(query, key, queue, t, target)
    return (
        lam * plain.info_nce(query, key, queue, t)
        + mu * cross
        + eta * plain.ceil(query, key, queue, t)
    )


def lorac(method, state, epoch, epochs):
    """MoCo-M, LORAC and LORAC-bs: each of the two keys against the queries of all other views."""
    queues, batchwise = list(state["queues"]), not hasattr(method, "prior")
    beta = (
        method.beta
        if hasattr(method, "beta") and epoch >= method.prior_start * epochs
        else math.inf
    )

    def step(embeddings, index):
        views, keys = embeddings["projection"], embeddings["key"]
        large = (
            views[: method.large_views]
            if batchwise
            else torch.cat([views[: method.large_views], keys])
        )
        prior = getattr(method, "prior", "laplace")
        losses = []
        for number, key in enumerate(keys):
            others = torch.stack([view for k, view in enumerate(views) if k != number])
            options = (method.temperature, beta, prior, batchwise)
            losses.append(plain.lorac(others, key, queues[1 - number], *options, large=large))
        queues[:] = [pushed(queue, key) for queue, key in zip(queues, keys, strict=True)]
        return mean(losses)

    return step


def jcl(method, state, epoch, epochs):
    queue, lam = state["queues"][0], method.lam * (epoch + 1) / epochs

    def step(embeddings, index):
        nonlocal queue
        keys = embeddings["key"]
        value = plain.jcl(embeddings["projection"][0], keys, queue, method.temperature, lam)
        queue = pushed(queue, plain.unit(keys).mean(0))
        return value

    return step


def swav(method, state, epoch, epochs):
    past = None

    def step(embeddings, index):
        nonlocal past
        options = (method.temperature, method.epsilon, method.iterations)
        value = plain.swav(embeddings["projection"], state["prototypes"], *options, past=past)
        if method.stored and epoch >= method.stored_from:  # as many as there are images in a batch
            past = plain.unit(embeddings["projection"][:2])
        return value

    return step


def lejepa(method, state, epoch, epochs):
    def step(embeddings, index):
        projections = embeddings["projection"]
        with torch.random.fork_rng(devices=[]):  # what the loss draws next
            directions = torch.randn(method.num_directions, projections.shape[2])
        return plain.lejepa(projections, directions, method.lam, method.large_views)

    return step


def saclr(m, kept, a, b, index):
    options = dict(
        alpha=m.alpha,
        rho=m.rho,
        kernel=m.kernel,
        bandwidth=m.bandwidth,
        initial=m.initial_partition,
    )
    return plain.saclr(kept, a, b, index, IMAGES, per_image=m.scale == "row", **options)


def isogclr(m, kept, a, b, index):
    options = (m.lr_temperature, m.rho, m.beta, m.gamma, m.gradient_limit)
    return plain.isogclr(kept, a, b, index, IMAGES, m.temperature, (m.lowest, m.highest), *options)


def dcl(m, kept, a, b, index):
    return plain.dcl(a, b, m.temperature, getattr(m, "sigma", None))


def moco(m, query, key, queue):
    return plain.info_nce(query, key, queue, m.temperature)


def wcl(method, state, epoch, epochs):
    def step(embeddings, index):
        rows = *embeddings["projection"], *embeddings["second"]
        return plain.wcl(*rows, method.temperature)

    return step


def cosine(m, queue, prediction, other):
    return plain.negative_cosine(prediction, other)


REFERENCES = {
    "simclr": simclr,
    "dcl": two_views(dcl),
    "dclw": two_views(dcl),
    "saclr": two_views(saclr),
    "sogclr": two_views(
        lambda m, kept, a, b, index: plain.sogclr(kept, a, b, index, IMAGES, m.temperature, m.gamma)
    ),
    "isogclr": two_views(isogclr),
    "sigclr": two_views(
        lambda m, kept, a, b, index: plain.sigclr(a, b, m.temperature, m.bias or 0.0)
    ),
    "barlow-twins": two_views(lambda m, kept, a, b, index: plain.barlow_twins(a, b, m.redundancy)),
    "vicreg": two_views(
        lambda m, kept, a, b, index: plain.vicreg(a, b, m.invariance, m.variance, m.covariance)
    ),
    "wmse": two_views(lambda m, kept, a, b, index: plain.wmse(a, b)),
    "byol": both_ways(cosine, "prediction", "key"),
    "simsiam": both_ways(cosine, "prediction", "projection"),
    "moco-v3": both_ways(
        lambda m, queue, q, k: 2 * plain.moco_v3(q, k, m.temperature), "prediction", "key"
    ),
    "nnclr": both_ways(
        lambda m, queue, z, p: plain.nnclr(z, p, queue, m.temperature), "projection", "prediction"
    ),
    "moco-v1": against_keys(moco),
    "moco-v2": against_keys(moco),
    "ressl": against_keys(
        lambda m, q, k, queue: plain.ressl(q, k, queue, m.temperature, m.target_temperature)
    ),
    "sce": against_keys(sce),
    "moco-m": lorac,
    "lorac": lorac,
    "lorac-bs": lorac,
    "jcl": jcl,
    "lejepa": lejepa,
    "swav": swav,
    "wcl": wcl,
}
VARIANTS = {
    "simclr": [{}, {"large_views": 3}, {"large_views": 2, "small_views": 2}],
    "saclr": [
        {"negatives": "all"},
        {"negatives": "all", "scale": "row", "initial_partition": 0.3},
        {"negatives": "all", "kernel": "cosine"},
        {"negatives": "all", "kernel": "cauchy", "scale": "row"},
        {"negatives": 5, "alpha": 0.5, "rho": 0.5},  # all 5 other images
    ],
    "sogclr": [{}, {"gamma": 0.3, "temperature": 0.5}],
    "isogclr": [
        {},
        {"lr_temperature": 0.5, "temperature": 0.3, "beta": 0.5, "gradient_limit": 0.5},
    ],
    "sigclr": [{}, {"bias": None}, {"learn_temperature": True, "learn_bias": False, "bias": -3.0}],
    "barlow-twins": [{}, {"redundancy": 0.5}],
    "vicreg": [{}, {"invariance": 1.0, "variance": 2.0, "covariance": 3.0}],
    "lejepa": [{}, {"small_views": 0}, {"large_views": 3, "lam": 0.5, "num_directions": 30}],
    "swav": [
        {},
        {"small_views": 0},
        {"large_views": 3, "small_views": 1},
        {"stored": 6, "stored_from": 0},
        {"stored": 6, "stored_from": 3},
    ],
    "moco-v2": [{}, {"symmetric": True}, {"symmetric": True, "queue_per_view": True}],
    "ressl": [{}, {"symmetric": True}, {"small_views": 2}, {"symmetric": True, "small_views": 1}],
    "moco-m": [{}, {"large_views": 2, "small_views": 0}],
    "lorac": [
        {},
        {"prior": "gaussian"},
        {"prior": "constant", "beta": 4.0},
        {"large_views": 2, "small_views": 0},
        {"prior_start": 0.75},  # the tests are half-way through: the prior is still off
    ],
    "lorac-bs": [{}, {"prior_start": 0.75}],
    "jcl": [{}, {"key_views": 1}],
    "sce": [
        {},
        {"symmetric": True},
        {"queue_size": 0},
        {"queue_size": 0, "symmetric": True, "predictor": (32, 16)},
        {"small_views": 2, "predictor": (32, 16)},
        {"lam": 0.25, "mu": 0.4, "eta": 1.5},
        {"mu": 0.0},
        {"lam": 1.0},
        {"lam": 0.2, "final_lam": 0.9},
    ],
}
