"""Average precision of PASCAL VOC, by eleven points and by the area, and metrics by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Shaped
from sklearn.metrics import precision_recall_curve

from nearfar.evaluation.labelled import accuracy, mean_per_class_accuracy

Metric = Literal["accuracy", "mean_per_class", "eleven_point_map"]


def eleven_point_precision(there: Shaped[np.ndarray, " images"], scores: Float[np.ndarray, " images"]) -> float:
    """The mean of the best precision at a recall of at least 0, 0.1, ... 1 (Everingham et al. 2010, section 4.2).

    there: true for images that show the class. NaN where no image does.

    Differs from Ericsson et al.'s released code: that counts the point of recall 0 and precision 1, which
    scikit-learn's curve ends with, so that recall 0 always gives 1.
    """
    precision, recall = _curve(there, scores)
    return float(np.mean([precision[recall >= level - 1e-9].max() for level in np.linspace(0, 1, 11)]))


def area_precision(there: Shaped[np.ndarray, " images"], scores: Float[np.ndarray, " images"]) -> float:
    """The area below the precision-recall curve made to fall only (VOC from 2010 on). NaN where no image is true."""
    precision, recall = _curve(there, scores)
    best = np.maximum.accumulate(precision)  # of this recall or a larger one: the curve goes from recall 1 downward
    return float(-np.diff(recall, append=0.0) @ best)


def mean_precision(
    kind: Callable[..., float], labels: Int[np.ndarray, "images classes"], scores: Float[np.ndarray, "images classes"]
) -> float:
    """Mean over the classes that some image shows; images labelled 0 (difficult) are left out, as VOC does."""
    each = [kind(y[y != 0] > 0, row[y != 0]) for y, row in zip(labels.T, scores.T, strict=True)]
    return float(np.nanmean(each))


def measure(
    metric: Metric, labels: Shaped[np.ndarray, "images ..."], scores: Float[np.ndarray, "images classes"],
    classes: np.ndarray,
) -> float:  # fmt: skip
    """A metric 0..1 of the scores of images: of the class with the largest one, or of their order for each class."""
    if metric == "eleven_point_map":
        return mean_precision(eleven_point_precision, labels, scores)
    predicted = classes[scores.argmax(1)]
    return (accuracy if metric == "accuracy" else mean_per_class_accuracy)(predicted, labels)


def _curve(there: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall from the lowest threshold to the highest, NaN where there is nothing to find."""
    if not there.any():
        return np.full(1, np.nan), np.ones(1)
    precision, recall, _ = precision_recall_curve(there, scores)
    return precision[:-1], recall[:-1]
