"""`low-shot`: a linear SVM for each class, from a few images of each (VOC07)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from sklearn.svm import LinearSVC

from nearfar.evaluation.average_precision import area_precision, mean_precision
from nearfar.evaluation.few_labels import Score
from nearfar.evaluation.labelled import Features, Labels, labelled
from nearfar.evaluation.linear_sgd import Progress

SHOTS = (16, 32, 64)
DRAWS = 5
COST = 0.5  # C of the SVMs


def low_shot_precision(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    shots: Sequence[int] = SHOTS,
    draws: int | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> dict[int | None, Score]:
    """Mean average precision of linear SVMs from so many images a class, and from all of them (key None).

    The protocol of SCE, section 4.4 and Table 10, which follows ReSSL and so the released code of PCL (Li et al., ICLR
    2021): features of length 1; for each class one linear SVM with the squared hinge loss, C = 0.5 and positives that
    count twice, against all other images drawn; k positives are drawn for each class, with all of their labels, and an
    image drawn for two classes is there twice; the mean and deviation (population form) of 5 draws. The average
    precision is the area below the curve made to fall only. Labels: [images, classes] with 1, -1 and 0, which counts
    as -1 as in that code, or one label an image. A class with fewer images gives all that it has.

    A class that training lacks is found by chance: its precision is its share of the test images.
    """
    train, train_y = labelled(train_x, train_y)
    test, test_y = labelled(test_x, test_y, "test")
    classes = np.arange(train_y.shape[1]) if train_y.ndim > 1 else np.unique(np.concatenate([train_y, test_y]))
    fit, held = _signs(train_y, classes), _signs(test_y, classes)
    rows, tests = F.normalize(train, dim=1).numpy(), F.normalize(test, dim=1).numpy()
    plans: list[tuple[int | None, int]] = [(k, draw) for k in shots for draw in range(draws or DRAWS)] + [(None, 0)]
    found: dict[int | None, list[float]] = {}
    for done, (k, draw) in enumerate(plans, 1):
        chosen = np.arange(len(fit)) if k is None else draw_positives(fit, k, [seed, draw, k])
        scores = _svm_scores(rows[chosen], fit[chosen], tests)
        found.setdefault(k, []).append(mean_precision(area_precision, held, scores))
        if progress is not None:
            progress(done, len(plans))
    return {k: Score(float(np.mean(values)), float(np.std(values))) for k, values in found.items()}


def draw_positives(
    labels: Int[np.ndarray, "images classes"], k: int, seed: Sequence[int]
) -> Int[np.ndarray, " chosen"]:
    """Rows of k images of each class, class by class, without replacement within one."""
    generator = np.random.default_rng(list(seed))
    members = [np.flatnonzero(column > 0) for column in labels.T]
    return np.concatenate([generator.permutation(rows)[:k] for rows in members])


def _signs(labels: Shaped[np.ndarray, "images ..."], classes: np.ndarray) -> Int[np.ndarray, "images classes"]:
    """1 where an image shows a class and -1 where not."""
    shown = labels > 0 if labels.ndim > 1 else labels[:, None] == classes
    return np.where(shown, 1, -1)


def _svm_scores(
    rows: Float[np.ndarray, "images dim"],
    labels: Int[np.ndarray, "images classes"],
    test: Float[np.ndarray, "test dim"],
) -> Float[np.ndarray, "test classes"]:
    """The decision function of each class's SVM; a class that all images or none of them show has nothing to tell."""
    scores = np.zeros((len(test), labels.shape[1]))
    for number, column in enumerate(labels.T):
        if len(np.unique(column)) == 2:
            svm = LinearSVC(C=COST, class_weight={1: 2, -1: 1}, dual=True, max_iter=2000, random_state=0)
            scores[:, number] = svm.fit(rows, column).decision_function(test)
    return scores
