"""All protocols on one set of cached features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.evaluation.finetune import FINETUNE, percent_of
from nearfar.evaluation.knn import TEMPERATURE, few_shot_accuracy, vote
from nearfar.evaluation.labelled import (
    Features,
    Labels,
    accuracy,
    balanced_accuracy,
    labelled,
    numbered,
    training_set,
)
from nearfar.evaluation.linear import (
    Probe,
    linear_predict,
    linear_sgd_accuracies,
    of_labelled,
)
from nearfar.evaluation.results import BALANCED, DEVIATION, TOP5
from nearfar.messages import did_you_mean
from nearfar.neighbours import nearest_rows

PROTOCOLS = ("knn", "knn_K", "linear", "linear-sgd", "few")
KNN_DEFAULT = 20
FEW = ("one_label", "five_labels")


def evaluate_features(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    protocols: Sequence[str] = ("knn", "linear", "few"),
    seed: int = 0,
    *,
    probe: str | Probe = "saclr-cifar",
    knn_temperature: float = TEMPERATURE,
    device: torch.device | str = "cpu",
    predictions: dict[str, np.ndarray] | None = None,
    train_views: Float[Tensor, "views train dim"] | None = None,
) -> dict[str, float]:
    """Accuracies 0..1 of frozen features, by protocol.

    knn: key "knn", k = 20, or all training images if they are fewer; knn_K with any K, such as
    knn_200: the key is the protocol's own name. linear: key "linear". few: keys "one_label",
    "one_label_std", "five_labels", "five_labels_std" over 20 trials. linear-sgd, the papers'
    protocol: key "linear_sgd", from 100 classes on "linear_sgd_top5" too. Test images of a class
    without training images count as wrong in all of them; images with the label -1 (missing) are
    left out. Where the classes of the test images are of unequal size, each accuracy has a balanced
    one, the mean over the classes, whose key ends with "_balanced". probe, device: of linear-sgd.
    knn_temperature: of the votes. train_views: features of random views of the training images, on
    which linear and linear-sgd fit in place of `train_x`.
    predictions: filled with the predicted label of each labelled test image, by the keys of kNN,
    linear and few (of each trial), and with the true labels as "truth". ValueError for missing
    labels, unknown protocols, or more neighbours than training images.

    >>> x, y = torch.eye(4).repeat(10, 1), np.arange(40) % 4
    >>> evaluate_features(x, y, x, y, protocols=["knn", "linear"])
    {'knn': 1.0, 'linear': 1.0}
    """
    check_protocols(protocols)
    train_x, labels = training_set(train_x, train_y)
    views = None if train_views is None else of_labelled(train_views, train_y)
    test_x, truth = labelled(test_x, test_y, "test", train_y)
    results: dict[str, float] = {}
    predicted: dict[str, np.ndarray] = {"truth": truth}
    votes = {name: k for name in protocols if (k := _neighbours_of(name)) is not None}
    if votes:
        if "knn" in votes:  # nobody chose this k
            votes["knn"] = min(KNN_DEFAULT, len(train_x))
        classes, number = numbered(labels)
        near = nearest_rows(train_x, test_x, max(votes.values()))
        for name, k in votes.items():
            winners = vote(
                1 - near.distance[:, :k], number[near.index[:, :k]], len(classes), knn_temperature
            )
            predicted[name] = classes[winners.numpy()]
    if "linear" in protocols:
        predicted["linear"] = linear_predict(train_x, labels, test_x, seed=seed, train_views=views)
    for name, guesses in predicted.items():
        if name != "truth":
            results[name] = accuracy(guesses, truth)
            _add_balanced(results, name, guesses, truth)
    if predictions is not None:
        predictions.update(predicted)
    if "linear-sgd" in protocols:
        right = linear_sgd_accuracies(
            train_x, labels, test_x, truth, probe, seed, device, train_views=views
        )
        results |= right.named("linear-sgd")
    if "few" in protocols:
        tried: dict[int, np.ndarray] = {}
        scores = few_shot_accuracy(
            train_x, labels, test_x, truth, (1, 5), seed=seed, predictions=tried
        )
        for per_class, key in ((1, "one_label"), (5, "five_labels")):
            results[key], results[key + DEVIATION] = scores[per_class]
            _add_balanced(results, key, tried[per_class], truth)
            if predictions is not None:
                predictions[key] = tried[per_class]
    return {key: results[key] for key in result_names(protocols) if key in results}


def _add_balanced(
    results: dict[str, float], name: str, predicted: np.ndarray, truth: np.ndarray
) -> None:
    balanced = balanced_accuracy(predicted, truth)
    if balanced is not None:
        results[name + BALANCED] = balanced


def largest_class(
    train_y: Labels, test_y: Labels, keys: Iterable[str] = ("accuracy",)
) -> dict[str, float]:
    """Accuracies 0..1 of always answering the class that most training images have, by the keys of
    results.

    Keys of accuracies with few labels per class, whose classifiers know nothing of the sizes, are
    left out, and those of deviations and top-5 accuracies. A key of a balanced accuracy ends with
    "_balanced". Of classes of one size the first is taken. Images with a negative label (missing)
    are left out.

    >>> largest_class([0, 0, 0, 1], [0, 0, 1, 1], ["knn", "knn_balanced", "one_label"])
    {'knn': 0.5, 'knn_balanced': 0.5}
    """
    train, truth = (_known(labels) for labels in (train_y, test_y))
    classes, counts = np.unique(train, return_counts=True)
    right = truth == classes[counts.argmax()]
    balanced = float(right.any()) / len(np.unique(truth))
    return {
        key: balanced if key.endswith(BALANCED) else float(right.mean())
        for key in keys
        if not key.startswith(FEW) and not key.endswith((DEVIATION, TOP5))
    }


def _known(labels: Labels) -> np.ndarray:
    values = np.asarray(labels)
    return values[values >= 0] if np.issubdtype(values.dtype, np.number) else values


def check_protocols(protocols: Sequence[str]) -> None:
    """Raise ValueError for a name that is no protocol on frozen features."""
    every = f"choose among {', '.join([*PROTOCOLS, *FINETUNE])} (such as knn_100)"
    for name in protocols:
        if name not in ("linear", "linear-sgd", "few") and _neighbours_of(name) is None:
            near = did_you_mean(name, ("knn", "linear", "linear-sgd", *FINETUNE), cutoff=0.5)
            raise ValueError(
                f"there is no protocol {name!r}: " + " ".join(filter(None, (near, every)))
            )


def result_names(protocols: Sequence[str]) -> list[str]:
    """Return the keys that protocols write into results.json, of fine-tuning too; of few classes
    and of classes of equal size, those of top-5 and balanced accuracies are not written.

    Raises ValueError for unknown protocols.

    >>> result_names(["knn", "finetune-10"])
    ['knn', 'knn_balanced', 'finetune_10', 'finetune_10_top5', 'finetune_10_balanced']
    """
    check_protocols([name for name in protocols if percent_of(name) is None])
    names = []
    for protocol in protocols:
        if protocol == "few":
            names += [f"{few}{end}" for few in FEW for end in ("", DEVIATION, BALANCED)]
        else:
            name = protocol.replace("-", "_")
            fifth = [name + TOP5] if name.startswith(("linear_sgd", "finetune")) else []
            names += [name, *fifth, name + BALANCED]
    return names


def _neighbours_of(protocol: str) -> int | None:
    """k of a kNN protocol, None for the others."""
    if protocol == "knn":
        return KNN_DEFAULT
    number = protocol.removeprefix("knn_")
    return (
        int(number)
        if protocol.startswith("knn_") and number.isdecimal() and int(number) > 0
        else None
    )
