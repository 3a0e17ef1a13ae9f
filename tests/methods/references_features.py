"""Plain float64 loops, from the papers' formulas, for the methods without negatives.

As in references_pairs.py; state["prototypes"] holds SwAV's prototypes at the start.
"""

import math

import numpy as np


def unit(row):
    return row / math.sqrt(sum(x * x for x in row))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def two_minus_two_cos(first, second):
    return mean(2 - 2 * (unit(a) @ unit(b)) for a, b in zip(first, second, strict=True))


def byol(method, state, epoch, epochs):
    def step(embeddings, index):
        prediction, key = embeddings["prediction"], embeddings["key"]
        return (two_minus_two_cos(prediction[0], key[1]) + two_minus_two_cos(prediction[1], key[0])) / 2

    return step


def simsiam(method, state, epoch, epochs):
    def step(embeddings, index):
        prediction, projection = embeddings["prediction"], embeddings["projection"]
        return (two_minus_two_cos(prediction[0], projection[1]) + two_minus_two_cos(prediction[1], projection[0])) / 2

    return step


def barlow_twins(method, state, epoch, epochs):
    def standardised(column):
        centre = mean(column)
        deviation = math.sqrt(mean((x - centre) ** 2 for x in column) + 1e-5)
        return [(x - centre) / deviation for x in column]

    def step(embeddings, index):
        first, second = ([standardised(column) for column in view.T] for view in embeddings["projection"])
        loss = 0.0
        for i, a in enumerate(first):
            for j, b in enumerate(second):
                c = mean(x * y for x, y in zip(a, b, strict=True))
                loss += (c - 1) ** 2 if i == j else method.redundancy * c**2
        return loss

    return step


def covariance(view):
    """Entries of the unbiased covariance of the columns."""
    columns = [column - mean(column) for column in view.T]
    return [[sum(a * b) / (len(view) - 1) for b in columns] for a in columns]


def vicreg(method, state, epoch, epochs):
    def step(embeddings, index):
        first, second = embeddings["projection"]
        distance = mean((x - y) ** 2 for a, b in zip(first, second, strict=True) for x, y in zip(a, b, strict=True))
        hinge = correlated = 0.0
        for view in (first, second):
            c = covariance(view)
            dims = range(len(c))
            hinge += mean(max(0.0, 1 - math.sqrt(c[i][i] + 1e-4)) for i in dims) / 2
            correlated += sum(c[i][j] ** 2 for i in dims for j in dims if i != j) / len(c)
        return method.invariance * distance + method.variance * hinge + method.covariance * correlated

    return step


def wmse(method, state, epoch, epochs):
    """One sub-batch; the ridge is 1e-6 of the mean variance."""

    def whitened(view):
        c = np.array(covariance(view))
        factor = np.linalg.cholesky(c + 1e-6 * np.trace(c) / len(c) * np.eye(len(c)))
        out = []
        for row in view - sum(view) / len(view):
            solved = []  # forward substitution
            for i, x in enumerate(row):
                solved.append((x - sum(factor[i, j] * solved[j] for j in range(i))) / factor[i, i])
            out.append(np.array(solved))
        return out

    def step(embeddings, index):
        first, second = embeddings["projection"]
        return two_minus_two_cos(whitened(first), whitened(second))

    return step


def swav(method, state, epoch, epochs):
    prototypes = [unit(row) for row in state["prototypes"]]
    stored = [[], []]

    def codes(rows):
        """Sinkhorn: columns then rows scaled to their share, three times; rows sum to 1 at the end."""
        q = [[math.exp(z @ p / method.epsilon) for p in prototypes] for z in rows]
        for _ in range(method.iterations):
            sums = [sum(row[p] for row in q) for p in range(len(prototypes))]
            q = [[x / (total * len(prototypes)) for x, total in zip(row, sums, strict=True)] for row in q]
            q = [[x / (sum(row) * len(rows)) for x in row] for row in q]
        return [[x * len(rows) for x in row] for row in q]

    def step(embeddings, index):
        views = [[unit(row) for row in view] for view in embeddings["projection"]]
        losses = []
        for source in (0, 1):
            past = stored[source] if epoch >= method.stored_from else []
            code = codes([*views[source], *past])
            if method.stored and epoch >= method.stored_from:
                stored[source] = views[source]  # the tests store as many as a batch has
            for predicting, view in enumerate(views):
                if predicting == source:
                    continue
                for target, z in zip(code, view, strict=False):
                    logits = [z @ p / method.temperature for p in prototypes]
                    total = math.log(sum(math.exp(x) for x in logits))
                    losses.append(-sum(c * (x - total) for c, x in zip(target, logits, strict=True)))
        return mean(losses)

    return step


REFERENCES = {
    "byol": byol,
    "simsiam": simsiam,
    "barlow-twins": barlow_twins,
    "vicreg": vicreg,
    "wmse": wmse,
    "swav": swav,
}

VARIANTS = {
    "barlow-twins": [{}, {"redundancy": 0.5}],
    "vicreg": [{}, {"invariance": 1.0, "variance": 2.0, "covariance": 3.0}],
    "swav": [
        {},
        {"small_views": 0},
        {"large_views": 3, "small_views": 1},
        {"stored": 6, "stored_from": 0},
        {"stored": 6, "stored_from": 3},
    ],
}
