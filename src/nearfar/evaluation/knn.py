"""Classifiers without training on frozen features: the vote of the nearest neighbours, and the
nearest class mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from nearfar.evaluation.labelled import (
    Features,
    Labels,
    accuracy,
    features,
    labelled,
    numbered,
    training_set,
)
from nearfar.losses.checks import positive
from nearfar.neighbours import nearest_rows

TEMPERATURE = 0.07  # of the weights exp(cos / temperature): Wu et al. 2018, and most tables since


def knn_accuracy(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    k: int = 20,
    temperature: float = TEMPERATURE,
) -> float:
    """Accuracy of the weighted vote of the k nearest training images, 0..1.

    Each neighbour votes for its class with weight exp(cos / temperature); see `knn_predict`. Test
    images of a class without training images count as wrong. ValueError when labels are missing, or
    k is below one or above the number of training images.

    >>> x, y = torch.eye(4).repeat(10, 1), np.arange(40) % 4
    >>> knn_accuracy(x, y, x, y)
    1.0
    """
    test_x, truth = labelled(test_x, test_y, "test", train_y)
    return accuracy(knn_predict(train_x, train_y, test_x, k, temperature), truth)


def knn_predict(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    k: int = 20,
    temperature: float = TEMPERATURE,
) -> Shaped[np.ndarray, " test"]:
    """Predicted label of each test image, one of the training labels.

    Features [images, dim], compared by cosine.

    >>> x, y = torch.eye(2), np.array(["cat", "dog"])
    >>> knn_predict(x, y, torch.tensor([[0.1, 0.9]]), k=1)
    array(['dog'], dtype='<U3')
    """
    train_x, labels = training_set(train_x, train_y)
    classes, number = numbered(labels)
    near = nearest_rows(train_x, features(test_x, "test"), k)
    return classes[vote(1 - near.distance, number[near.index], len(classes), temperature).numpy()]


def vote(
    cosine: Float[Tensor, "test k"],
    number: Int[Tensor, "test k"],
    classes: int,
    temperature: float = TEMPERATURE,
) -> Int[Tensor, " test"]:
    """Class number with the largest sum of exp(cos / temperature) over the neighbours."""
    positive(temperature=temperature)
    shift = cosine.amax(
        1, keepdim=True
    )  # a common factor of all sums, taken out so that no temperature overflows
    weight = torch.exp((cosine - shift) / temperature)
    return torch.zeros(len(cosine), classes).scatter_add_(1, number, weight).argmax(1)


class Score(NamedTuple):
    """Mean and standard deviation (population form) of the accuracy over the trials, 0..1."""

    mean: float
    deviation: float


def few_shot_accuracy(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    labels_per_class: Sequence[int] = (1, 5),
    trials: int = 20,
    seed: int = 0,
    predictions: dict[int, np.ndarray] | None = None,
) -> dict[int, Score]:
    """Accuracy on the whole test set when only a few training images per class carry a label.

    The classifier is the nearest class mean by cosine: features are centred on the mean of all
    training features (no labels needed) and put on the unit sphere; each class is the mean of its
    few labelled images, and a test image gets the class of the largest cosine. With one label it is
    the nearest neighbour. It has no hyperparameters, so it favours no feature set: raw pixels of
    scikit-learn's digits give 0.65 to 0.66 with one label over the splits tried, against 0.64 for
    logistic regression and for cosine without centring.

    The labelled images of trial number i depend on (seed, i, labels_per_class) and the labels
    alone: every feature set sees the same trials. A class with fewer images than asked gives all
    that it has. predictions: filled with the predicted labels [trials, test images] by
    `labels_per_class`.

    >>> x, y = torch.eye(4).repeat(10, 1), np.arange(40) % 4
    >>> few_shot_accuracy(x, y, x, y, labels_per_class=[1])[1].mean  # with one label a class
    1.0
    """
    train_x, labels = training_set(train_x, train_y)
    test_x, truth = labelled(test_x, test_y, "test", train_y)
    centre = train_x.mean(0)
    train, test = F.normalize(train_x - centre, dim=1), F.normalize(test_x - centre, dim=1)
    classes, number = numbered(labels)
    scores = {}
    for per_class in labels_per_class:
        guesses = []
        for index in map(torch.from_numpy, sample_labels(labels, per_class, trials, seed)):
            means = torch.zeros(len(classes), train.shape[1]).index_add_(
                0, number[index], train[index]
            )
            predicted = (test @ F.normalize(means, dim=1).T).argmax(1)
            guesses.append(classes[predicted.numpy()])
        if predictions is not None:
            predictions[per_class] = np.stack(guesses)
        results = [accuracy(each, truth) for each in guesses]
        scores[per_class] = Score(float(np.mean(results)), float(np.std(results)))
    return scores


def sample_labels(
    labels: Shaped[np.ndarray, " images"], per_class: int, trials: int = 20, seed: int = 0
) -> list[Int[np.ndarray, " chosen"]]:
    """Positions of the labelled images of each trial: `per_class` of every class, without
    replacement.
    """
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    chosen = []
    for trial in range(trials):
        generator = np.random.default_rng([seed, trial, per_class])
        picks = [generator.choice(m, min(per_class, len(m)), replace=False) for m in members]
        chosen.append(np.concatenate(picks).astype(np.int64))
    return chosen
