"""Labels that features contradict: what classifiers say of images that they were not fitted to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from nearfar.evaluation.knn import TEMPERATURE
from nearfar.evaluation.labelled import Features, features
from nearfar.evaluation.linear import choose_strength, fit, standardise
from nearfar.neighbours import find_nearest

FOLDS = 5  # and the fewest images of a class whose labels are examined
NEIGHBOURS = 20
FACTOR = 3.0  # by which another class must be more probable than the label
MOST_FITTED = 50_000  # images beyond which no linear classifier is fitted


class Doubtful(NamedTuple):
    """Rows whose labels are in doubt, most of all first: their own label's probability, another label and its own."""

    row: Int64[np.ndarray, " doubtful"]
    own: Float[np.ndarray, " doubtful"]
    suggested: Shaped[np.ndarray, " doubtful"]
    probability: Float[np.ndarray, " doubtful"]


def doubtful_labels(
    x: Features,
    labels: Shaped[np.ndarray, " images"],
    seed: int = 0,
    *,
    approximate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Doubtful:
    """Find the labels that the features contradict; x [images, dim], each image with its label.

    A label is in doubt where another class is more than three times as probable; the ratio of the two probabilities
    gives the order, lowest first. This finds more planted errors than the thresholds of confident learning (Northcutt,
    Jiang & Chuang 2021), the label's own probability or the margin do (docs/check.md). Probabilities are those of
    `label_probabilities`, which the other arguments are for. Classes of fewer than five images are left out; with fewer
    than two others nothing is in doubt.
    """
    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    known = np.flatnonzero(counts[number] >= FOLDS)
    classes, number = np.unique(labels[known], return_inverse=True)
    if len(classes) < 2:
        return Doubtful(np.empty(0, np.int64), np.empty(0), classes[:0], np.empty(0))
    chance = label_probabilities(
        features(x, "all")[known], number, seed, approximate=approximate, progress=progress
    )
    every = np.arange(len(known))
    own, others = chance[every, number], chance.copy()
    others[every, number] = -1
    best, other = others.argmax(1), others.max(1)
    rows = np.flatnonzero(other > FACTOR * own)
    rows = rows[np.argsort(own[rows] / other[rows], kind="stable")]
    return Doubtful(known[rows], own[rows], classes[best[rows]], other[rows])


def label_probabilities(
    x: Float[torch.Tensor, "images dim"],
    number: Int64[np.ndarray, " images"],
    seed: int = 0,
    *,
    approximate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, "images classes"]:
    """Probability of each class for each image by the labels of others: the mean of two classifiers.

    kNN: the 20 nearest others, with the weights of `knn_accuracy`. Logistic regression: cross-validated in five
    stratified folds, with the C of the best `likelihood`; left out above 50 000 images. number: classes 0..n-1, each of
    at least five images. approximate: of the search. progress: called with (folds done, in all).
    """
    classes = int(number.max()) + 1
    near = find_nearest(x, k=min(NEIGHBOURS, len(x) - 1), approximate=approximate)
    weights = torch.softmax((1 - near.distance) / TEMPERATURE, 1)
    votes = (
        torch.zeros(len(x), classes)
        .scatter_add_(1, torch.from_numpy(number)[near.index], weights)
        .numpy()
    )
    if len(x) > MOST_FITTED:
        return votes
    [rows] = standardise(x)
    strength, linear = choose_strength(rows, number, seed, likelihood), np.zeros_like(votes)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for done, (kept, held) in enumerate(folds.split(rows, number), 1):
        linear[held] = fit(rows[kept], number[kept], strength).predict_proba(rows[held])
        if progress is not None:
            progress(done, FOLDS)
    return (votes + linear) / 2


def likelihood(
    model: LogisticRegression,
    rows: Float[np.ndarray, "images dim"],
    number: Int64[np.ndarray, " images"],
) -> float:
    """Mean log-likelihood of the labels whose classes a classifier knows; unlike accuracy it judges probabilities."""
    known = np.isin(number, model.classes_)
    chance = model.predict_proba(rows[known])
    own = chance[np.arange(len(chance)), np.searchsorted(model.classes_, number[known])]
    return float(np.log(own.clip(1e-9)).mean())
