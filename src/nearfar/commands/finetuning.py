"""Fine-tune the encoder of a run, and beside it what it started from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console

from nearfar.commands.labelled import Encoders, LabelledSets
from nearfar.commands.opening import shown
from nearfar.evaluation import Accuracies, draw_labels, finetune_accuracies, listed_rows, tuning
from nearfar.networks import Encoder
from nearfar.training import Settings


def percent_of(protocol: str) -> float | None:
    """Share of the labels that a protocol fine-tunes with, in per cent; None for those on frozen features."""
    name, _, number = protocol.partition("-")
    if name != "finetune":
        return None
    try:
        percent = float(number or 100)
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise ValueError(
            f"finetune-P takes P per cent of the labels, above 0 and up to 100, such as finetune-10: not {protocol!r}"
        )
    return percent


def finetuned(
    encoders: Encoders,
    sets: LabelledSets,
    settings: Settings,
    percent: float,
    listed: Sequence[str] | None,
    seed: int,
    console: Console,
) -> dict[str, Accuracies]:
    """Accuracies of each row that is an encoder.

    listed: names of the images whose labels are used, in place of a draw; they are for shares below 100 %.
    Raises ValueError where one of its images is not there.
    """
    train, test = sets.images("train", console), sets.images("test", console)
    assert train.labels is not None
    if listed is not None and percent < 100:
        rows = listed_rows(train.names, listed)
        rows = rows[train.labels[rows] >= 0]
    else:
        rows = draw_labels(train.labels, percent, seed)
    found = {}
    for row, encoder in encoders.items():
        if isinstance(encoder, Encoder):
            with shown(console, f"{row.replace('_', ' ')}: fine-tuning on {len(rows)} labels") as progress:
                found[row] = finetune_accuracies(
                    encoder,
                    train,
                    test,
                    rows,
                    tuning(percent),
                    seed=seed,
                    device="cuda" if torch.cuda.is_available() else "cpu",
                    bfloat16=settings.precision == "bf16-mixed",
                    progress=progress,
                )
    return found
