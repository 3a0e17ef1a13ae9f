"""Labels that features contradict: what classifiers say of images that they were not fitted to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64, Shaped
from scipy.optimize import isotonic_regression
from scipy.sparse import coo_array, csr_array, vstack
from scipy.stats import beta
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from nearfar.evaluation.knn import TEMPERATURE
from nearfar.evaluation.labelled import Features, balanced_accuracy, features
from nearfar.evaluation.linear import choose_strength, fit, standardise
from nearfar.neighbours import Nearest, find_nearest
from nearfar.progress import tracked

FOLDS = 5  # and the fewest images of a class whose labels are examined
NEIGHBOURS = 20
AT_ONCE = 2**16  # images whose neighbours vote at a time
MOST_FITTED = 50_000  # images beyond which no linear classifier is fitted
LEAST = 0.5  # estimated precision down to which labels are listed
FLOOR = 0.2  # share of the contradicted pairs whose labels are all taken for errors
LOWER = 0.2  # one-sided error of the bound on how many these are
CLEAR = 1 / 3  # ratio below which a label is clearly contradicted, where few lie between that and 1
# of what the largest class leaves: features that predict less of it tell the classes apart badly
WEAK = 0.5
TOO_WEAK = 1 / 3  # of the same: below, right labels are contradicted as often as wrong ones


class Predicted(NamedTuple):
    """Accuracy of predicting the labels, by classifiers that did not see them: shares 0..1.

    accuracy: of images in classes that were examined. largest: share of the largest class, which is
    the accuracy of always naming it. balanced: mean accuracy of the classes.
    """

    accuracy: float
    largest: float
    balanced: float

    @property
    def skill(self) -> float:
        """The share of what always naming the largest class gets wrong that is predicted rightly; 0
        is no better.
        """
        return (self.accuracy - self.largest) / max(1 - self.largest, 1e-12)


class LabelIssues(NamedTuple):
    """Rows whose labels are in doubt, most of all first: their own label's probability, another
    label and its own.

    predicted: how well labels can be predicted at all; None where fewer than two classes are large
    enough. unexamined: how many labels were not examined, as their classes are too small.
    """

    row: Int64[np.ndarray, " issues"]
    own: Float[np.ndarray, " issues"]
    suggested: Shaped[np.ndarray, " issues"]
    probability: Float[np.ndarray, " issues"]
    predicted: Predicted | None = None
    unexamined: int = 0


def find_label_issues(
    x: Features | None,
    labels: Shaped[np.ndarray, " images"],
    seed: int = 0,
    *,
    approximate: bool = False,
    near: Nearest | None = None,
    group: Int64[np.ndarray, " images"] | None = None,
) -> LabelIssues:
    """Find the labels that are more likely wrong than right; x [images, dim], each image with its
    label; None for a judgement by `near` alone.

    A label is in doubt where another class is more probable; the ratio of the two probabilities
    gives the order, lowest first. How many of these are listed is decided by `precisions`; none
    where the features cannot tell the classes apart. Probabilities are those of
    `label_probabilities`, which the other arguments are for. group: a number that all copies of an
    image share; those of one label count as one image and are listed together. Default: none are
    copies. Classes of fewer than five images are left out; with fewer than two others nothing is in
    doubt.
    """
    every, number = np.unique(labels, return_inverse=True)
    if group is None:
        group = np.arange(len(labels))
    _, first, place = np.unique(group * len(every) + number, return_index=True, return_inverse=True)
    known = np.sort(first[np.bincount(number[first])[number[first]] >= FOLDS])
    unexamined = int((~np.isin(number, number[known])).sum())
    classes, number = np.unique(labels[known], return_inverse=True)
    if len(classes) < 2:
        nothing = np.empty(0)
        return LabelIssues(
            nothing.astype(np.int64), nothing, classes[:0], nothing, None, len(labels)
        )
    if near is not None:
        near = near.among(torch.from_numpy(known), min(NEIGHBOURS, len(known) - 1))
    chance = label_probabilities(
        None if x is None else features(x, "all")[known],
        number,
        seed,
        approximate=approximate,
        near=near,
        group=group[known],
    )
    issues = likely_wrong(chance, number)
    ordered, times = place.argsort(kind="stable"), np.bincount(place)
    ends, doubted = times.cumsum(), place[known[issues.row]]
    times = times[doubted]
    copies = [ordered[end - many : end] for end, many in zip(ends[doubted], times, strict=True)]
    return LabelIssues(
        np.concatenate([*copies, np.empty(0, np.int64)]),
        issues.own.repeat(times),
        classes[issues.suggested].repeat(times),
        issues.probability.repeat(times),
        issues.predicted,
        unexamined,
    )


def likely_wrong(chance: csr_array, number: Int64[np.ndarray, " images"]) -> LabelIssues:
    """Find the same in probabilities of the classes [images, classes]; number: the label of each, a
    class 0..n-1.
    """
    guessed, _, _ = _best(chance, chance.data)
    rows = _rows(chance)
    is_own = chance.indices == number[rows]
    other, probability, _ = _best(chance, np.where(is_own, 0, chance.data))
    own = np.zeros_like(probability)
    own[rows[is_own]] = chance.data[is_own]
    ratio = np.divide(own, probability, out=np.full_like(own, np.inf), where=probability > 0)
    predicted = predictability(guessed, number)
    likely = precisions(chance, number) >= LEAST
    listed = np.flatnonzero(likely & (ratio < 1) & (predicted.skill >= TOO_WEAK))
    listed = listed[np.argsort(ratio[listed], kind="stable")]
    return LabelIssues(listed, own[listed], other[listed], probability[listed], predicted)


def _rows(chance: csr_array) -> Int32[np.ndarray, " pairs"]:
    """The image of each pair of an image and a class that has a probability."""
    return np.arange(chance.shape[0], dtype=np.int32).repeat(np.diff(chance.indptr))


def _best(
    chance: csr_array, values: Float[np.ndarray, " pairs"]
) -> tuple[
    Int32[np.ndarray, " images"], Float[np.ndarray, " images"], Float[np.ndarray, " images"]
]:
    """The class with the largest of the values of each image's pairs, the first of equal ones, this
    value and the next; class 0 and zeros where there are none.
    """
    some = np.diff(chance.indptr) > 0
    rows, starts = _rows(chance), chance.indptr[:-1][some]
    best = np.zeros(len(some), chance.indices.dtype)
    first, second = np.zeros(len(some), values.dtype), np.zeros(len(some), values.dtype)
    first[some] = np.maximum.reduceat(values, starts)
    places = np.where(values == first[rows], np.arange(len(values)), len(values))
    place = np.minimum.reduceat(places, starts)
    best[some] = chance.indices[place]
    values = values.copy()
    values[place] = 0
    second[some] = np.maximum.reduceat(values, starts)
    return best, first, second


def predictability(
    guessed: Int64[np.ndarray, " images"], number: Int64[np.ndarray, " images"]
) -> Predicted:
    """Compare classes that were predicted with the labels."""
    right, counts = guessed == number, np.bincount(number)
    balanced = balanced_accuracy(guessed, number)
    accuracy, largest = float(right.mean()), float(counts.max() / len(number))
    return Predicted(accuracy, largest, accuracy if balanced is None else balanced)


def precisions(
    chance: csr_array, number: Int64[np.ndarray, " images"]
) -> Float[np.ndarray, " images"]:
    """Estimate for each image the probability that its label is wrong, 0..1, from the labels
    themselves.

    Each image is paired with each class, and the pairs are ranked by the ratio of the class's
    probability to the largest of the others. Hard images make labels rarer steadily towards the
    bottom; wrong labels, spread over the classes, stay about as frequent everywhere. Their
    frequency is that among the lowest fifth of the pairs with ratios below 1, or rather its lower
    bound of 80 %. At any rank the precision is this frequency, divided by that of labels there
    (isotonic regression); pairs of one ratio share a rank. Where a class is easy to tell, wrong
    labels are too few for that: labels with a ratio below a third are listed as well, if at most
    half as many lie between that and 1. Images without any probability have no part in this.
    """
    rows = _rows(chance)
    _, first, second = _best(chance, chance.data)
    rival = np.where(chance.data == first[rows], second[rows], first[rows])
    ratios, is_label = chance.data / rival.clip(1e-12), chance.indices == number[rows]
    has_any = np.diff(chance.indptr) > 0
    images = int(has_any.sum())
    levels, rank, pairs = np.unique(ratios, return_inverse=True, return_counts=True)
    labels = np.bincount(rank[is_label], minlength=len(levels))
    # pairs without a probability come first
    absent = images * chance.shape[1] - len(ratios), images - int(is_label.sum())
    levels, pairs, labels = np.r_[0.0, levels], np.r_[absent[0], pairs], np.r_[absent[1], labels]
    lowest = int(FLOOR * pairs[levels < 1].sum())
    wrong = np.interp(lowest, np.r_[0, pairs.cumsum()], np.r_[0, labels.cumsum()])
    floor = float(beta.ppf(LOWER, wrong, lowest - wrong + 1)) if wrong else 0.0
    held = pairs > 0
    frequency = np.zeros(len(pairs))
    frequency[held] = isotonic_regression(labels[held] / pairs[held], weights=pairs[held]).x
    place = np.zeros(chance.shape[0], np.int64)  # of the label of each image
    place[rows[is_label]] = rank[is_label] + 1
    own = np.where(has_any, levels[place], np.inf)
    precision = np.minimum(1, floor / frequency[place].clip(1e-12))
    clear, between = own < CLEAR, int(((own >= CLEAR) & (own < 1)).sum())
    share = 1 - between / max(1, int(clear.sum()))
    return np.where(clear, np.maximum(precision, share), precision)


def label_probabilities(
    x: Float[Tensor, "images dim"] | None,
    number: Int64[np.ndarray, " images"],
    seed: int = 0,
    *,
    approximate: bool = False,
    near: Nearest | None = None,
    group: Int64[np.ndarray, " images"] | None = None,
) -> csr_array:
    """Probability of each class for each image [images, classes] by the labels of others: the mean
    of two classifiers. Without a linear classifier, rows of images without any other are empty.

    kNN: the 20 nearest others, with the weights of `knn_accuracy`. Logistic regression:
    cross-validated in five stratified folds, with the C of the best `likelihood`; left out above 50
    000 images. x: None above that, where `near` is known. number: classes 0..n-1, each of at least
    five images. approximate: of the search. near: the 20 nearest others, where they are known.
    group: images that share a number have no part in each other's probabilities. Default: no two
    share one.
    """
    classes = int(number.max()) + 1
    if group is None:
        group = np.arange(len(number))
    if near is None:
        assert x is not None
        near = find_nearest(x, k=min(NEIGHBOURS, len(x) - 1), approximate=approximate)
    shares = _votes(near, torch.from_numpy(number), torch.from_numpy(group), classes)
    if x is None or len(x) > MOST_FITTED:
        return shares
    votes = shares.toarray()
    votes[np.diff(shares.indptr) == 0] = 1 / classes
    [rows] = standardise(x)
    strength, linear = choose_strength(rows, number, seed, likelihood), np.zeros_like(votes)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(rows, number)
    for kept, held in tracked(folds, "predicting labels", FOLDS):
        others = kept[~np.isin(group[kept], group[held])]
        if len(np.unique(number[others])) > 1:
            model = fit(rows[others], number[others], strength)
            linear[np.ix_(held, model.classes_)] = model.predict_proba(rows[held])
    return csr_array((votes + linear) / 2)


def _votes(
    near: Nearest, number: Int64[Tensor, " images"], group: Int64[Tensor, " images"], classes: int
) -> csr_array:
    """Shares of the classes among the nearest others of each image; none without any."""
    parts = []
    for start in range(0, len(number), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        index, own = near.index[some], group[some, None]
        far = near.distance[some].masked_fill(group[index] == own, torch.inf)
        votes = torch.softmax((1 - far) / TEMPERATURE, 1).nan_to_num(0).flatten().numpy()
        rows = np.arange(len(far)).repeat(far.shape[1])
        shape = len(far), classes
        part = coo_array((votes, (rows, number[index].flatten().numpy())), shape).tocsr()
        part.eliminate_zeros()
        part.sort_indices()
        parts.append(part)
    return vstack(parts, format="csr")


def likelihood(
    model: LogisticRegression,
    rows: Float[np.ndarray, "images dim"],
    number: Int64[np.ndarray, " images"],
) -> float:
    """Mean log-likelihood of the labels whose classes a classifier knows; unlike accuracy it judges
    probabilities.
    """
    known = np.isin(number, model.classes_)
    chance = model.predict_proba(rows[known])
    own = chance[np.arange(len(chance)), np.searchsorted(model.classes_, number[known])]
    return float(np.log(own.clip(1e-9)).mean())
