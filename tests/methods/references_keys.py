"""Plain float64 loops, from the papers' formulas, for the methods with keys from a momentum encoder or a queue.

As in references_pairs.py; state["queue"] holds the queue's rows at the start, oldest first.
"""

import math

import numpy as np


def unit(row):
    return row / math.sqrt(sum(x * x for x in row))


def units(view):
    return [unit(row) for row in view]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def push(queue, keys):
    """First in, first out."""
    queue[:] = [*queue, *keys][-len(queue) :]


def cross_entropy(positive, negatives):
    """-log of the first logit's softmax."""
    return -math.log(math.exp(positive) / (math.exp(positive) + sum(math.exp(x) for x in negatives)))


def softmax(logits):
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def against_keys(embeddings, symmetric, one):
    """Mean of `one(query, key, its view)` : one key against all queries, or each of two against the others."""
    queries, keys = ([units(view) for view in embeddings[kind]] for kind in ("projection", "key"))
    pairs = [(q, k) for k in range(len(keys)) for q in range(len(queries)) if q != k or not symmetric]
    return mean(one(q, k, b) for a, b in pairs for q, k in zip(queries[a], keys[b], strict=True))


def moco(method, state, epoch, epochs):
    queues, t = [[*queue] for queue in state["queues"]], method.temperature

    def one(q, k, view):
        return cross_entropy(q @ k / t, [q @ past / t for past in queues[view if method.queue_per_view else 0]])

    def step(embeddings, index):
        loss = against_keys(embeddings, method.symmetric, one)
        for view, key in enumerate(embeddings["key"]):
            push(queues[view if method.queue_per_view else 0], units(key))
        return loss

    return step


def moco_v3(method, state, epoch, epochs):
    t = method.temperature

    def one_direction(queries, keys):
        losses = []
        for i, q in enumerate(queries):
            others = [q @ k / t for j, k in enumerate(keys) if j != i]
            losses.append(2 * t * cross_entropy(q @ keys[i] / t, others))
        return mean(losses)

    def step(embeddings, index):
        (p1, p2), (k1, k2) = map(units, embeddings["prediction"]), map(units, embeddings["key"])
        return one_direction(p1, k2) + one_direction(p2, k1)

    return step


def nuclear_norm(rows):
    return float(np.linalg.svd(np.stack(rows), compute_uv=False).sum())


def lorac(method, state, epoch, epochs):
    """MoCo-M, LORAC and LORAC-bs: each of the two keys against the queries of all other views."""
    queues, t = [[*queue] for queue in state["queues"]], method.temperature
    prior = getattr(method, "prior", "batch")
    switched_on = hasattr(method, "beta") and epoch >= method.prior_start * epochs

    def log_prior(rows):
        if prior == "laplace":
            return -nuclear_norm(rows) / (len(rows) * method.beta * t)
        if prior == "gaussian":
            return -((nuclear_norm(rows) - math.sqrt(len(rows))) ** 2) / (2 * len(rows) * t)
        return -3 / (len(rows) * method.beta * t)

    def log_prior_of_batch(queries):
        spread = []
        for image in zip(*queries, strict=True):
            spread += [q - sum(image) / len(image) for q in image]
        return -nuclear_norm(spread) / (len(spread) * method.beta * t)

    def step(embeddings, index):
        views, keys = [units(view) for view in embeddings["projection"]], [units(k) for k in embeddings["key"]]
        losses = []
        large = views[: method.large_views]
        batchwise = log_prior_of_batch(large) if switched_on and prior == "batch" else None
        for number, key in enumerate(keys):
            others = [view for view in range(len(views)) if view != number]
            for i, k in enumerate(key):
                log_h = 0.0
                if switched_on:
                    log_h = batchwise if prior == "batch" else log_prior([rows[i] for rows in large + keys])
                for view in others:
                    q = views[view][i]
                    losses.append(cross_entropy(q @ k / t + log_h, [q @ past / t for past in queues[1 - number]]))
        for queue, key in zip(queues, keys, strict=True):
            push(queue, key)
        return mean(losses)

    return step


