"""Test images that are copies of training images, and what they do to the accuracies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor

from nearfar.data import Images
from nearfar.evaluation import extract
from nearfar.neighbours import duplicate_threshold, find_leaks, near_duplicate_threshold
from nearfar.networks import Encoder
from nearfar.training.seeding import stream


def describe_leaks(
    encoder: Encoder | None,
    train: Images,
    test: Images,
    train_x: Tensor,
    test_x: Tensor,
    predictions: Mapping[str, np.ndarray],
) -> str:
    """Say in one line what copies of training images among the test images do to accuracies; ""
    without any.

    encoder: None for vectors that were made elsewhere: pairs within the distance of near-duplicates
    are compared then. The predictions are as `evaluate_features` fills them. Where not all
    candidates could be compared, the line says how many copies there are at least, and no accuracy
    without them.
    """
    if encoder is None:
        most = near_duplicate_threshold(train_x, stream(0, "pairs"))
    else:
        most = duplicate_threshold(partial(extract, encoder), train, train_x, stream(0, "altered"))
    leaks, complete = find_leaks(train, test, train_x, test_x, most)
    if not leaks and not complete:
        return (
            "no copy of a training image was found among the test images, but only the nearest "
            "pairs were compared: nearfar check compares all"
        )
    if not leaks:
        return ""
    first, rows = leaks[0], {leak.second for leak in leaks}
    line = "" if complete else "at least "
    line += f"{len(rows)} of {len(test)} test images have a copy among the training images, "
    line += f"first {test.names[first.second]} (of {train.names[first.first]})"
    others = [row for row in range(len(test)) if row not in rows]
    if others and complete:
        truth = predictions["truth"]
        right = {
            name: predicted == truth
            for name, predicted in predictions.items()
            if name != "truth" and predicted.ndim == 1
        }
        without = [
            f"{name} {hits[others].mean():.3f} and not {hits.mean():.3f}"
            for name, hits in right.items()
        ]
        line += f": without them {', '.join(without)}" if without else ""
    return f"{line}; nearfar check lists them"
