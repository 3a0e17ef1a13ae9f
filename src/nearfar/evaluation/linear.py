"""Linear classifiers on frozen features: L-BFGS, SGD as in the papers, and transfer with a validation split."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from nearfar.evaluation.labelled import (
    Features,
    Labels,
    accuracy,
    features,
    labelled,
    mean_per_class_accuracy,
    numbered,
)

GRID = (0.001, 0.01, 0.1, 1.0, 10.0)  # C, the inverse of the penalty: the strongest penalty comes first
HELD_OUT = 0.2  # share of the training images that chooses among them
SEARCH_ROWS = 10_000  # training images used for the choice at most; the fit itself uses all
FEW_ROWS = 50  # below this there is nothing to choose with
FEW_ROWS_C = 1.0
MAX_ITERATIONS = 200
TOLERANCE = 1e-3  # of the largest gradient entry; smaller ones move the accuracy by less than 0.1 %


def linear_accuracy(
    train_x: Features, train_y: Labels, test_x: Features, test_y: Labels, strength: float | None = None, seed: int = 0
) -> float:
    """Accuracy of a linear classifier on frozen features, 0..1.

    Features are standardised with the training mean and deviation. Test images of a class that training lacks count
    as wrong. See `linear_predict` for the penalty. ValueError when labels are missing or name one class only.
    """
    test_x, truth = labelled(test_x, test_y, "test")
    return accuracy(linear_predict(train_x, train_y, test_x, strength, seed), truth)


def linear_predict(
    train_x: Features, train_y: Labels, test_x: Features, strength: float | None = None, seed: int = 0
) -> Shaped[np.ndarray, " test"]:
    """Predicted label of each test image.

    strength: C, the inverse of the L2 penalty on the summed loss. None chooses it on a random fifth of the training
    images: from 0.001 upward in tens, until the accuracy there falls. One fixed value would be unfair to
    some features: on 10 000 CIFAR-10 images, 3072 raw pixels are best at 0.001 (38.8 % against 28.4 % at 1) and
    256 convolutional features at 1 (51.9 % against 43.4 % at 0.001). The test images are never used for it.
    """
    train_x, labels = labelled(train_x, train_y)
    test = features(test_x, "test")
    if len(np.unique(labels)) < 2:
        raise ValueError("a linear probe needs at least two classes among the training labels, there is one")
    train, test_rows = standardise(train_x, test)
    if strength is None:
        strength = choose_strength(train, labels, seed)
    return fit(train, labels, strength).predict(test_rows)


def standardise(
    train_x: Float[Tensor, "train dim"], *others: Float[Tensor, "_ dim"]
) -> tuple[Float[np.ndarray, "_ dim"], ...]:
    """All arrays shifted and scaled by the training mean and deviation; constant dimensions become 0."""
    mean, deviation = train_x.mean(0), train_x.std(0, correction=0)
    scale = (deviation > 1e-6 * (1 + mean.abs())) / deviation.clamp_min(1e-30)
    return tuple(((x - mean) * scale).numpy() for x in (train_x, *others))


def choose_strength(train: Float[np.ndarray, "train dim"], labels: Shaped[np.ndarray, " train"], seed: int) -> float:
    """The C of `GRID` that is best on held-out training images, going upward until it gets worse."""
    if len(train) < FEW_ROWS:
        return FEW_ROWS_C
    order = np.random.default_rng(seed).permutation(len(train))[:SEARCH_ROWS]
    held, kept = np.split(order, [int(HELD_OUT * len(order))])
    if len(np.unique(labels[kept])) < 2:
        return FEW_ROWS_C
    best, best_score = GRID[0], -1.0
    for strength in GRID:
        score = accuracy(fit(train[kept], labels[kept], strength).predict(train[held]), labels[held])
        if score < best_score:
            break
        if score > best_score:
            best, best_score = strength, score
    return best


def fit(
    train: Float[np.ndarray, "train dim"], labels: Shaped[np.ndarray, " train"], strength: float
) -> LogisticRegression:
    """Logistic regression with an L2 penalty; ValueError when C is not positive."""
    if strength <= 0:
        raise ValueError(f"the strength C of a linear probe must be positive, got {strength}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # MAX_ITERATIONS is part of the protocol
        return LogisticRegression(C=strength, max_iter=MAX_ITERATIONS, tol=TOLERANCE).fit(train, labels)


def linear_sgd_accuracy(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    lr: float = 30.0,
    weight_decay: float = 0.0,
    epochs: int = 100,
    batch_size: int = 256,
    momentum: float = 0.9,
    drop_at: Sequence[int] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> float:
    """Accuracy after the last epoch of a linear layer trained by SGD on frozen features, 0..1.

    The learning rate falls to 0 along a cosine, per step; with `drop_at` it is divided by 10 at these epochs instead.
    Features are used as they are, as in the papers: no standardisation. Weights start from N(0, 0.01^2), bias at 0.
    Last epoch only; the test images are looked at once.
    Settings (methods.md, "Evaluation"): CIFAR lr 30, the default; SACLR on ImageNet lr 0.3, weight decay 1e-6;
    SCE lr 30 with drop_at=(60, 80); SCE on ImageNet lr 0.1 * batch / 256, 90 epochs.

    Differs from the papers: features are computed once, so the probe sees every image in one view, not in a new
    random crop and flip in each epoch.
    """
    train_x, labels = labelled(train_x, train_y)
    test_x, truth = labelled(test_x, test_y, "test")
    if min(lr, epochs, batch_size) <= 0:
        raise ValueError(f"lr, epochs and batch_size must be positive, got {lr}, {epochs} and {batch_size}")
    classes, number = numbered(labels)
    x, y = train_x.to(device), number.to(device)
    generator = torch.Generator().manual_seed(seed)
    weight = (0.01 * torch.randn(len(classes), x.shape[1], generator=generator)).to(device).requires_grad_()
    bias = torch.zeros(len(classes), device=device, requires_grad=True)
    optimiser = torch.optim.SGD([weight, bias], lr=lr, momentum=momentum, weight_decay=weight_decay)
    steps_per_epoch = math.ceil(len(x) / batch_size)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(device)
        for step, index in enumerate(order.split(batch_size)):
            if drop_at is None:
                done = (epoch * steps_per_epoch + step) / (epochs * steps_per_epoch)
                factor = (1 + math.cos(math.pi * done)) / 2
            else:
                factor = 0.1 ** sum(epoch >= at for at in drop_at)
            optimiser.param_groups[0]["lr"] = lr * factor
            optimiser.zero_grad()
            F.cross_entropy(F.linear(x[index], weight, bias), y[index]).backward()
            optimiser.step()
    with torch.no_grad():
        predicted = F.linear(test_x.to(device), weight, bias).argmax(1).cpu()
    return accuracy(classes[predicted.numpy()], truth)


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
