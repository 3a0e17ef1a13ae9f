"""All protocols on one set of cached features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from nearfar.evaluation.average_precision import Metric
from nearfar.evaluation.few_labels import few_label_accuracy
from nearfar.evaluation.knn import TEMPERATURE, neighbours, vote
from nearfar.evaluation.labelled import Features, Labels, accuracy, labelled, numbered
from nearfar.evaluation.linear import linear_predict
from nearfar.evaluation.linear_sgd import Probe, Progress, linear_sgd_accuracies
from nearfar.evaluation.low_shot import SHOTS, low_shot_precision
from nearfar.evaluation.transfer import STEPS, transfer_accuracy, transfer_sgd_accuracy
from nearfar.messages import did_you_mean

PROTOCOLS = ("knn", "knn_K", "linear", "linear-sgd", "few", "transfer", "transfer-sgd", "low-shot")
WITH_VALIDATION = ("transfer", "transfer-sgd", "low-shot")  # the others fit to the training split alone
FOR_MANY_LABELS = ("transfer", "low-shot")  # the others need one label an image
KNN_DEFAULT = 20


class Choices(NamedTuple):
    """What protocols leave open: the settings of linear-sgd, metric and steps of transfer, and the seed."""

    probe: str | Probe = "saclr-cifar"
    metric: Metric = "accuracy"
    steps: int | None = STEPS
    seed: int = 0
    device: torch.device | str = "cpu"
    knn_temperature: float = TEMPERATURE


def evaluate_features(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    protocols: Sequence[str] = ("knn", "linear", "few"),
    seed: int = 0,
    *,
    validation: tuple[Features, Labels] | None = None,
    choices: Choices | None = None,
    progress: Progress = None,
    predictions: dict[str, np.ndarray] | None = None,
) -> dict[str, float]:
    """Results 0..1 of frozen features, by protocol: accuracies unless it says otherwise.

    knn: key "knn", k = 20 or all training images where they are fewer; knn_K with any K, such as knn_200: the key
    is the protocol's own name. linear: key "linear". few: keys "one_label", "one_label_std", "five_labels",
    "five_labels_std" over 20 trials. linear-sgd, transfer, transfer-sgd: keys "linear_sgd" (from 100 classes on
    "linear_sgd_top5" too), "transfer", "transfer_sgd", the papers' protocols; transfer by the metric of the
    choices. low-shot: mean average precisions "low_shot_16", "low_shot_16_std", ... "low_shot_all".
    Test images of a class that training lacks count as wrong in all of them; images whose label is -1 (missing) are
    left out. validation: a split that transfer chooses on and low-shot adds to the training images. choices: their
    seed is `seed` where they are not given. progress: called with (steps done, in all), for each protocol anew.
    predictions: filled with the predicted label of each labelled test image, by the keys of kNN and linear, and with
    the right ones as "truth".
    ValueError for missing labels, unknown protocols, or more neighbours than training images.
    """
    choices = choices or Choices(seed=seed)
    check_protocols(protocols)
    train_x, labels = labelled(train_x, train_y)
    test_x, truth = labelled(test_x, test_y, "test")
    alone = [name for name in protocols if name not in FOR_MANY_LABELS]
    if alone and labels.ndim > 1:
        raise ValueError(f"{alone[0]} needs one label an image, these have several: choose transfer or low-shot")
    seed, device = choices.seed, choices.device
    results: dict[str, float] = {}
    predicted: dict[str, np.ndarray] = {"truth": truth}
    votes = {name: k for name in protocols if (k := _neighbours_of(name)) is not None}
    if votes:
        if "knn" in votes:  # of nobody's choosing
            votes["knn"] = min(KNN_DEFAULT, len(train_x))
        classes, number = numbered(labels)
        cosine, index = neighbours(train_x, test_x, max(votes.values()))
        for name, k in votes.items():
            winners = vote(cosine[:, :k], number[index[:, :k]], len(classes), choices.knn_temperature)
            predicted[name] = classes[winners.numpy()]
    if "linear" in protocols:
        predicted["linear"] = linear_predict(train_x, labels, test_x, seed=seed)
    results |= {name: accuracy(found, truth) for name, found in predicted.items() if name != "truth"}
    if predictions is not None:
        predictions.update(predicted)
    if "linear-sgd" in protocols:
        right = linear_sgd_accuracies(train_x, labels, test_x, truth, choices.probe, seed, device, progress)
        results["linear_sgd"] = right.top1
        if right.top5 is not None:
            results["linear_sgd_top5"] = right.top5
    if "few" in protocols:
        scores = few_label_accuracy(train_x, labels, test_x, truth, labels_per_class=(1, 5), seed=seed)
        for per_class, key in ((1, "one_label"), (5, "five_labels")):
            results[key], results[f"{key}_std"] = scores[per_class]
    splits = (train_x, labels), validation, (test_x, truth)
    if "transfer" in protocols:
        found = transfer_accuracy(*splits, choices.metric, seed=seed, device=device, progress=progress)
        results["transfer"] = found.score
    if "transfer-sgd" in protocols:
        found = transfer_sgd_accuracy(*splits, choices.metric, choices.steps, seed, device, progress)
        results["transfer_sgd"] = found.score
    if "low-shot" in protocols:
        if validation is not None:
            held_x, held_y = labelled(*validation, "validation")
            train_x, labels = torch.cat([train_x, held_x]), np.concatenate([labels, held_y])
        for shots, score in low_shot_precision(train_x, labels, test_x, truth, seed=seed, progress=progress).items():
            key = f"low_shot_{shots or 'all'}"
            results[key] = score.mean
            if shots is not None:
                results[f"{key}_std"] = score.deviation
    return results


def check_protocols(protocols: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raise ValueError for a name that is neither a protocol on features nor one of the others."""
    known = [*PROTOCOLS, *others]
    for name in protocols:
        if (name not in known or name == "knn_K") and _neighbours_of(name) is None:
            near = did_you_mean(name, known, cutoff=0.6)
            raise ValueError(
                f"unknown protocol {name!r}: {near + ' ' if near else ''}choose among {', '.join(known)} "
                "(such as knn_100)"
            )


def result_names(protocols: Sequence[str], data: str = "") -> list[str]:
    """The keys that protocols write into results.json, finetune's too; data: the name of a data set of torchvision."""
    names = []
    for protocol in protocols:
        name = protocol.replace("-", "_")
        if protocol == "few":
            names += ["one_label", "one_label_std", "five_labels", "five_labels_std"]
        elif protocol == "low-shot":
            shots = [f"low_shot_{shots}" for shots in SHOTS]
            names += [*shots, *(f"{one}_std" for one in shots), "low_shot_all"]
        else:
            top5 = protocol == "linear-sgd" or protocol.startswith("finetune")
            names += [name, f"{name}_top5"] if top5 else [name]
    return [name_with(name, data) for name in names]


def name_with(result: str, data: str) -> str:
    """The key of a result on a data set of torchvision: it ends in its name, a deviation in _std behind that."""
    end = "_std" if result.endswith("_std") else ""
    return f"{result.removesuffix(end)}_{data}{end}" if data else result


def _neighbours_of(protocol: str) -> int | None:
    """k of a kNN protocol, None for the others."""
    if protocol == "knn":
        return KNN_DEFAULT
    number = protocol.removeprefix("knn_")
    return int(number) if protocol.startswith("knn_") and number.isdecimal() and int(number) > 0 else None
