"""Transfer protocols on labelled images: open the sets, measure every encoder, note the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from nearfar import Run
from nearfar.data import list_splits
from nearfar.embeddings import Opening, resolve
from nearfar.networks import Encoder
from nearfar.progress import waiting
from nearfar.tools.evaluate.labelled_sets import LabelledSets, divide
from nearfar.tools.evaluate.table import record
from nearfar_papers.protocols import Metric, protocol_results
from nearfar_papers.standard_sets import (
    OWN_DATA,
    StandardSet,
    features_in_pieces,
    name_with,
    open_standard,
    standard_set,
)


@dataclass(frozen=True)
class TransferSets:
    """Labelled images for the transfer protocols, and how they are measured.

    name: of a data set of torchvision, "" for any other.
    """

    sets: LabelledSets
    measured_as: StandardSet = OWN_DATA
    name: str = ""


def open_sets(
    run: Run,
    data: Any,
    *,
    encoder: nn.Module | None,
    root: str | None,
    test_share: float,
    limit: int | None,
    seed: int,
    label_column: str | None,
) -> TransferSets:
    """Open labelled images, or a data set of torchvision from its files in `root`.

    The arguments are those of `transfer`. Raises ValueError for data
    without labels.
    """
    standard = standard_set(data) if isinstance(data, str) else None
    if standard is not None:
        name, chosen = standard
        opened = LabelledSets(open_standard(chosen, root, seed), f"torchvision:{name}")
        return TransferSets(opened.limited(limit, seed), chosen, name)
    if root is not None:
        raise ValueError(
            "`root` is for data sets of torchvision: name one, such as torchvision:flowers102"
        )
    source = run.settings.given("data") if data is None else data
    validation = ["validation"] if "validation" in list_splits(source) else []
    split = ("train", *validation, "test")
    opening = Opening(data=data, encoder=encoder, label_column=label_column, usual=split)
    photos = resolve(run).open(opening)
    return TransferSets(divide(photos, share=test_share, seed=seed, limit=limit, validation=True))


def evaluate_labelled(
    run: Run,
    encoders: Mapping[str, Callable[[Tensor], Tensor]],
    opened: TransferSets,
    protocols: Sequence[str],
    seed: int,
) -> Mapping[str, dict[str, float]]:
    """Measure encoders by row, "trained" among them, and write results.json and the report.

    Returns results 0..1 with what they were measured on; where there are baselines, the row
    "largest_class" too. Raises ValueError for what a protocol cannot be measured on.
    """
    if opened.measured_as.metric == "eleven_point_map" and "transfer-sgd" in protocols:
        raise ValueError(
            f"transfer-sgd needs one label an image, those of {opened.name} have several"
        )
    sets, trained = opened.sets, encoders["trained"]
    assert isinstance(trained, Encoder)
    features = sets.features(encoders)
    if opened.name:
        reading = run.settings.reading_for(trained.image_size)
        features = features_in_pieces(sets, reading, encoders)
    results: dict[str, dict[str, float]] = {row: {} for row in encoders}
    measured_as = opened.measured_as
    for row, splits in features:
        train_y, test_y = (np.asarray(splits[part][1]) for part in ("train", "test"))
        for protocol in protocols:
            with waiting(f"{row.replace('_', ' ')}: {protocol}"):
                numbers = protocol_results(
                    protocol, splits, measured_as.metric, measured_as.steps, seed
                )
            results[row] |= {name_with(key, opened.name): value for key, value in numbers.items()}
    keys = [key for key in results["trained"] if key.startswith("transfer")]
    if len(encoders) > 1 and keys and train_y.ndim == 1:
        results["largest_class"] = dict.fromkeys(
            keys, _largest_class(train_y, test_y, measured_as.metric)
        )
    return record(run, trained, sets, (train_y, test_y), results, seed)


def _largest_class(train_y: np.ndarray, test_y: np.ndarray, metric: Metric) -> float:
    """Measure the answer that is always the class with most training images."""
    classes, counts = np.unique(train_y, return_counts=True)
    right = test_y == classes[counts.argmax()]
    if metric == "mean_per_class":
        return float(right.any()) / len(np.unique(test_y))
    return float(right.mean())
