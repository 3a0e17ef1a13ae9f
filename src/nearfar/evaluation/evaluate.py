"""All protocols on one pair of cached feature sets."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.evaluation.few_labels import few_label_accuracy
from nearfar.evaluation.knn import neighbours, vote
from nearfar.evaluation.labelled import Features, Labels, accuracy, labelled, numbered
from nearfar.evaluation.linear import linear_accuracy, linear_sgd_accuracy

PROTOCOLS = ("knn", "linear", "sgd", "few", "knn_K")
KNN_DEFAULT = 20


def evaluate_features(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    protocols: Sequence[str] = ("knn", "linear", "few"),
    seed: int = 0,
) -> dict[str, float]:
    """Accuracies 0..1 of frozen features, by protocol.

    knn: key "knn", k = 20; knn_K with any K, such as knn_200: the key is the protocol's own name. linear: key "linear".
    sgd: key "linear_sgd", the papers' protocol. few: keys "one_label", "one_label_std", "five_labels",
    "five_labels_std" over 20 trials. Test images of a class that training lacks count as wrong in all of them; images
    whose label is -1 (missing) are left out.
    ValueError for missing labels, unknown protocols, or more neighbours than training images.
    """
    ks = check_protocols(protocols)
    train_x, labels = labelled(train_x, train_y)
    test_x, truth = labelled(test_x, test_y, "test")
    results: dict[str, float] = {}
    votes = {name: k for name, k in ks.items() if k is not None}
    if votes:
        classes, number = numbered(labels)
        cosine, index = neighbours(train_x, test_x, max(votes.values()))
        for name, k in votes.items():
            results[name] = accuracy(classes[vote(cosine[:, :k], number[index[:, :k]], len(classes)).numpy()], truth)
    if "linear" in protocols:
        results["linear"] = linear_accuracy(train_x, labels, test_x, truth, seed=seed)
    if "sgd" in protocols:
        results["linear_sgd"] = linear_sgd_accuracy(train_x, labels, test_x, truth, seed=seed)
    if "few" in protocols:
        scores = few_label_accuracy(train_x, labels, test_x, truth, labels_per_class=(1, 5), seed=seed)
        for per_class, key in ((1, "one_label"), (5, "five_labels")):
            results[key], results[f"{key}_std"] = scores[per_class]
    return results


def check_protocols(protocols: Sequence[str]) -> dict[str, int | None]:
    """Return each protocol with its number of neighbours, None for the others; ValueError for an unknown name."""
    return {name: _neighbours_of(name) for name in protocols}


def _neighbours_of(protocol: str) -> int | None:
    """k of a kNN protocol, None for the others; ValueError for a name that is neither."""
    if protocol == "knn":
        return KNN_DEFAULT
    if protocol.startswith("knn_") and protocol[4:].isdecimal() and int(protocol[4:]) > 0:
        return int(protocol[4:])
    if protocol not in PROTOCOLS or protocol == "knn_K":
        raise ValueError(f"unknown protocol {protocol!r}: choose among {', '.join(PROTOCOLS)} (such as knn_100)")
    return None