def jcl(method, state, epoch, epochs):
    queue, t = [*state["queue"]], method.temperature
    lam = method.lam * (epoch + 1) / epochs

    def step(embeddings, index):
        queries, keys = units(embeddings["projection"][0]), [units(key) for key in embeddings["key"]]
        losses, means = [], []
        for i, q in enumerate(queries):
            own = [key[i] for key in keys]
            mu, dim = sum(own) / len(own), len(q)
            sigma = [[mean((k[a] - mu[a]) * (k[b] - mu[b]) for k in own) for b in range(dim)] for a in range(dim)]
            spread = sum(q[a] * sigma[a][b] * q[b] for a in range(dim) for b in range(dim))
            denominator = math.exp(q @ mu / t + lam / (2 * t * t) * spread)
            denominator += sum(math.exp(q @ past / t) for past in queue)
            losses.append(-(q @ mu) / t + math.log(denominator))
            means.append(unit(mu))
        push(queue, means)
        return mean(losses)

    return step


def ressl(method, state, epoch, epochs):
    queue = [*state["queue"]]

    def one(q, k, view):
        target = softmax([k @ past / method.target_temperature for past in queue])
        online = softmax([q @ past / method.temperature for past in queue])
        return -sum(w * math.log(p) for w, p in zip(target, online, strict=True))

    def step(embeddings, index):
        loss = against_keys(embeddings, method.symmetric, one)
        push(queue, [k for key in embeddings["key"] for k in units(key)])
        return loss

    return step


def sce(method, state, epoch, epochs):
    """Eq. 6-9; with free mu and eta the sum of Proposition 1."""
    queue, t = [*state["queue"]], method.temperature
    free = method.mu is not None or method.eta is not None

    def one(q, k, others):
        relations = softmax([k @ other / method.target_temperature for other in others])
        if free:
            mu, eta = (1 - method.lam if weight is None else weight for weight in (method.mu, method.eta))
            online = softmax([q @ other / t for other in others])
            info_nce = cross_entropy(q @ k / t, [q @ other / t for other in others])
            negatives = sum(math.exp(q @ other / t) for other in others)
            ceil = -math.log(negatives / (negatives + math.exp(q @ k / t)))
            cross = -sum(s * math.log(p) for s, p in zip(relations, online, strict=True))
            return method.lam * info_nce + mu * cross + eta * ceil
        target = [method.lam, *((1 - method.lam) * s for s in relations)]
        online = softmax([q @ k / t, *(q @ other / t for other in others)])
        return -sum(w * math.log(p) for w, p in zip(target, online, strict=True))

    def step(embeddings, index):
        queries = [units(view) for view in embeddings["prediction" if method.predictor else "projection"]]
        keys = [units(view) for view in embeddings["key"]]
        both = method.symmetric or method.small_views > 0
        pairs = [(q, k) for k in range(len(keys)) for q in range(len(queries)) if q != k] if both else [(0, 0)]
        losses = []
        for a, b in pairs:
            for i, q in enumerate(queries[a]):
                batch = [key for j, key in enumerate(keys[b]) if j != i]
                losses.append(one(q, keys[b][i], queue or batch))
        if queue:
            push(queue, [k for key in keys for k in key])
        return mean(losses)

    return step


def nnclr(method, state, epoch, epochs):
    queue, t = [*state["queue"]], method.temperature

    def one_direction(projections, predictions):
        losses = []
        for i, z in enumerate(projections):
            nearest = max(queue, key=lambda past: float(z @ past))
            others = [nearest @ p / t for j, p in enumerate(predictions) if j != i]
            losses.append(cross_entropy(nearest @ predictions[i] / t, others))
        return mean(losses)

    def step(embeddings, index):
        (z1, z2), (p1, p2) = map(units, embeddings["projection"]), map(units, embeddings["prediction"])
        loss = (one_direction(z1, p2) + one_direction(z2, p1)) / 2
        push(queue, z1)
        return loss

    return step


REFERENCES = {
    "moco-v1": moco,
    "moco-v2": moco,
    "moco-v3": moco_v3,
    "moco-m": lorac,
    "lorac": lorac,
    "lorac-bs": lorac,
    "jcl": jcl,
    "ressl": ressl,
    "sce": sce,
    "nnclr": nnclr,
}

VARIANTS = {
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
    ],
}
