"""Labelled images to evaluate the encoder of a run on, its baselines, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from nearfar.data import Images, describe, list_splits
from nearfar.data.images import sample
from nearfar.data.table import digest
from nearfar.device import find_device
from nearfar.embeddings.embeddings import compute_features
from nearfar.embeddings.sources import (
    OfData,
    OfRun,
    OfVectors,
    Source,
    joined_sources,
    read_images,
    sampled,
)
from nearfar.embeddings.untrained import encoder_for, pretrained_encoder, size_untrained
from nearfar.evaluation import (
    Accuracies,
    Probe,
    are_gray,
    colour_histogram,
    default_probe,
    draw_labels,
    extract,
    finetune_accuracies,
    hog,
    listed_rows,
    percent_of,
    raw_pixels,
    tuning,
)
from nearfar.evaluation.evaluate import FEW, largest_class
from nearfar.evaluation.labelled import balanced_accuracy
from nearfar.evaluation.results import (
    ALONE,
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
from nearfar.neighbours import duplicate_threshold, find_leaks
from nearfar.networks import Encoder, first_encoder
from nearfar.networks.backbone import with_grid
from nearfar.progress import Bold, Table, log, quietly, waiting
from nearfar.run import Run, load
from nearfar.training.job import initial_backbone
from nearfar.training.seeding import stream
from nearfar.training.settings import Settings

Encoders = Mapping[str, Callable[[Tensor], Tensor]]
Labelled = dict[str, tuple[Tensor, np.ndarray | None]]  # features and labels by split
SIMPLE: Encoders = {"raw_pixels": raw_pixels, "colour_histogram": colour_histogram, "hog": hog}


@dataclass(frozen=True)
class LabelledSets:
    """The splits "train", "test" and perhaps "validation": `Images`, or others with a length that
    can be sampled.

    data: the source in words. test: which of its images are tested on, in words. limit: of the
    training images.
    """

    splits: Mapping[str, Any]
    data: str = ""
    test: str = "the test split"
    limit: int | None = None

    def count(self, split: str) -> int:
        """Images of a split."""
        return len(self.splits[split])

    def limited(self, limit: int | None, seed: int) -> LabelledSets:
        """The same with a random sample of this many training images."""
        train = self.splits["train"]
        some = sampled(train, limit or len(train), seed)
        limit = limit if limit is not None and limit < len(train) else None
        return replace(self, splits={**self.splits, "train": some}, limit=limit)

    def features(self, encoders: Encoders) -> Iterator[tuple[str, Labelled]]:
        """Features and labels of every split, encoder by encoder."""
        for row, encoder in encoders.items():
            title = row.replace("_", " ")
            found = {
                name: compute_features(encoder, images, title)
                for name, images in self.splits.items()
            }
            yield (
                row,
                {name: (features, self.splits[name].labels) for name, features in found.items()},
            )


def open_labelled(
    settings: Settings | None,
    data: Any,
    *,
    image_size: int | None = None,
    share: float = 0.2,
    seed: int = 0,
    limit: int | None = None,
    held_out: int | None = None,
    validation: bool = False,
    label_column: str | None = None,
) -> LabelledSets:
    """Open the training and test split of labelled images, or split one set, with the same shares
    of each class.

    settings: of the run whose encoder is evaluated; None without one. data: None for those of the
    run, with its limit. image_size: of the encoder; default: that of the settings. share: of the
    images for the test. limit: size of a random sample of the training images. held_out: test on so
    many of the other training images instead. validation: open that split too, if there is one.
    Raises ValueError for images without labels, and for too few.
    """
    source, drawn_by = data, seed
    reading: dict[str, Any] = {"image_size": image_size}
    if settings is not None:
        reading = settings.reading_for(image_size or settings.image_size)
        if data is None:
            source = settings.given("data")
            if limit is None:
                limit, drawn_by = settings.limit, settings.seed
    reading["label_column"] = label_column
    there, tested = set(list_splits(source)), "the test split"
    if {"train", "test"} <= there:
        parts = ["train", *(["validation"] if validation and "validation" in there else []), "test"]
        opened = {part: read_images(source, split=part, **reading) for part in parts}
    else:
        images = _with_labels(read_images(source, **reading))
        opened = dict(zip(("train", "test"), _stratified(images, share, seed), strict=True))
        tested = f"a random {share:.0%} of each class, seed {seed}"
    splits = {part: _with_labels(images) for part, images in opened.items()}
    train = splits["train"]
    if held_out is not None:
        left = np.setdiff1d(np.arange(len(train)), sample(len(train), limit, drawn_by))
        if len(left) < held_out:
            raise ValueError(
                f"--held-out {held_out}: {len(left)} training images are left; lower it, "
                f"or lower --limit"
            )
        tested = f"training images held out at random, seed {seed}"
        said = f"--held-out: {held_out} of {len(left)} other training images"
        log.info(f"{said}, a random share of each class (seed {seed})")
        assert train.labels is not None
        splits["test"] = train.subset(left[stratified_sample(train.labels[left], held_out, seed)])
    return LabelledSets(splits, describe(source), tested).limited(limit, drawn_by)


def stratified_sample(
    labels: Shaped[np.ndarray, " images"], count: int, seed: int
) -> Int64[np.ndarray, " chosen"]:
    """Positions of `count` random images, in order, with each class in its share, to within one
    image.

    >>> labels = np.array([0] * 90 + [1] * 10)
    >>> np.bincount(labels[stratified_sample(labels, 20, seed=0)])
    array([18,  2])
    """
    generator = np.random.default_rng(seed)
    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    place = np.empty(len(labels))
    for one, size in enumerate(counts):  # evenly spaced in 0..1, in a random order
        of_class = np.flatnonzero(number == one)
        place[of_class] = (generator.permutation(size) + generator.random()) / size
    return np.sort(np.argsort(place, kind="stable")[:count])


def _with_labels(images: Images) -> Images:
    if images.labels is None or not (known := images.labels >= 0).any():
        raise ValueError(f"the {images.split or 'given'} images have no labels to evaluate with")
    if known.all():
        return images
    log.info(f"{(~known).sum()} of {len(images)} images have no label and are left out")
    return images.subset(np.flatnonzero(known))


def _stratified(images: Images, share: float, seed: int) -> tuple[Images, Images]:
    """A training and a test part with the same shares of each class; a class with a single image is
    not tested.
    """
    assert images.labels is not None
    _, number, counts = np.unique(images.labels, return_inverse=True, return_counts=True)
    alone, several = np.flatnonzero(counts[number] == 1), np.flatnonzero(counts[number] > 1)
    try:
        train, test = train_test_split(
            several, test_size=share, random_state=seed, stratify=number[several]
        )
    except ValueError as error:  # fewer images than classes in one of the parts
        raise ValueError(
            f"{len(images)} images of {len(counts)} classes are too few for --test-share {share}: "
            "both parts need as many images as there are classes"
        ) from error
    if len(alone):
        log.info(
            f"{len(alone)} of {len(counts)} classes have a single image, which is not tested on"
        )
    return images.subset(np.concatenate([train, alone])), images.subset(test)


def describe_leaks(
    encoder: Callable[[Tensor], Tensor],
    sets: LabelledSets,
    train_x: Tensor,
    test_x: Tensor,
    predictions: Mapping[str, np.ndarray],
) -> str:
    """Say what copies of training images among the test images do to accuracies, in one line; ""
    without any.

    The features are those of the encoder; predictions as `evaluate_features` fills them. Where not
    all candidates could be compared, the line says how many copies there are at least, and no
    accuracy without them.
    """
    train, test = sets.splits["train"], sets.splits["test"]
    moved = duplicate_threshold(partial(extract, encoder), train, train_x, stream(0, "altered"))
    leaks, complete = find_leaks(train, test, train_x, test_x, moved)
    if not leaks and not complete:
        return (
            "no copy of a training image was found among the test images, but only the nearest "
            "pairs were compared: nearfar check compares all"
        )
    if not leaks:
        return ""
    first, rows = leaks[0], {leak.second for leak in leaks}
    said = "" if complete else "at least "
    said += f"{len(rows)} of {len(test)} test images have a copy among the training images, "
    said += f"first {test.names[first.second]} (of {train.names[first.first]})"
    others = [row for row in range(len(test)) if row not in rows]
    if others and complete:
        truth = predictions["truth"]
        right = {
            name: one == truth
            for name, one in predictions.items()
            if name != "truth" and one.ndim == 1
        }
        without = [
            f"{name} {one[others].mean():.3f} and not {one.mean():.3f}"
            for name, one in right.items()
        ]
        said += f": without them {', '.join(without)}" if without else ""
    return f"{said}; nearfar check lists them"


def open_evaluated(
    target: Source,
    data: Any,
    encoder: nn.Module | str | None,
    baselines: bool,
    **where: Any,
) -> list[tuple[LabelledSets, Encoders]]:
    """Open labelled images with the encoders to evaluate on them, by row: those of a run, or the
    features at hand of data.

    A second pair has the same images, as large as the frozen pretrained net sees them, with that
    net: of a run, with `baselines`, and where it is installed. where: options of `open_labelled`.
    Raises ValueError for a file of vectors.
    """
    if isinstance(target, OfVectors):
        raise ValueError(f"{target.name} holds vectors: evaluate takes a run or labelled images")
    if not isinstance(target, OfRun):
        assert isinstance(target, OfData)
        source = joined_sources(target.source, data)
        side = size_untrained(source)
        sets = open_labelled(None, source, image_size=side, **where)
        own = encoder_for(sets.splits["train"], encoder)
        return [(sets, {**(SIMPLE if baselines else {}), "at_hand": own})]
    if isinstance(encoder, str):
        raise ValueError(
            f"--encoder {encoder} is for data without a run: {target.name} has its own"
        )
    run = target.run
    settings, encoders = run.settings, encoders_by_row(run, encoder, baselines)
    size = load(run, encoder=encoder).image_size
    sets = open_labelled(settings, data, image_size=size, **where)
    net = pretrained_encoder(settings.channels) if baselines else None
    if net is None:
        return [(sets, encoders)]
    side, larger = size_untrained(settings.given("data") if data is None else data), sets
    if side is not None and side > size:
        with quietly():
            larger = open_labelled(settings, data, image_size=side, **where)
    return [(sets, encoders), (larger, {"pretrained_frozen": net})]


def encoders_by_row(
    run: Run, encoder: nn.Module | None, baselines: bool, settings: Settings | None = None
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the rows of a table of results: the trained encoder, and with `baselines` simple
    features and its start.

    encoder: the module of a run whose encoder was an object of the user's own, with its weights
    before training. settings: of the start, where they are not the run's.
    """
    trained = load(run, encoder=encoder)
    if not baselines:
        return {"trained": trained}
    alone = first_encoder(trained)
    settings = replace(
        settings or run.settings, frozen=0
    )  # what is fine-tuned is trained as a whole
    backbone = initial_backbone(settings, settings.given("encoder") if encoder is None else encoder)
    backbone = with_grid(backbone, settings.grid)
    moments = alone.mean.flatten().tolist(), alone.std.flatten().tolist()
    untrained = Encoder(backbone, settings.image_size, settings.channels, *moments)
    if settings.whiten:  # as it was before the first step too
        whitening = alone.backbone.net.get_submodule("conv").state_dict()
        untrained.backbone.net.get_submodule("conv").load_state_dict(whitening)
    start = "untrained" if settings.init is None else "starting_weights"
    rows: dict[str, Callable[[Tensor], Tensor]] = {**SIMPLE, start: untrained}
    if alone is not trained:
        rows[ALONE] = alone
    return rows | {"trained": trained}


