"""`transfer` and `transfer-sgd`: linear classifiers on many data sets, with penalty or rate chosen on validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearfar.evaluation.average_precision import Metric, measure
from nearfar.evaluation.labelled import Features, Labels, labelled
from nearfar.evaluation.linear_sgd import Probe, Progress, best_rate, held_out_rows, log_spaced, train_heads
from nearfar.evaluation.logistic import regularisation_path

PENALTIES = log_spaced(1e-6, 1e5, 45)
RATES = log_spaced(0.1, 100.0, 7)
STEPS = 5_000  # of SGD where no table says otherwise: LORAC's for small data sets

Labelled = tuple[Features, Labels]


class Transfer(NamedTuple):
    """The metric on the test split, 0..1, and the penalty or learning rate that the validation split chose."""

    score: float
    chosen: float


def transfer_accuracy(
    train: Labelled,
    validation: Labelled | None,
    test: Labelled,
    metric: Metric = "accuracy",
    penalties: Sequence[float] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = None,
) -> Transfer:
    """Transfer by logistic regression on frozen features, as in SCE, section 4.4 and Table 9.

    The protocol is BYOL's (appendix D.3) in the form of Ericsson, Gouk and Hospedales (CVPR 2021, section 4.1 and
    released code): L-BFGS on the features as they are, without augmentation or standardisation; of 45 penalties,
    log-spaced from 1e-6 to 1e5, that with the best metric on the validation split is fitted again on training and
    validation images and tested once. penalties: others, each on the summed loss, 1 / C of scikit-learn.

    Each split is (features [images, dim], labels): one label an image, or for the eleven-point average precision a
    matrix [images, classes] of 1, -1 and 0 (not known), with a logistic regression for each class. validation: None
    takes a random fifth of the training images, as the released code does. ValueError for missing labels, one class.

    Differs from the released code: fits go from the largest penalty down, each from where the last one ended, and so
    come nearer to their optima within the 100 iterations that both allow; images that are difficult for a class are
    left out for it.
    """
    splits = _splits(train, validation, test, seed)
    (train_x, train_y), (held_x, held_y), (test_x, test_y) = splits
    order = sorted(penalties or PENALTIES, reverse=True)
    both_x, both_y = torch.cat([train_x, held_x]), np.concatenate([train_y, held_y])
    scores = []
    classes, target = _targets(train_y)
    for classify in regularisation_path(train_x, target, len(classes), order, device):
        scores.append(measure(metric, held_y, classify(held_x).numpy(), classes))
        if progress is not None:
            progress(len(scores), 2 * len(order))
    best = max(range(len(order)), key=lambda i: (scores[i], i))  # of equal ones the smallest penalty
    classes, target = _targets(both_y)
    path = regularisation_path(both_x, target, len(classes), order[: best + 1], device)
    for done, fitted in enumerate(path, len(order) + 1):
        classify = fitted
        if progress is not None:
            progress(done, len(order) + best + 1)
    return Transfer(measure(metric, test_y, classify(test_x).numpy(), classes), order[best])


def transfer_sgd_accuracy(
    train: Labelled,
    validation: Labelled | None,
    test: Labelled,
    metric: Metric = "accuracy",
    steps: int | None = STEPS,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = None,
) -> Transfer:
    """Transfer by SGD on frozen features, as in LORAC, section 6.1 and Table 2.

    Batches of 256, momentum 0.9, no weight decay, and the best of 7 learning rates, log-spaced from 0.1 to 100, which
    falls along a cosine over 5,000 or 30,000 steps, by the data set; all rates are one batched head. The validation
    split chooses, and the chosen rate trains again on both. steps: of each fit, None for 100 epochs. Else as
    `transfer_accuracy`, for one label an image.

    Differs from the paper: it does not say which images chose the rate; every image is seen in one view.
    """
    (train_x, train_y), (held_x, held_y), (test_x, test_y) = _splits(train, validation, test, seed)
    if train_y.ndim > 1:
        raise ValueError("transfer-sgd needs one label an image; for several choose transfer or low-shot")
    probe = Probe("LORAC, section 6.1, Table 2", RATES, steps=steps)
    both_x, both_y = torch.cat([train_x, held_x]), np.concatenate([train_y, held_y])
    classes, number = _targets(both_y)
    choice = train_x, number[: len(train_x)], held_x, number[len(train_x) :]
    probe = best_rate(probe, *choice, len(classes), seed, device, progress)
    weight, bias = train_heads(probe, both_x, number, len(classes), seed, device, progress)
    scores = test_x @ weight[0].cpu().T + bias[0].cpu()
    return Transfer(measure(metric, test_y, scores.numpy(), classes), probe.lrs[0])


def _splits(
    train: Labelled, validation: Labelled | None, test: Labelled, seed: int
) -> tuple[tuple[Tensor, np.ndarray], ...]:
    """The three splits, checked; the second one a random fifth of the first where there is none."""
    train_x, train_y = labelled(*train)
    if validation is None:
        held, kept = held_out_rows(len(train_x), seed)
        held_x, held_y = train_x[held], train_y[held.numpy()]
        train_x, train_y = train_x[kept], train_y[kept.numpy()]
    else:
        held_x, held_y = labelled(*validation, "validation")
    if train_y.ndim == 1 and len(np.unique(train_y)) < 2:
        raise ValueError("transfer needs at least two classes among the training labels, there is one")
    return (train_x, train_y), (held_x, held_y), labelled(*test, "test")


def _targets(labels: np.ndarray) -> tuple[np.ndarray, Tensor]:
    """The classes, and what logistic regression is fitted to."""
    if labels.ndim > 1:
        return np.arange(labels.shape[1]), torch.from_numpy(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    return classes, torch.from_numpy(numbers.reshape(-1).astype(np.int64))
