"""Nearest neighbours by cosine, weighted votes, in bounded memory (methods.md, "Evaluation")."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from nearfar.evaluation.labelled import Features, Labels, accuracy, features, labelled, numbered
from nearfar.neighbours import nearest_rows

TEMPERATURE = 0.07  # of the weights exp(cos / temperature): Wu et al. 2018, and most tables since


def knn_accuracy(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    k: int = 20,
    temperature: float = TEMPERATURE,
    chunk: int = 2048,
) -> float:
    """Accuracy of the weighted vote of the k nearest training images, 0..1.

    Each neighbour votes for its class with weight exp(cos / temperature); see `knn_predict`. Test images of a class
    that training lacks count as wrong. ValueError when labels are missing, or k is below one or above the number of
    training images.
    """
    test_x, truth = labelled(test_x, test_y, "test")
    return accuracy(knn_predict(train_x, train_y, test_x, k, temperature, chunk), truth)


def knn_predict(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    k: int = 20,
    temperature: float = TEMPERATURE,
    chunk: int = 2048,
) -> Shaped[np.ndarray, " test"]:
    """Predicted label of each test image, one of the training labels.

    Features [images, dim], compared by cosine. Memory beyond the features and one normalised copy of them: a few
    tiles of at most chunk x chunk pairs and images x k neighbours.
    """
    train_x, labels = labelled(train_x, train_y)
    classes, number = numbered(labels)
    cosine, index = neighbours(train_x, features(test_x, "test"), k, chunk)
    return classes[vote(cosine, number[index], len(classes), temperature).numpy()]


def neighbours(
    train_x: Float[Tensor, "train dim"], test_x: Float[Tensor, "test test_dim"], k: int, chunk: int = 2048
) -> tuple[Float[Tensor, "test k"], Int[Tensor, "test k"]]:
    """Cosine and position of the k nearest training rows of each test row, nearest first; see `nearest_rows`."""
    if not 1 <= k <= len(train_x):
        raise ValueError(
            f"k = {k} neighbours cannot be taken from {len(train_x)} training images: choose k from 1 to {len(train_x)}"
        )
    if train_x.shape[1] != test_x.shape[1]:
        raise ValueError(
            f"training features have {train_x.shape[1]} dimensions and test features {test_x.shape[1]}: "
            "take both from the same encoder"
        )
    found = nearest_rows(train_x, test_x, k, chunk=chunk)
    return 1 - found.distance, found.index


def vote(
    cosine: Float[Tensor, "test k"], number: Int[Tensor, "test k"], classes: int, temperature: float = TEMPERATURE
) -> Int[Tensor, " test"]:
    """Class number with the largest sum of exp(cos / temperature) over the neighbours."""
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    shift = cosine.amax(1, keepdim=True)  # a common factor of all sums, taken out so that no temperature overflows
    weight = torch.exp((cosine - shift) / temperature)
    return torch.zeros(len(cosine), classes).scatter_add_(1, number, weight).argmax(1)
