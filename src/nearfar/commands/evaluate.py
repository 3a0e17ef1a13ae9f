"""Compare the encoder with what needs no training, on labelled images.

nearfar evaluate runs/photos
nearfar evaluate runs/photos labelled/ --protocol knn linear-sgd
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from nearfar.atomic import check_folder, replacing
from nearfar.commands.detection import TASKS, evaluate_detectors
from nearfar.commands.finetuning import finetuned, percent_of
from nearfar.commands.labelled import open_labelled
from nearfar.commands.opening import shown
from nearfar.commands.report import write_report
from nearfar.commands.run import PREDICTIONS, Run, load
from nearfar.commands.worth import ENCODERS, accuracies, best_rows, sentence
from nearfar.data.sources import special
from nearfar.evaluation import (
    FINETUNE,
    WITH_VALIDATION,
    Choices,
    check_protocols,
    colour_histogram,
    evaluate_features,
    hog,
    name_with,
    probe_settings,
    raw_pixels,
    usual_probe,
)
from nearfar.evaluation.knn import TEMPERATURE
from nearfar.messages import check_range
from nearfar.methods import method_class, method_names
from nearfar.networks import Encoder
from nearfar.training import Settings, initial_backbone
from nearfar.training.seeding import LARGEST_SEED


def evaluate(
    run: str | Path | Run,
    data: Any = None,
    *,
    protocol: Sequence[str] = ("knn", "linear", "few"),
    limit: int | None = None,
    held_out: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    baselines: bool = True,
    root: str | None = None,
    probe: str | None = None,
    probe_lr: list[float] | None = None,
    knn_temperature: float = TEMPERATURE,
    labels: str | None = None,
    label_column: str | None = None,
    encoder: nn.Module | None = None,
    detector: str = "small",
    epochs: float | None = None,
    console: Console | None = None,
) -> dict[str, dict[str, float]]:
    """Compare the encoder with what needs no training, on labelled images.

    Args:
        run: run folder.
        data: labelled images with a train and a test split, or without: then a share is kept for the test.
            Default: the data of the run. Or torchvision:NAME, a data set of the transfer tables, from files in --root.
            Of several sources all must have labels.
        protocol: "knn" (20 neighbours), "knn_K" for other numbers, "linear" (L-BFGS), "few" (1 and 5 labels a class, 20
            trials); and as the papers have them "linear-sgd", "transfer", "transfer-sgd", "low-shot" (mean average
            precision), "finetune" (all labels) and "finetune-P" (P per cent of them), see docs/evaluation.md; or
            "detect", "segment", "keypoints", apart from the others: data are annotations then, a folder in VOC's or
            COCO's layout or a COCO json (docs/detection.md).
        limit: use a random sample of so many training images. Default: as in the run.
        held_out: test on so many training images beyond the limit instead of the test images, to choose settings by.
        test_share: share of the images that is kept for the test where the data has no test split.
        seed: of that split and of the trials.
        baselines: also evaluate raw pixels, a colour histogram, HOG and the encoder before training.
        root: folder with the files of a data set of torchvision.
        probe: settings of linear-sgd by a paper's name, such as "sce". Default: the recipe's, else SACLR's.
        probe_lr: learning rates of linear-sgd; of several, a fifth of the training images chooses.
        knn_temperature: of the weights exp(cosine / temperature) of the neighbours' votes; MoCo's CIFAR-10 notebook has
            0.1.
        labels: file with the names of the labelled images for finetune-P, one a line. Default: a draw from each class.
        label_column: column of the data with the labels. Default: one of a usual name, such as label.
        encoder: the module that was trained, where it was an object of your own, with its weights before training.
        detector: settings of the detector: "small", "small-c4", or a paper's: "lorac", "sce".
        epochs: of the detector's training. Default: as its settings say.
        console: where progress is shown.

    Returns:
        Results 0..1 by "raw_pixels", "colour_histogram", "hog", "untrained" ("starting_weights" for a run with `init`)
        and "trained"; also written into results.json, beside what other protocols wrote, and into the report. Columns
        of a data set of torchvision end with its name. predictions.npz holds the predicted labels of kNN and linear.

    Raises:
        ValueError: for data without labels, unknown names, and what a protocol cannot be measured on.
        FileNotFoundError: for a data set of torchvision that is not there.
    """
    console = console or Console()
    run = Run.of(run)
    protocol = [protocol] if isinstance(protocol, str) else protocol
    if set(protocol) & set(TASKS):
        if strange := set(protocol) - set(TASKS):
            raise ValueError(f"{', '.join(TASKS)} take annotations, not labels: evaluate {min(strange)} by itself")
        if isinstance(data, (list, tuple)):
            raise ValueError(f"{', '.join(TASKS)} take one folder or json of annotations, not {len(data)} sources")
        return evaluate_detectors(
            run, data, protocol, detector=detector, epochs=epochs, limit=limit, test_share=test_share, seed=seed,
            baselines=baselines, encoder=encoder, console=console,
        )  # fmt: skip
    settings = replace(run.settings, frozen=0)  # what is fine-tuned is trained as a whole
    check_range("--limit", limit, 1)
    check_range("--held-out", held_out, 1)
    check_range("--seed", seed, 0, LARGEST_SEED)
    check_range("--knn-temperature", knn_temperature, 1e-12)
    if not 0 < test_share < 1:
        raise ValueError(f"--test-share must lie between 0 and 1, not {test_share}")
    frozen = [one for one in protocol if percent_of(one) is None]
    check_protocols(frozen, FINETUNE)
    check_folder(run.path)
    if labels is not None and not any((percent_of(one) or 100) < 100 for one in protocol):
        raise ValueError("--labels is for finetune-P, such as finetune-1, which --protocol does not ask for")
    if labels is not None and (what := special(labels)):
        raise ValueError(f"--labels {labels} is {what}, not a text file")
    if (probe or probe_lr) and "linear-sgd" not in protocol:
        raise ValueError("--probe and --probe-lr are for linear-sgd, which --protocol does not ask for")
    listed = None if labels is None else Path(labels).read_text(encoding="utf-8", errors="replace").splitlines()
    source = settings.given("data") if data is None else data
    chosen = probe_settings(probe or usual_probe(_protocol_of(settings), settings.image_size), probe_lr)
    fitted = settings.reading
    needs_validation = any(one in WITH_VALIDATION for one in protocol)
    most, drawn_by = (settings.limit, settings.seed) if limit is None and data is None else (limit, seed)
    sets = open_labelled(
        source,
        console,
        fitted,
        root=root,
        share=test_share,
        seed=seed,
        validation=needs_validation,
        label_column=label_column,
    )
    if held_out is not None:
        sets = sets.held_out(most, drawn_by, held_out)
    sets = sets.limited(most, drawn_by, console)
    sets.must_suit(protocol)
    encoders = _encoders(run, settings, encoder, baselines)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    choices = Choices(chosen, seed=seed, device=device, knn_temperature=knn_temperature)
    if sets.standard is not None:
        choices = choices._replace(metric=sets.standard.metric, steps=sets.standard.steps)
    results: dict[str, dict[str, float]] = {row: {} for row in encoders}
    votes = [one for one in frozen if one.startswith("knn")]  # from one search
    predictions: dict[str, np.ndarray] = {}
    parts = [part for part in (votes, *([one] for one in frozen if one not in votes)) if part]
    for row, splits in sets.features(encoders, console) if frozen else ():
        for part in parts:
            with shown(console, f"{row.replace('_', ' ')}: {', '.join(part)}") as progress:
                results[row] |= evaluate_features(
                    *splits["train"],
                    *splits["test"],
                    part,
                    validation=splits.get("validation"),
                    choices=choices,
                    progress=progress,
                    predictions=predictions if row == "trained" else None,
                )
    with replacing(run.path / PREDICTIONS) as unfinished:
        np.savez_compressed(unfinished, **predictions)  # type: ignore[arg-type]
    _add_to_results(run, results, sets.name)
    for one in protocol:
        if (percent := percent_of(one)) is not None:
            tuned = finetuned(encoders, sets, settings, percent, listed, seed, console)
            for row, value in tuned.items():
                results[row][one.replace("-", "_")] = value.top1
                if value.top5 is not None:
                    results[row][f"{one.replace('-', '_')}_top5"] = value.top5
            _add_to_results(run, results, sets.name)
    results = {row: _named(numbers, sets.name) for row, numbers in results.items() if numbers}
    write_report(run.path)
    console.print(_results_table(results, sets.count("train"), sets.count("test")))
    console.print(Text(sentence(results)))
    return results


def _protocol_of(settings: Settings) -> str:
    """The evaluation that goes with the recipe of a run; empty for a method of one's own."""
    recipes = method_class(settings.method).recipes if settings.method in method_names() else {}
    return recipes[settings.recipe].protocol if settings.recipe in recipes else ""