def finetuned(
    encoders: Encoders,
    sets: LabelledSets,
    bfloat16: bool,
    percent: float,
    listed: Sequence[str] | None,
    seed: int,
) -> dict[str, Accuracies]:
    """Fine-tune a copy of each row that is an encoder on a share of the labels, in per cent; return
    the accuracies.

    listed: names of the images whose labels are used, in place of a draw; they are for shares below
    100 %. Raises ValueError where one of its images is missing.
    """
    train, test = sets.splits["train"], sets.splits["test"]
    assert train.labels is not None
    if listed is not None and percent < 100:
        rows = listed_rows(train.names, listed)
        rows = rows[train.labels[rows] >= 0]
    else:
        rows = draw_labels(train.labels, percent, seed)
    found = {}
    for row, encoder in encoders.items():
        if isinstance(encoder, Encoder):
            with waiting(f"{row.replace('_', ' ')}: fine-tuning on {len(rows)} labels"):
                found[row] = finetune_accuracies(
                    encoder,
                    train,
                    test,
                    rows,
                    tuning(percent),
                    seed=seed,
                    device=find_device(),
                    bfloat16=bfloat16,
                )
    return found


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
    encoder: Encoder,
    sets: LabelledSets,
    train_y: np.ndarray,
    test_y: np.ndarray,
    seed: int,
) -> MeasuredOn:
    """Say what results are measured on: these sets with these labels, and the encoder as it is
    now.
    """
    train = sets.splits["train"]
    several = train_y.ndim > 1  # labels an image
    counts = np.unique(test_y, return_counts=True)[1]
    unequal = not several and balanced_accuracy(test_y, test_y) is not None
    pictures = isinstance(train, Images)
    metrics = [] if run is None else run.metrics
    return MeasuredOn(
        data=sets.data,
        test=sets.test,
        train_images=len(train_y),
        test_images=len(test_y),
        classes=0 if several else len(np.union1d(train_y, test_y)),
        largest=0.0 if several else largest_class(train_y, test_y)["accuracy"],
        seed=seed,
        images=digest(chain(*(_identity(part) for part in sets.splits.values()))),
        encoder=encoder.name if run is None else run.weights,
        even_images=float(len(counts) ** 2 / (1 / counts).sum()) if unequal else None,
        limit=sets.limit,
        epoch=max((line["epoch"] for line in metrics if "epoch" in line), default=None),
        image_size=encoder.image_size,
        channels=encoder.channels,
        gray=run is not None and pictures and encoder.channels == 3 and are_gray(train),
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
    labels = [classes[one] if 0 <= one < len(classes) else one for one in numbers]
    for name, known, label in zip(images.names, digests, labels, strict=True):
        yield f"{known or name}\t{label}\n".encode("utf-8", "surrogateescape")


def options_of(
    protocols: Sequence[str], probe: Probe, knn_temperature: float, labels: str | None
) -> dict[str, str]:
    """Describe the options of each protocol's columns, as far as a user chooses them."""
    rates = ", ".join(f"{rate:g}" for rate in probe.lrs)
    how: dict[str, str] = {}
    for name in protocols:
        percent = percent_of(name)
        listed = labels is not None and percent is not None and percent < 100
        said = f"labels of {Path(labels or '').name}" if listed else ""
        if name.startswith("knn"):
            said = f"temperature {knn_temperature:g}"
        if name == "linear-sgd":
            said = f"{probe.source}; learning rate {rates}"
        columns = FEW if name == "few" else (name.replace("-", "_"),)
        how |= dict.fromkeys(columns, said)
    return how


def measurement(
    on: MeasuredOn, results: Mapping[str, dict[str, float]], how: Mapping[str, str]
) -> Measurement:
    """Return results with what they were measured on, its rows in their order.

    how: the options of columns that have some.
    """
    rows = {row: results[row] for row in ENCODERS if results.get(row)}
    columns = dict.fromkeys(map(column_of, rows[judged(rows)]))
    return Measurement(on, rows, {column: how.get(column, "") for column in columns})


def add_to_results(run: Run, measured: Measurement) -> None:
    """Write results beside others on the same data and encoder."""
    run.write_results(added(run.results, measured))


def show_results(measured: Measurement) -> None:
    """Print what was measured on what, as a table with the best of each column in bold, and in one
    sentence.
    """
    log.info(measured.on.words())
    log.info(_table(measured, accuracies(measured), "accuracy"))
    if columns := accuracies(measured, balanced=True):
        log.info(_table(measured, columns, "balanced accuracy: the mean over the classes"))
    said = sentence(measured)
    gray = gray_words(measured.on.gray, measured.on.image_size)
    for line in (said, gray if gray and "--channels 1" not in said else ""):
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
