"""Labelled features: what every protocol checks before it measures anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.data.labels import negative_is_class, plain_labels
from nearfar.evaluation.results import BALANCED, TOP5
from nearfar.pairs.arithmetic import rows_not_finite

Features: TypeAlias = Tensor | np.ndarray
Labels: TypeAlias = Tensor | np.ndarray | Sequence | None
UNEQUAL = 1.5  # times the smallest class: from here on classes are of unequal size
# classes from which top-5 accuracy is given too, as the papers do on ImageNet and ImageNet100
MANY = 100


class Accuracies(NamedTuple):
    """Shares of images, 0..1, whose label is a classifier's first, or among its first five (None:
    few classes).

    balanced: the mean over classes of the first; None where all classes have about the same size.
    """

    top1: float
    top5: float | None
    balanced: float | None = None

    def named(self, protocol: str) -> dict[str, float]:
        """Return them by their keys in results.json."""
        name = protocol.replace("-", "_")
        shares = {name: self.top1, name + TOP5: self.top5, name + BALANCED: self.balanced}
        return {key: share for key, share in shares.items() if share is not None}


def features(x: Features, name: str) -> Float[Tensor, "images dim"]:
    """Features [images, dim] of any float dtype as float32 on the CPU; `name` says in errors whose
    they are.

    ValueError for another shape, no images, or numbers that are not finite.
    """
    tensor = torch.as_tensor(x).detach().to("cpu", torch.float32)
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(
            f"{name} features must be [images, dim] with at least one image, got "
            f"{tuple(tensor.shape)}"
        )
    if bad := rows_not_finite(tensor).tolist():
        row, count = bad[0], len(bad)
        raise ValueError(
            f"{name} features are not finite (NaN, infinite or beyond float32): row {row} "
            f"is the first of {count}"
        )
    return tensor


def labelled(
    x: Features, y: Labels, name: str = "training", beside: Labels = None
) -> tuple[Float[Tensor, "images dim"], Shaped[np.ndarray, " images"]]:
    """Checked features of the images that have a label, and their labels, which may be numbers or
    strings.

    Missing labels are left out: None, NaN, "", and negative numbers unless these are classes, such
    as -1 beside 1 alone (`nearfar.data.labels`). beside: the labels of other images, by which that
    is decided as well. ValueError when no image has a label, or labels and images differ in number.
    """
    none = (
        f"the {name} images have no labels, and accuracy needs them: "
        "look at the run's health and its map instead, or give labelled images"
    )
    if y is None:
        raise ValueError(none)
    checked = features(x, name)
    labels, known = plain_labels(y, f"what is given for {name} labels")
    if labels.shape != (len(checked),):
        raise ValueError(
            f"{len(checked)} {name} images need {len(checked)} labels, got shape {labels.shape}"
        )
    if np.issubdtype(labels.dtype, np.number):
        values = set(labels[known].tolist())
        if beside is not None:
            others, of_others = plain_labels(beside, "what is given for labels")
            values |= set(others[of_others].tolist()) if others.dtype.kind in "iu" else set()
        if not negative_is_class(values):
            known &= labels >= 0
    if not known.any():
        raise ValueError(none)
    if known.all():
        return checked, labels
    return checked[torch.from_numpy(known)], labels[known]


def training_set(
    x: Features, y: Labels
) -> tuple[Float[Tensor, "images dim"], Shaped[np.ndarray, " images"]]:
    """The same of training images; ValueError for labels of one class only, which tell nothing
    apart.
    """
    checked, labels = labelled(x, y)
    if len(np.unique(labels)) < 2:
        raise ValueError(
            "a probe needs at least two classes among the training labels, there is one"
        )
    return checked, labels


def numbered(labels: Shaped[np.ndarray, " images"]) -> tuple[np.ndarray, Tensor]:
    """The classes in sorted order, and each image's class as a number 0..classes-1."""
    classes, numbers = np.unique(labels, return_inverse=True)
    return classes, torch.from_numpy(numbers.reshape(-1).astype(np.int64))


def accuracy(
    predicted: Shaped[np.ndarray, " images"], labels: Shaped[np.ndarray, " images"]
) -> float:
    """Share of images whose predicted label is right, 0..1.

    Classes come from the training labels, so a test image of a class that training lacks counts as
    wrong.
    """
    return float(np.mean(predicted == labels))


def balanced_accuracy(
    predicted: Shaped[np.ndarray, "*trials images"], labels: Shaped[np.ndarray, " images"]
) -> float | None:
    """Mean over the classes of the share of their images whose predicted label is right, 0..1.

    Of several trials the mean. None where the largest class has less than 1.5 times the images of
    the smallest, so that this would say what the accuracy does.
    """
    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if counts.max() < UNEQUAL * counts.min():
        return None
    right = (predicted == labels).reshape(-1, len(labels)).mean(0)
    return float(np.mean(np.bincount(number, right) / counts))


def top_accuracies(
    scores: Float[Tensor, "images classes"],
    classes: np.ndarray,
    labels: Shaped[np.ndarray, " images"],
) -> Accuracies:
    """Top-1 accuracy of a classifier's scores, balanced too, and top-5 where there are at least 100
    classes.
    """
    predicted = classes[scores.argmax(1).numpy()]
    top1, balanced = accuracy(predicted, labels), balanced_accuracy(predicted, labels)
    if len(classes) < MANY:
        return Accuracies(top1, None, balanced)
    five = classes[scores.topk(5).indices.numpy()]
    return Accuracies(top1, float(np.mean((five == labels[:, None]).any(1))), balanced)