def _encoders(
    run: Run, settings: Settings, encoder: nn.Module | None, baselines: bool
) -> dict[str, Callable[[Tensor], Tensor]]:
    """What is compared, by row: simple features, the encoder before training, and after it."""
    trained = load(run, encoder=encoder)
    if not baselines:
        return {"trained": trained}
    untrained = Encoder(
        initial_backbone(settings, settings.given("encoder") if encoder is None else encoder),
        image_size=settings.image_size,
        channels=settings.channels,
        mean=trained.mean.flatten().tolist(),
        std=trained.std.flatten().tolist(),
    )
    if settings.whiten:  # as it was before the first step too
        whitening = trained.backbone.net.get_submodule("conv").state_dict()
        untrained.backbone.net.get_submodule("conv").load_state_dict(whitening)
    start = "untrained" if settings.init is None else "starting_weights"
    simple = {"raw_pixels": raw_pixels, "colour_histogram": colour_histogram, "hog": hog}
    return {**simple, start: untrained, "trained": trained}


def _named(numbers: dict[str, float], name: str) -> dict[str, float]:
    return {name_with(key, name): value for key, value in numbers.items()}


def _add_to_results(run: Run, results: dict[str, dict[str, float]], name: str) -> None:
    """Write results beside those that are there already, rows in the order of every table."""
    there = run.results
    merged = {row: there.get(row, {}) | _named(results.get(row, {}), name) for row in ENCODERS}
    run.write_results({row: numbers for row, numbers in merged.items() if numbers})


def _results_table(results: dict[str, dict[str, float]], train: int, test: int) -> Table:
    columns = accuracies(results)
    best = {column: best_rows(results, column) for column in columns}
    table = Table("", *(name.replace("_", " ") for name in columns), title=f"{train} images to fit, {test} to test")
    for row, numbers in results.items():
        cells = [
            f"{numbers[c]:.3f}" + (f" ± {numbers[c + '_std']:.3f}" if c + "_std" in numbers else "")
            if c in numbers
            else "-"
            for c in columns
        ]
        bold = [f"[bold]{cell}[/]" if row in best[c] else cell for c, cell in zip(columns, cells, strict=True)]
        table.add_row(row.replace("_", " "), *bold)
    return table
