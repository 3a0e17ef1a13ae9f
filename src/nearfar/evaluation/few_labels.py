"""Accuracy from one or a few labels per class, averaged over trials of the labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int, Shaped

from nearfar.evaluation.labelled import Features, Labels, accuracy, labelled, numbered


class Score(NamedTuple):
    """Mean and standard deviation (population form) of the accuracy over the trials, 0..1."""

    mean: float
    deviation: float


def few_label_accuracy(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    labels_per_class: Sequence[int] = (1, 5),
    trials: int = 20,
    seed: int = 0,
) -> dict[int, Score]:
    """Accuracy on the whole test set when only a few training images per class carry a label.

    The classifier is the nearest class mean by cosine: features are centred on the mean of all training features
    (no labels needed) and put on the unit sphere; each class is the mean of its few labelled images, and a test image
    gets the class of the largest cosine. With one label it is the nearest neighbour. It has no hyper-parameters, so
    it favours no feature set: raw pixels of scikit-learn's digits give 0.65 to 0.66 with one label over the splits
    tried, against 0.64 for logistic regression and for cosine without centring.

    The labelled images of trial number i depend on (seed, i, labels_per_class) and the labels alone: every feature
    set sees the same trials. A class with fewer images than asked gives all that it has.
    """
    train_x, labels = labelled(train_x, train_y)
    test_x, truth = labelled(test_x, test_y, "test")
    centre = train_x.mean(0)
    train, test = F.normalize(train_x - centre, dim=1), F.normalize(test_x - centre, dim=1)
    classes, number = numbered(labels)
    scores = {}
    for per_class in labels_per_class:
        results = []
        for chosen in sample_labels(labels, per_class, trials, seed):
            index = torch.from_numpy(chosen)
            means = torch.zeros(len(classes), train.shape[1]).index_add_(0, number[index], train[index])
            predicted = (test @ F.normalize(means, dim=1).T).argmax(1)
            results.append(accuracy(classes[predicted.numpy()], truth))
        scores[per_class] = Score(float(np.mean(results)), float(np.std(results)))
    return scores


def sample_labels(
    labels: Shaped[np.ndarray, " images"], per_class: int, trials: int = 20, seed: int = 0
) -> list[Int[np.ndarray, " chosen"]]:
    """Positions of the labelled images of each trial: `per_class` of every class, without replacement."""
    if per_class < 1 or trials < 1:
        raise ValueError(f"labels per class and trials must be at least 1, got {per_class} and {trials}")
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    chosen = []
    for trial in range(trials):
        generator = np.random.default_rng([seed, trial, per_class])
        picks = [generator.choice(m, min(per_class, len(m)), replace=False) for m in members]
        chosen.append(np.concatenate(picks).astype(np.int64))
    return chosen
