"""The verbs, in Python: pretrain, load, evaluate, embed, map, methods."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sklearn.model_selection import train_test_split
from torch import Tensor

from nearfar.commands.features import features_of, view_features_of
from nearfar.commands.opening import open_shown
from nearfar.commands.pretrain import pretrain
from nearfar.commands.report import write_report
from nearfar.commands.run import Run
from nearfar.data import Images, list_splits
from nearfar.evaluation import check_format, evaluate_features, raw_pixels, write_table
from nearfar.maps import draw_map, fit_map, write_map_page
from nearfar.methods import describe, method_class, method_names
from nearfar.networks import Encoder, load_encoder
from nearfar.training import Config, initial_backbone
from nearfar.training.seeding import stream
from nearfar.views import plan

__all__ = ["embed", "evaluate", "load", "map", "methods", "pretrain"]


def load(run: str | Path) -> Encoder:
    """Return the encoder of a run in eval mode, with its preprocessing: uint8 [B, C, H, W] -> features [B, dim]."""
    return load_encoder(Path(run))


def evaluate(
    run: str | Path,
    data: str | None = None,
    *,
    protocol: Sequence[str] = ("knn", "linear", "few"),
    limit: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    baselines: bool = True,
    console: Console | None = None,
) -> dict[str, dict[str, float]]:
    """Compare the encoder with raw pixels and with itself untrained, on labelled images.

    Args:
        run: run folder.
        data: labelled images with a train and a test split, or without: then a share is kept for the test.
            Default: the data of the run.
        protocol: "knn" (20 neighbours), "knn_K" for other numbers, "linear" (L-BFGS), "sgd" (linear, as in the papers),
            "few" (1 and 5 labels a class, 20 trials).
        limit: use the first so many training images only. Default: as in the run.
        test_share: share of the images that is kept for the test where the data has no test split.
        seed: of that split and of the trials.
        baselines: also evaluate raw pixels and the untrained encoder.
        console: where progress is shown.

    Returns:
        Accuracies by "raw_pixels", "untrained" and "trained"; also written to results.json and into the report.

    Raises:
        ValueError: for data without labels.
    """
    console = console or Console()
    folder, config = Path(run), Run(Path(run)).config
    train, test = _train_and_test(config, data, test_share, seed, console)
    limit = config.limit if limit is None and data is None else limit
    if limit is not None:
        train = train.subset(range(min(limit, len(train))))
    encoder = load_encoder(folder)
    results = {}
    encoders: dict[str, Callable[[Tensor], Tensor]] = {"trained": encoder}
    if baselines:
        untrained = Encoder(
            initial_backbone(config),
            image_size=config.image_size,
            channels=config.channels,
            mean=encoder.mean.flatten().tolist(),
            std=encoder.std.flatten().tolist(),
        )
        encoders = {"raw_pixels": raw_pixels, "untrained": untrained, **encoders}
    for name, kind in encoders.items():
        fit, held = (features_of(kind, images, console, name) for images in (train, test))
        results[name] = evaluate_features(fit, train.labels, held, test.labels, protocols=protocol, seed=seed)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    write_report(folder)
    console.print(_results_table(results, len(train), len(test)))
    return results


def embed(
    run: str | Path,
    data: str | None = None,
    *,
    out: str,
    split: str | None = None,
    console: Console | None = None,
) -> Path:
    """Write the embedding of every image to a .parquet, .csv or .npz file.

    Args:
        run: run folder.
        data: images to embed. Default: the data of the run.
        out: file to write; it must not exist.
        split: part of the data. Default: everything.
        console: where progress is shown.

    Returns:
        The file that was written.
    """
    console = console or Console()
    path, config = Path(out), Run(Path(run)).config
    check_format(path)
    _must_be_new(path)
    encoder = load_encoder(Path(run))
    images = open_shown(
        data or config.data, console, split=split, image_size=config.image_size, channels=config.channels
    )
    features = features_of(encoder, images, console, "embedding").numpy()
    write_table(path, images.names, features, images.labels)
    console.print(f"{len(images)} embeddings of {features.shape[1]} numbers -> {path}")
    return path


def map(
    run: str | Path,
    data: str | None = None,
    *,
    out: str | None = None,
    split: str | None = None,
    limit: int = 20_000,
    views: int = 8,
    epochs: int | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> Path:
    """Draw the images on a plane, alike ones together: an interactive page and a picture.

    Args:
        run: run folder.
        data: images to draw. Default: the data of the run.
        out: page to write, with a .png beside it. Default: map.html in the run folder, written anew.
        split: part of the data. Default: that of the run.
        limit: draw the first so many images only.
        views: augmented views of each image that the map learns from.
        epochs: passes over the images. Default: fitted to their number.
        seed: of the map.
        console: where progress is shown.

    Returns:
        The page that was written.
    """
    console = console or Console()
    folder, config = Path(run), Run(Path(run)).config
    page = Path(out) if out else folder / "map.html"
    if out:
        _must_be_new(page)
    encoder = load_encoder(folder)
    source, split = data or config.data, split or (config.split if data is None else None)
    images = open_shown(source, console, split=split, image_size=config.image_size, channels=config.channels)
    images = images.subset(range(min(limit, len(images))))
    augmentation = plan(config.views, config.image_size, config.channels)
    seen = []
    for number in range(views):
        view, generator = augmentation.pick([number % len(augmentation)]), stream(seed, "map", number)
        seen.append(view_features_of(encoder, images, view, generator, console, f"view {number + 1} of {views}"))
    with console.status("laying out the map"):
        places = fit_map(torch.stack(seen), features_of(encoder, images), epochs=epochs, seed=seed)
    draw_map(page.with_suffix(".png"), places, images.labels, images.class_names, images=images)
    write_map_page(page, places, images)
    if not out:
        write_report(folder)
    console.print(f"map -> {page}", highlight=False)
    return page


def methods(*, console: Console | None = None) -> dict[str, dict[str, Any]]:
    """List the methods: paper, what each needs, and its defaults.

    Args:
        console: where the table is shown.

    Returns:
        For each method its paper, its needs and its default numbers.
    """
    facts = {name: describe(method_class(name)) for name in method_names()}
    if console is not None:
        table = Table("method", "paper", "needs", "numbers", title="nearfar methods")
        for name, fact in facts.items():
            numbers = ", ".join(f"{key} {value}" for key, value in fact["defaults"].items())
            table.add_row(name, fact["paper"], ", ".join(fact["needs"]), numbers)
        console.print(table)
    return facts


def _must_be_new(path: Path) -> None:
    if path.exists():
        raise ValueError(f"{path} exists already; choose another --out")


def _train_and_test(
    config: Config, data: str | None, share: float, seed: int, console: Console
) -> tuple[Images, Images]:
    """Open labelled images for fitting and for testing; both splits of the data, or a stratified cut of all of it."""
    source = data or config.data
    fitted = dict(image_size=config.image_size, channels=config.channels)
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
    columns = [name for name in results["trained"] if not name.endswith("_std")]
    table = Table("", *(name.replace("_", " ") for name in columns), title=f"{train} images to fit, {test} to test")
    for row, numbers in results.items():
        cells = (
            f"{numbers[c]:.3f}" + (f" ± {numbers[c + '_std']:.3f}" if c + "_std" in numbers else "") for c in columns
        )
        table.add_row(row.replace("_", " "), *cells)
    return table
