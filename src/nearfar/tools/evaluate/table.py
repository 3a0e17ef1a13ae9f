"""The table of results: what it is measured on, the line on the encoder, results.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data import Images
from nearfar.data.table import digest
from nearfar.evaluation import Probe, are_gray, default_probe, percent_of
from nearfar.evaluation.evaluate import FEW, largest_class
from nearfar.evaluation.labelled import balanced_accuracy
from nearfar.evaluation.results import (
    BALANCED,
    ENCODERS,
    MeasuredOn,
    Measurement,
    accuracies,
    added,
    best_rows,
    column_of,
    gray_words,
    judged,
    sentence,
)
from nearfar.methods import method_class, method_names
from nearfar.networks import Encoder
from nearfar.pages import write_report
from nearfar.progress import Bold, Table, log
from nearfar.run import Run
from nearfar.tools.evaluate.labelled_sets import LabelledSets
from nearfar.tools.evaluate.protocols import Protocols
from nearfar.training.settings import Settings


def default_probe_of(settings: Settings | None, image_size: int) -> str:
    """Name the settings of linear-sgd that go with the recipe of a run; those of SACLR without one,
    and for a method of one's own.
    """
    protocol = ""
    if settings is not None and settings.method in method_names():
        recipes = method_class(settings.method).recipes
        protocol = recipes[settings.recipe].protocol if settings.recipe in recipes else ""
    return default_probe(protocol, image_size)


def measured_on(
    run: Run | None,
    encoder: Encoder | None,
    sets: LabelledSets,
    train_y: np.ndarray,
    test_y: np.ndarray,
    seed: int,
) -> MeasuredOn:
    """Say what results are measured on: these sets with these labels, and the encoder as it is
    now; None for vectors that were made elsewhere.
    """
    train = sets.splits["train"]
    several = train_y.ndim > 1  # labels an image
    counts = np.unique(test_y, return_counts=True)[1]
    unequal = not several and balanced_accuracy(test_y, test_y) is not None
    pictures = isinstance(train, Images)
    metrics = [] if run is None else run.metrics
    channels = 3 if encoder is None else encoder.channels
    return MeasuredOn(
        data=sets.data,
        test=sets.test,
        train_images=len(train_y),
        test_images=len(test_y),
        classes=0 if several else len(np.union1d(train_y, test_y)),
        largest=0.0 if several else largest_class(train_y, test_y)["accuracy"],
        seed=seed,
        images=digest(chain(*(_identity(part) for part in sets.splits.values()))),
        encoder=run.weights if run is not None else "" if encoder is None else encoder.name,
        even_images=float(len(counts) ** 2 / (1 / counts).sum()) if unequal else None,
        limit=sets.limit,
        epoch=max((line["epoch"] for line in metrics if "epoch" in line), default=None),
        image_size=0 if encoder is None else encoder.image_size,
        channels=channels,
        gray=run is not None and pictures and channels == 3 and are_gray(train),
        keep_colour=0.0 if run is None else run.settings.keep_colour or 0.0,
    )


def _identity(images: Any) -> Iterator[bytes]:
    """Identify a split: its images by their digests, or names, with their labels;
    else its length.
    """
    if not isinstance(images, Images):
        yield f"{len(images)}\n".encode()
        return
    digests = images.table["digest"].take(images.table_rows).to_pylist()
    classes = images.class_names or []
    numbers = [-1] * len(images) if images.labels is None else images.labels.tolist()
    labels = [classes[number] if 0 <= number < len(classes) else number for number in numbers]
    for name, known, label in zip(images.names, digests, labels, strict=True):
        yield f"{known or name}\t{label}\n".encode("utf-8", "surrogateescape")


def options_of(protocols: Protocols, probe: Probe) -> dict[str, str]:
    """Describe the options of each protocol's columns, as far as a user chooses them."""
    rates = ", ".join(f"{rate:g}" for rate in probe.lrs)
    options: dict[str, str] = {}
    labels = protocols.labels
    for name in protocols.names:
        percent = percent_of(name)
        listed = labels is not None and percent is not None and percent < 100
        words = f"labels of {Path(labels or '').name}" if listed else ""
        if name.startswith("knn"):
            words = f"temperature {protocols.knn_temperature:g}"
        if name == "linear-sgd":
            words = f"{probe.source}; learning rate {rates}"
        if name in protocols.linear and protocols.views:
            cropped = f"{protocols.views} crops and flips of each training image"
            words = f"{words}; {cropped}" if words else cropped
        columns = FEW if name == "few" else (name.replace("-", "_"),)
        options |= dict.fromkeys(columns, words)
    return options


def measurement(
    on: MeasuredOn, results: Mapping[str, dict[str, float]], options: Mapping[str, str]
) -> Measurement:
    """Return results with what they were measured on, its rows in their order.

    options: those of columns that have some.
    """
    rows = {row: results[row] for row in ENCODERS if results.get(row)}
    columns = dict.fromkeys(map(column_of, rows[judged(rows)]))
    return Measurement(on, rows, {column: options.get(column, "") for column in columns})


def add_to_results(run: Run, measured: Measurement) -> None:
    """Write results beside others on the same data and encoder."""
    run.write_results(added(run.results, measured))


def record(
    run: Run,
    encoder: Encoder,
    sets: LabelledSets,
    labels: tuple[np.ndarray, np.ndarray],
    results: Mapping[str, dict[str, float]],
    seed: int,
) -> Measurement:
    """Save the results of a protocol in results.json and in the report, and log the table.

    encoder: of the run. labels: of the training and of the test images. results: 0..1 by row and
    column, with the row "trained".
    """
    measured = measurement(measured_on(run, encoder, sets, *labels, seed), results, {})
    add_to_results(run, measured)
    write_report(run.path)
    show_results(measured)
    return measured


def show_results(measured: Measurement) -> None:
    """Print what was measured on what, as a table with the best of each column in bold, and in one
    sentence.
    """
    log.info(measured.on.words())
    log.info(_table(measured, accuracies(measured), "accuracy"))
    if columns := accuracies(measured, balanced=True):
        log.info(_table(measured, columns, "balanced accuracy: the mean over the classes"))
    verdict = sentence(measured)
    gray = gray_words(measured.on.gray, measured.on.image_size)
    for line in (verdict, gray if gray and "`channels=1`" not in verdict else ""):
        if line:
            log.info(line)


def _table(measured: Measurement, columns: Sequence[str], title: str) -> Table:
    best = {column: best_rows(measured, column) for column in columns}
    names = (column.removesuffix(BALANCED).replace("_", " ") for column in columns)
    table = Table("", *names, title=title)
    for row, numbers in measured.items():
        if not set(columns) & numbers.keys():
            continue
        cells = []
        for column in columns:
            cell = f"{numbers[column]:.3f}" if column in numbers else "-"
            if f"{column}_std" in numbers:
                cell += f" ± {numbers[f'{column}_std']:.3f}"
            cells.append(Bold(cell) if row in best[column] else cell)
        table.add(row.replace("_", " "), *cells)
    return table
