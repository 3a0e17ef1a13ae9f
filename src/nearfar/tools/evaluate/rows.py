"""The rows of a table of results: the encoder that is judged, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int64
from torch import Tensor, nn

from nearfar.data import Images
from nearfar.device import find_device
from nearfar.embeddings import Embeddings
from nearfar.embeddings.sources import read_images
from nearfar.embeddings.untrained import pretrained_encoder, size_untrained
from nearfar.evaluation import (
    Accuracies,
    colour_histogram,
    draw_labels,
    finetune_accuracies,
    hog,
    listed_rows,
    raw_pixels,
    tuning,
)
from nearfar.evaluation.results import ALONE
from nearfar.messages import listed_names
from nearfar.networks import Encoder, first_encoder
from nearfar.networks.backbone import with_grid
from nearfar.progress import log, quietly, waiting
from nearfar.run import Run, load
from nearfar.training.job import initial_backbone
from nearfar.training.settings import Settings

Encoders = Mapping[str, Callable[[Tensor], Tensor]]
SIMPLE: Encoders = {"raw_pixels": raw_pixels, "colour_histogram": colour_histogram, "hog": hog}


def row_of(photos: Embeddings) -> str:
    """Return the row of embeddings: "trained" of a run, "at_hand" of data, "given" of vectors."""
    if photos.run is not None:
        return "trained"
    return "given" if photos.encoder is None else "at_hand"


def baselines_of(photos: Embeddings) -> Encoders:
    """Return the encoders that see the images as the embeddings have them, by row; none where there
    are vectors alone.
    """
    if not photos.has_pixels:
        return {}
    if photos.run is None:
        return SIMPLE
    rows = encoders_by_row(photos.run, photos.module, baselines=True)
    return {row: encoder for row, encoder in rows.items() if row != "trained"}


def frozen_net(photos: Embeddings) -> Encoder | None:
    """Return the pretrained net as it is, to compare a run or vectors with; None where none is
    installed, there are no images, or features at hand have it among them.
    """
    if not photos.has_pixels or row_of(photos) == "at_hand":
        return None
    return pretrained_encoder(photos.images.channels)


def larger_images(photos: Embeddings) -> Images:
    """Return the images of a run as large as the frozen pretrained net sees them; others as they
    are.
    """
    images, run, scanned = photos.images, photos.run, photos.scanned
    side = None if run is None or scanned is None else size_untrained(scanned)
    if run is None or side is None or side <= images.image_size:
        return images
    with quietly():
        reading = run.settings.reading_for(side)
        larger = read_images(scanned, split=photos.split, **reading)
    if larger.names == images.names:
        return larger
    place = {name: row for row, name in enumerate(larger.names)}  # of all, where these are some
    return larger.subset([place[name] for name in images.names])


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
    train: Images,
    test: Images,
    *,
    bfloat16: bool,
    percent: float,
    names: Sequence[str] | None,
    seed: int,
) -> dict[str, Accuracies]:
    """Fine-tune a copy of each row that is an encoder on a share of the labels, in per cent; return
    the accuracies.

    names: the images whose labels are used, in place of a draw; they are for shares below 100 %.
    Raises ValueError where one of them is missing.
    """
    assert train.labels is not None
    if names is not None and percent < 100:
        rows = listed_rows(train.names, names)
        rows = rows[train.labels[rows] >= 0]
        _say_listed(train, rows, percent)
    else:
        rows = draw_labels(train.labels, percent, seed)
    accuracies = {}
    for row, encoder in encoders.items():
        if isinstance(encoder, Encoder):
            with waiting(f"{row.replace('_', ' ')}: fine-tuning on {len(rows)} labels"):
                accuracies[row] = finetune_accuracies(
                    encoder,
                    train,
                    test,
                    rows,
                    tuning(percent),
                    seed=seed,
                    device=find_device(),
                    bfloat16=bfloat16,
                )
    return accuracies


def _say_listed(train: Images, rows: Int64[np.ndarray, " chosen"], percent: float) -> None:
    """Say how many of the labels a list names, and which classes it leaves without any."""
    assert train.labels is not None and train.label_names is not None
    classes = dict(zip(train.labels.tolist(), train.label_names, strict=True))
    known, of_list = (train.labels >= 0).sum(), set(train.labels[rows].tolist())
    lost = [classes[label] for label in sorted(classes) if label >= 0 and label not in of_list]
    log.info(
        "finetune-%g: the list of labels names %d of the %d training images, %.3g%%",
        percent,
        len(rows),
        known,
        100 * len(rows) / known,
    )
    if lost:
        log.warning(
            "the list of labels names no image of %d of the %d classes, whose test images count "
            "as wrong: %s",
            len(lost),
            len(set(classes) - {-1}),
            listed_names(lost),
        )
