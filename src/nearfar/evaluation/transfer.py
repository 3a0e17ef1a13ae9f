"""Transfer to another data set: logistic regression with the penalty chosen on a validation split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nearfar.evaluation.labelled import Features, Labels, accuracy, labelled, mean_per_class_accuracy
from nearfar.evaluation.linear import fit, standardise

STRENGTHS = tuple(10.0 ** (half / 2) for half in range(-8, 7))  # C, the inverse of the penalty: 1e-4 to 1e3


@dataclass(frozen=True)
class Transfer:
    """Accuracies 0..1 on the test split, and the C that the validation split chose."""

    accuracy: float
    mean_per_class: float
    strength: float


def transfer_accuracy(
    train: tuple[Features, Labels],
    validation: tuple[Features, Labels],
    test: tuple[Features, Labels],
    strengths: Sequence[float] = STRENGTHS,
) -> Transfer:
    """Transfer accuracy of frozen features, each split given as (features [images, dim], labels [images]).

    L-BFGS logistic regression on standardised features for each C of `strengths`; the one with the best mean-per-class
    accuracy on the validation split is fitted again on training and validation images together and tested once
    (the protocol of the transfer tables on Aircraft, Caltech-101, Flowers and Pets). ValueError as in
    `linear_accuracy`.
    """
    train_x, train_y = labelled(*train)
    validation_x, validation_y = labelled(*validation, "validation")
    test_x, test_y = labelled(*test, "test")
    if len(np.unique(train_y)) < 2:
        raise ValueError("transfer needs at least two classes among the training labels, there is one")
    fitted, held = standardise(train_x, validation_x)
    scores = [mean_per_class_accuracy(fit(fitted, train_y, c).predict(held), validation_y) for c in strengths]
    strength = strengths[int(np.argmax(scores))]
    both, last = standardise(torch.cat([train_x, validation_x]), test_x)
    predicted = fit(both, np.concatenate([train_y, validation_y]), strength).predict(last)
    return Transfer(accuracy(predicted, test_y), mean_per_class_accuracy(predicted, test_y), strength)
