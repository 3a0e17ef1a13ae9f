"""Plain float64 loops, from the papers' formulas, for the methods that compare all rows of a batch.

Every entry of REFERENCES takes (method, state of the loss at the start, epoch, epochs) and returns a function
(embeddings, index) -> loss, to be called once for each step; it keeps what the method keeps between steps.
"""

import math
from itertools import product


def unit(row):
    return row / math.sqrt(sum(x * x for x in row))


def rows_of(embeddings):
    """Rows 0..B-1 of the first view, B..2B-1 of the second; the positive of each, its image, and its negatives."""
    first, second = embeddings["projection"]
    rows, batch = [*first, *second], len(first)
    positive = [(i + batch) % (2 * batch) for i in range(2 * batch)]
    negatives = [[j for j in range(2 * batch) if j not in (i, positive[i])] for i in range(2 * batch)]
    return rows, positive, negatives, [i % batch for i in range(2 * batch)]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def simclr(method, state, epoch, epochs):
    def step(embeddings, index):
        rows, positive, _, _ = rows_of(embeddings)
        rows, t = [unit(row) for row in rows], method.temperature
        losses = []
        for i, row in enumerate(rows):
            denominator = sum(math.exp(row @ other / t) for j, other in enumerate(rows) if j != i)
            losses.append(-math.log(math.exp(row @ rows[positive[i]] / t) / denominator))
        return mean(losses)

    return step


def dcl(method, state, epoch, epochs):
    weighted = hasattr(method, "sigma")

    def step(embeddings, index):
        rows, positive, negatives, image = rows_of(embeddings)
        rows, t = [unit(row) for row in rows], method.temperature
        batch = len(rows) // 2
        weight = [1.0] * batch
        if weighted:
            hard = [math.exp(rows[i] @ rows[i + batch] / method.sigma) for i in range(batch)]
            weight = [2 - batch * h / sum(hard) for h in hard]
        losses = []
        for i, row in enumerate(rows):
            denominator = sum(math.exp(row @ rows[j] / t) for j in negatives[i])
            losses.append(-weight[image[i]] * (row @ rows[positive[i]]) / t + math.log(denominator))
        return mean(losses)

    return step


def sogclr(method, state, epoch, epochs):
    u = {}

    def step(embeddings, index):
        rows, positive, negatives, image = rows_of(embeddings)
        rows, t = [unit(row) for row in rows], method.temperature
        losses, seen = [], {}
        for i, row in enumerate(rows):
            name = index[image[i]]
            g = mean(math.exp(row @ rows[j] / t) for j in negatives[i])
            moved = (1 - method.gamma) * u[name] + method.gamma * g if name in u else g
            seen.setdefault(name, []).append(moved)
            losses.append(-(row @ rows[positive[i]]) / t + g / moved)
        u.update({name: mean(values) for name, values in seen.items()})
        return mean(losses)

    return step


def isogclr(method, state, epoch, epochs):
    u, temperature, momentum = {}, {}, {}

    def step(embeddings, index):
        rows, positive, negatives, image = rows_of(embeddings)
        rows = [unit(row) for row in rows]
        losses, seen, slopes = [], {}, {}
        for i, row in enumerate(rows):
            name = index[image[i]]
            t = temperature.get(name, method.temperature)
            g = mean(math.exp(row @ rows[j] / t) for j in negatives[i])
            moved = (1 - method.gamma) * u[name] + method.gamma * g if name in u else g
            weights = [math.exp(row @ rows[j] / t) / (moved * len(negatives[i])) for j in negatives[i]]
            pull = sum(w * (row @ rows[j]) / t for w, j in zip(weights, negatives[i], strict=True))
            slopes.setdefault(name, []).append(math.log(moved) + method.rho - pull)
            seen.setdefault(name, []).append(moved)
            losses.append(t * g / moved - row @ rows[positive[i]])
        for name, values in slopes.items():
            u[name] = mean(seen[name])
            momentum[name] = (1 - method.beta) * momentum.get(name, 0.0) + method.beta * min(
                max(mean(values), -method.gradient_limit), method.gradient_limit
            )
            moved = temperature.get(name, method.temperature) - method.lr_temperature * momentum[name]
            temperature[name] = min(max(moved, method.lowest), method.highest)
        return mean(losses)

    return step


def saclr(method, state, epoch, epochs):
    rho = method.rho if method.rho is not None else {"matrix": 0.99, "row": 0.9}[method.scale]
    normaliser = {}  # by image, or one under None

    def similarity(a, b):
        square = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
        return {
            "gaussian": lambda: math.exp(-square / (2 * method.bandwidth**2)),
            "cosine": lambda: math.exp(a @ b / method.bandwidth),
            "cauchy": lambda: 1 / (1 + square),
        }[method.kernel]()

    def step(embeddings, index):
        rows, positive, negatives, image = rows_of(embeddings)
        if method.kernel != "cauchy":
            rows = [unit(row) for row in rows]
        losses, seen = [], {}
        for i, row in enumerate(rows):
            name = index[image[i]] if method.scale == "row" else None
            attraction = similarity(row, rows[positive[i]])
            repulsion = mean(similarity(row, rows[j]) for j in negatives[i])
            losses.append(-math.log(attraction) + repulsion / normaliser.get(name, method.initial_partition))
            seen.setdefault(name, []).append(method.alpha * attraction + (1 - method.alpha) * repulsion)
        for name, values in seen.items():
            normaliser[name] = rho * normaliser.get(name, method.initial_partition) + (1 - rho) * mean(values)
        return mean(losses)

    return step


def sigclr(method, state, epoch, epochs):
    def step(embeddings, index):
        rows, positive, _, _ = rows_of(embeddings)
        rows = [unit(row) for row in rows]
        bias = 0.0 if method.bias is None else method.bias
        total = 0.0
        for i, j in product(range(len(rows)), repeat=2):
            if i != j:
                y = 1 if j == positive[i] else -1
                total += math.log(1 + math.exp(-y * (rows[i] @ rows[j] / method.temperature + bias)))
        return total / len(rows)

    return step


REFERENCES = {
    "simclr": simclr,
    "dcl": dcl,
    "dclw": dcl,
    "sogclr": sogclr,
    "isogclr": isogclr,
    "saclr": saclr,
    "sigclr": sigclr,
}

VARIANTS = {
    "saclr": [
        {"negatives": "all"},
        {"negatives": "all", "scale": "row", "initial_partition": 0.3},
        {"negatives": "all", "kernel": "cosine"},
        {"negatives": "all", "kernel": "cauchy", "scale": "row"},
        {"negatives": 5, "alpha": 0.5, "rho": 0.5},  # all 5 other images
    ],
    "sogclr": [{}, {"gamma": 0.3, "temperature": 0.5}],
    "isogclr": [{}, {"lr_temperature": 0.5, "temperature": 0.3, "beta": 0.5, "gradient_limit": 0.5}],
    "sigclr": [{}, {"bias": None}, {"learn_temperature": True, "learn_bias": False, "bias": -3.0}],
}
