"""Measure embeddings by protocols, beside baselines; save and log what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data import Images
from nearfar.data.table import digest
from nearfar.device import find_device
from nearfar.embeddings import Embeddings
from nearfar.embeddings.embeddings import compute_features
from nearfar.evaluation import Probe, evaluate_features
from nearfar.evaluation.evaluate import largest_class
from nearfar.evaluation.features import CroppedAndFlipped
from nearfar.evaluation.results import MeasuredOn, Measurement
from nearfar.pages.report import write_report
from nearfar.progress import log, waiting
from nearfar.run import PREDICTIONS
from nearfar.tools.evaluate.labelled_sets import Labelled, LabelledSets
from nearfar.tools.evaluate.leaks import describe_leaks
from nearfar.tools.evaluate.protocols import Protocols, check_run
from nearfar.tools.evaluate.rows import (
    Encoders,
    baselines_of,
    finetuned,
    frozen_net,
    larger_images,
    row_of,
)
from nearfar.tools.evaluate.table import (
    add_to_results,
    default_probe_of,
    measured_on,
    measurement,
    options_of,
    show_results,
)

Results = dict[str, dict[str, float]]
Seeing = Callable[[Tensor], Tensor]
Predictions = dict[str, np.ndarray]


def measure(
    photos: Embeddings, sets: LabelledSets, protocols: Protocols, baselines: bool, seed: int
) -> Measurement:
    """Measure embeddings and, with `baselines`, what they are compared with; log the table.

    Of a run, results are saved after each protocol that trains, so that none is lost.
    """
    run, row = photos.run, row_of(photos)
    names = protocols.listed()
    others = baselines_of(photos) if baselines else {}
    settings = None if run is None else run.settings
    probe = protocols.probe_or(default_probe_of(settings, photos.images.image_size))
    on = _measured_on(photos, sets, seed)
    options = options_of(protocols, probe)
    train, test = sets.splits["train"], sets.splits["test"]
    results: Results = {}
    predictions: Predictions = {}
    leaks = ""
    for name, splits, encoder, images in (
        _features(photos, sets, others, baselines) if protocols.frozen else ()
    ):
        kept = predictions if name == row else None
        views = _views(encoder, images, protocols.views, seed) if protocols.linear else None
        results[name] = _on_frozen(name, splits, views, protocols, probe, seed, kept)
        if kept is not None and photos.has_pixels:
            features = splits["train"][0], splits["test"][0]
            leaks = describe_leaks(photos.encoder, train, test, *features, predictions)
    if run is not None:
        with replacing(run.path / PREDICTIONS) as unfinished:
            np.savez_compressed(unfinished, **predictions)  # type: ignore[arg-type]
    trainings: list[str | None] = [*([None] if protocols.frozen else []), *protocols.tuned]
    for protocol in trainings:
        if protocol is not None:
            assert photos.encoder is not None
            for name, accuracies in finetuned(
                {**others, row: photos.encoder},
                train,
                test,
                bfloat16=settings is not None and settings.precision == "bf16-mixed",
                percent=protocols.tuned[protocol],
                names=names,
                seed=seed,
            ).items():
                results[name] = results.get(name, {}) | accuracies.named(protocol)
        if baselines:
            results["largest_class"] = largest_class(train.labels, test.labels, results[row])
        measured = measurement(on, results, options)
        if run is not None:
            add_to_results(run, measured)
    if run is not None:
        write_report(run.path)
    show_results(measured)
    if leaks:
        log.warning("%s", leaks)
    return measured


def check_embeddings(photos: Embeddings, protocols: Protocols) -> None:
    """Raise ValueError for protocols that need an encoder where there are vectors alone, and what
    `check_run` raises.
    """
    if photos.run is not None:
        check_run(photos.run)
    if photos.encoder is None and (tuned := list(protocols.tuned)):
        raise ValueError(
            f"`protocol={tuned[0]!r}` trains an encoder, and {photos.name} holds vectors: knn, "
            "linear, few and linear-sgd take vectors"
        )
    if photos.encoder is None and protocols.views:
        raise ValueError(
            f"`probe_views` needs an encoder, which sees crops, and {photos.name} holds vectors"
        )


def _features(
    photos: Embeddings, sets: LabelledSets, others: Encoders, baselines: bool
) -> Iterator[tuple[str, Labelled, Seeing | None, Images]]:
    """Yield the features of every row, with labels: of the baselines, the embeddings themselves,
    and the frozen pretrained net; with the encoder, if any, and the training images as it sees
    them.
    """
    train = sets.splits["train"]
    for baseline, features in sets.features(others):
        yield baseline, features, others[baseline], train
    own = photos.subset(np.concatenate([*sets.rows.values()]).tolist()).features
    sizes = [len(rows) for rows in sets.rows.values()]
    features = sets.labelled(dict(zip(sets.rows, own.split(sizes), strict=True)))
    yield row_of(photos), features, photos.encoder, train
    net = frozen_net(photos) if baselines else None
    if net is not None:
        larger = larger_images(photos)
        splits = {part: larger.subset(rows) for part, rows in sets.rows.items()}
        for name, features in replace(sets, splits=splits).features({"pretrained_frozen": net}):
            yield name, features, net, splits["train"]


def _views(encoder: Seeing | None, images: Images, count: int, seed: int) -> Tensor | None:
    """Return the features of so many crops and flips of each image [views, images, dim]; None for
    no views.
    """
    if encoder is None or not count:
        return None
    seeing = CroppedAndFlipped(encoder, seed)
    return torch.stack([compute_features(seeing, images) for _ in range(count)])


def _on_frozen(
    row: str,
    splits: Labelled,
    views: Tensor | None,
    protocols: Protocols,
    probe: Probe,
    seed: int,
    predictions: Predictions | None,
) -> dict[str, float]:
    """Return the accuracies of a row by the protocols on frozen features."""
    with waiting(f"{row.replace('_', ' ')}: {', '.join(protocols.frozen)}"):
        return evaluate_features(
            *splits["train"],
            *splits["test"],
            protocols.frozen,
            seed,
            probe=probe,
            knn_temperature=protocols.knn_temperature,
            device=find_device(),
            predictions=predictions,
            train_views=views,
        )


def _measured_on(photos: Embeddings, sets: LabelledSets, seed: int) -> MeasuredOn:
    """Say what embeddings are measured on; vectors alone are known by their numbers."""
    train_y, test_y = sets.splits["train"].labels, sets.splits["test"].labels
    on = measured_on(photos.run, photos.encoder, sets, train_y, test_y, seed)
    if photos.encoder is not None:
        return on
    rows = np.concatenate([*sets.rows.values()])
    vectors = digest([photos.features[rows].numpy().tobytes()])
    on = replace(on, encoder=f"vectors {vectors}")
    if photos.has_pixels:
        return replace(on, image_size=photos.images.image_size, channels=photos.images.channels)
    labels = train_y.tobytes(), test_y.tobytes()
    return replace(on, images=digest(chain([vectors.encode()], labels)))
