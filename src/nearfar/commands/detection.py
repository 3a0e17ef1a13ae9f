"""The protocols that train a detector on the encoder: from its weights, and from random ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from nearfar.commands.opening import shown
from nearfar.commands.report import write_report
from nearfar.commands.run import Run, load
from nearfar.data import describe
from nearfar.data.annotations import AnnotatedImages, open_annotated
from nearfar.data.images import sample
from nearfar.evaluation.detection import (
    TASKS,
    DetectorSettings,
    average_precision,
    build_detector,
    check_scorer,
    detector_settings,
    find_objects,
    fit_detector,
    steps_of,
)
from nearfar.evaluation.detection.batches import check_files
from nearfar.evaluation.detection.fit import Found, trainable
from nearfar.networks import Encoder
from nearfar.pages.detection import ROWS, write_detection_page
from nearfar.training import initial_backbone
from nearfar.training.pace import Pace
from nearfar.training.progress import TrainingProgress


def evaluate_detectors(
    run: Run,
    data: Any,
    tasks: Sequence[str],
    *,
    detector: str,
    epochs: float | None,
    limit: int | None,
    test_share: float,
    seed: int,
    baselines: bool,
    encoder: nn.Module | None,
    console: Console,
) -> dict[str, dict[str, float]]:
    """Train a detector from the run's weights, and with `baselines` from random ones, and compare what they find.

    See `nearfar.evaluate`; tasks: of "detect", "segment" and "keypoints". Writes results.json, after each training,
    TASK.html and the report. Returns AP, AP50, AP75 and those of each class, 0..1, as "TASK_AP" by "untrained",
    "starting_weights" (for a run with `init`) and "trained".
    """
    check_scorer()
    settings = detector_settings(detector)
    if epochs is not None:
        if not epochs > 0:
            raise ValueError(f"--epochs must be above 0, got {epochs}")
        settings = replace(settings, epochs=epochs, steps=None)
    source = run.settings.given("data") if data is None else data
    if not isinstance(source, (str, Path)):
        raise ValueError(f"{', '.join(tasks)} take a folder or a .json with annotations as DATA")
    encoders = _encoders(run, encoder, baselines, seed)
    opened = {}
    for task in tasks:  # everything that can be wrong is, before hours of training
        opened[task] = _sets(source, task, limit, test_share, seed)
        build_detector(encoders["trained"], settings, task, *_counts(opened[task][0]))
    results: dict[str, dict[str, float]] = {row: {} for row in encoders}
    for task, (train, test) in opened.items():
        about = {"detector": detector, "settings": asdict(settings), "data": Path(describe(source)).name, "seed": seed}
        about |= {"train_images": len(train), "test_images": len(test), "steps": steps_of(settings, len(train))}
        about["device"] = _device()
        numbers, found = {}, {}
        for row, one in encoders.items():
            numbers[row], found[row] = _trained(one, settings, task, train, test, seed, f"{task}, {ROWS[row]}", console)
            results[row] |= {f"{task}_{name}": value for name, value in numbers[row].items()}
            run.write_results(detection={**run.detection, task: {**about, "results": numbers}})
        page = run.path / f"{task}.html"
        write_detection_page(page, task, test, found)
        console.print(_table(task, numbers, detector, len(train), len(test)))
        console.print(Text(f"what was found -> {page}"))
    write_report(run.path)
    return results


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _counts(images: AnnotatedImages) -> tuple[int, int]:
    return len(images.class_names), len(images.keypoint_names)


def _encoders(run: Run, own: nn.Module | None, baselines: bool, seed: int) -> dict[str, Encoder]:
    """The encoders to start from; random weights are those of a net built anew, or of a module that was reset."""
    trained = load(run, encoder=own)
    if not baselines:
        return {"trained": trained}

    def like(backbone: Any) -> Encoder:
        moments = dict(mean=trained.mean.flatten().tolist(), std=trained.std.flatten().tolist())
        return Encoder(backbone, trained.image_size, trained.channels, **moments)

    torch.manual_seed(seed)
    architecture = trained.backbone.architecture
    if architecture is None:
        random = load(run, encoder=own)
        for module in random.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    else:
        random = like(architecture.build(run.settings.crop_size))
    rows = {"untrained": random}
    if run.settings.init is not None:
        rows["starting_weights"] = like(
            initial_backbone(replace(run.settings, frozen=0), run.settings.given("encoder") if own is None else own)
        )
    return {**rows, "trained": trained}


def _sets(
    source: str | Path, task: str, limit: int | None, share: float, seed: int
) -> tuple[AnnotatedImages, AnnotatedImages]:
    sets = open_annotated(source, keypoints=task == "keypoints", test_share=share, seed=seed)
    for images in sets:
        if task == "segment" and any(len(one.boxes) and not one.segmentations for one in images.images):
            raise ValueError(f"{source} has boxes without segmentations: segment takes COCO json with both")
        if task == "keypoints" and not images.keypoint_names:
            raise ValueError(f"{source} has no keypoints: they are in COCO json whose categories name them")
        check_files(images)
    train, test = trainable(sets[0]), sets[1]
    if all(one.crowd.all() for one in test.images):
        raise ValueError(f"{source}: the test images hold no annotated object")
    return (train if limit is None else train.subset(sample(len(train), limit, seed).tolist())), test


def _trained(
    encoder: Encoder,
    settings: DetectorSettings,
    task: str,
    train: AnnotatedImages,
    test: AnnotatedImages,
    seed: int,
    title: str,
    console: Console,
) -> tuple[dict[str, float], list[Found]]:
    """Train one detector; returns its numbers on the test images and what it found there."""
    torch.manual_seed(seed)  # the heads start alike in every row
    detector = build_detector(encoder, settings, task, *_counts(train))
    began, busy, steps = time.perf_counter(), time.process_time(), steps_of(settings, len(train))
    console.print(Text(f"{title}: {steps} steps of {settings.batch_size} images"))
    common: dict[str, Any] = dict(channels=encoder.channels, device=_device())
    with TrainingProgress(console, Pace(steps), 0, max(1, len(train) // settings.batch_size)) as bar:

        def advance(step: int, loss: float, rate: float, waiting: float) -> None:
            bar.advance(step)
            bar.update(step, loss, rate, waiting)

        fit_detector(detector, train, settings, seed=seed, progress=advance, **common)
    with shown(console, f"{title}: testing") as tested:
        found = find_objects(detector, test, progress=tested, **common)
    numbers = average_precision(test, found, TASKS[task])
    if task != "detect":
        numbers["box AP"] = average_precision(test, found)["AP"]
    spent = {"minutes": time.perf_counter() - began, "cpu minutes": time.process_time() - busy}
    return numbers | {key: round(seconds / 60, 2) for key, seconds in spent.items()}, found


def _table(task: str, numbers: dict[str, dict[str, float]], detector: str, train: int, test: int) -> Table:
    columns = list(numbers["trained"])
    table = Table("", *columns, title=f"{task} ({detector}): AP in percent, {train} images to fit, {test} to test")
    for row, own in numbers.items():
        cells = (f"{own[c]:.1f}" if "minutes" in c else f"{100 * own[c]:.1f}" for c in columns)
        table.add_row(ROWS[row], *cells)
    return table
