"""Compare the encoder with what needs no training, on labelled images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from nearfar.atomic import check_folder
from nearfar.commands.detection import TASKS, evaluate_detectors
from nearfar.commands.opening import features_shown, open_shown
from nearfar.commands.report import write_report
from nearfar.commands.run import Run, load
from nearfar.commands.worth import accuracies, best_rows, sentence
from nearfar.data import Images, list_splits
from nearfar.evaluation import check_protocols, colour_histogram, evaluate_features, hog, raw_pixels
from nearfar.messages import check_range
from nearfar.networks import Encoder
from nearfar.training import initial_backbone
from nearfar.training.seeding import LARGEST_SEED


def evaluate(
    run: str | Path | Run,
    data: Any = None,
    *,
    protocol: Sequence[str] = ("knn", "linear", "few"),
    limit: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    baselines: bool = True,
    encoder: nn.Module | None = None,
    detector: str = "small",
    epochs: float | None = None,
    console: Console | None = None,
) -> dict[str, dict[str, float]]:
    """Compare the encoder with what needs no training, on labelled images.

    Args:
        run: run folder.
        data: labelled images with a train and a test split, or without: then a share is kept for the test.
            Default: the data of the run.
        protocol: "knn" (20 neighbours), "knn_K" for other numbers, "linear" (L-BFGS), "sgd" (linear, as in the papers),
            "few" (1 and 5 labels a class, 20 trials); or "detect", "segment", "keypoints", apart from the others: data
            are annotations then, a folder in VOC's or COCO's layout or a COCO json (docs/detection.md).
        limit: use the first so many training images only. Default: as in the run.
        test_share: share of the images that is kept for the test where the data has no test split.
        seed: of that split and of the trials.
        baselines: also evaluate raw pixels, a colour histogram, HOG and the encoder before training.
        encoder: the module that was trained, where it was an object of your own, with its weights before training.
        detector: settings of the detector: "small", "small-c4", or a paper's: "lorac", "sce".
        epochs: of the detector's training. Default: as its settings say.
        console: where progress is shown.

    Returns:
        Accuracies by "raw_pixels", "colour_histogram", "hog", "untrained" ("starting_weights" for a run with `init`)
        and "trained"; also written to results.json and into the report.

    Raises:
        ValueError: for data without labels.
    """
    console = console or Console()
    run = Run.of(run)
    protocol = [protocol] if isinstance(protocol, str) else protocol
    if set(protocol) & set(TASKS):
        if strange := set(protocol) - set(TASKS):
            raise ValueError(f"{', '.join(TASKS)} take annotations, not labels: evaluate {min(strange)} by itself")
        return evaluate_detectors(
            run, data, protocol, detector=detector, epochs=epochs, limit=limit, test_share=test_share, seed=seed,
            baselines=baselines, encoder=encoder, console=console,
        )  # fmt: skip
    settings = run.settings
    check_range("--limit", limit, 1)
    check_range("--seed", seed, 0, LARGEST_SEED)
    if not 0 < test_share < 1:
        raise ValueError(f"--test-share must lie between 0 and 1, not {test_share}")
    check_protocols(protocol)
    check_folder(run.path)
    train, test = _train_and_test(run, data, test_share, seed, console)
    limit = settings.limit if limit is None and data is None else limit
    if limit is not None:
        train = train.subset(range(min(limit, len(train))))
    trained = load(run, encoder=encoder)
    encoders: dict[str, Callable[[Tensor], Tensor]] = {"trained": trained}
    if baselines:
        untrained = Encoder(
            initial_backbone(settings, settings.given("encoder") if encoder is None else encoder),
            image_size=settings.image_size,
            channels=settings.channels,
            mean=trained.mean.flatten().tolist(),
            std=trained.std.flatten().tolist(),
        )
        start = "untrained" if settings.init is None else "starting_weights"
        simple = {"raw_pixels": raw_pixels, "colour_histogram": colour_histogram, "hog": hog}
        encoders = {**simple, start: untrained, **encoders}
    results = {}
    for name, kind in encoders.items():
        fit, held = (features_shown(kind, images, console, name.replace("_", " ")) for images in (train, test))
        results[name] = evaluate_features(fit, train.labels, held, test.labels, protocols=protocol, seed=seed)
    run.write_results(results)
    write_report(run.path)
    console.print(_results_table(results, len(train), len(test)))
    console.print(Text(sentence(results)))
    return results


def _train_and_test(run: Run, data: Any, share: float, seed: int, console: Console) -> tuple[Images, Images]:
    """Open labelled images for fitting and for testing; both splits of the data, or a stratified cut of all of it."""
    source = run.settings.given("data") if data is None else data
    fitted = dict(image_size=run.settings.image_size, channels=run.settings.channels)
    if {"train", "test"} <= set(list_splits(source)):
        sets = [open_shown(source, console, split=split, **fitted) for split in ("train", "test")]
    else:
        images = open_shown(source, console, **fitted)
        _must_have_labels(images)
        rows = train_test_split(range(len(images)), test_size=share, random_state=seed, stratify=images.labels)
        sets = [images.subset(part) for part in rows]
    for images in sets:
        _must_have_labels(images)
    return sets[0], sets[1]


def _must_have_labels(images: Images) -> None:
    if images.labels is None:
        raise ValueError("these images have no labels to evaluate with; the report's verdict needs none")


def _results_table(results: dict[str, dict[str, float]], train: int, test: int) -> Table:
    columns = accuracies(results)
    best = {column: best_rows(results, column) for column in columns}
    table = Table("", *(name.replace("_", " ") for name in columns), title=f"{train} images to fit, {test} to test")
    for row, numbers in results.items():
        cells = [
            f"{numbers[c]:.3f}" + (f" ± {numbers[c + '_std']:.3f}" if c + "_std" in numbers else "") for c in columns
        ]
        bold = [f"[bold]{cell}[/]" if row in best[c] else cell for c, cell in zip(columns, cells, strict=True)]
        table.add_row(row.replace("_", " "), *bold)
    return table
