"""The verbs, in Python: pretrain, load, evaluate, embed, map."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from nearfar.data import Images, list_splits, open_images
from nearfar.encoders import Encoder, load_encoder
from nearfar.evaluation import check_format, evaluate_features, extract, raw_pixels, write_table
from nearfar.maps import draw_map, fit_map, write_map_page
from nearfar.methods import Recipe, describe, fitted_views, method_class, method_names
from nearfar.report import write_report
from nearfar.runs import Run
from nearfar.training import Config, build_method, initial_backbone, launch
from nearfar.training.config import Precision
from nearfar.training.environment import write_environment
from nearfar.training.optimizers import scaled_lr
from nearfar.views import plan

SMALL_NET_LIMIT = 96  # pixels; up to here the small net is the default encoder, above it ResNet-18


def pretrain(
    data: str | None = None,
    *,
    out: str | None = None,
    method: str = "saclr",
    recipe: str = "small",
    encoder: str | None = None,
    init: str | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    split: str | None = None,
    limit: int | None = None,
    views: str | None = None,
    held_out: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    micro_batch: int | Literal["auto"] | None = None,
    optimizer: Literal["sgd", "adamw", "lars"] | None = None,
    lr: float | None = None,
    final_lr: float | None = None,
    weight_decay: float | None = None,
    warmup_epochs: float | None = None,
    clip_gradient: float | None = None,
    precision: Precision = "32-true",
    accelerator: str = "auto",
    devices: int = 1,
    sync_batch_norm: bool = False,
    seed: int = 0,
    log_every: int = 10,
    health_every: int | None = None,
    tensorboard: bool = False,
    resume: str | None = None,
    console: Console | None = None,
    **hyperparameters: Any,
) -> Run:
    """Pretrain an encoder on images without labels and write a run folder.

    Args:
        data: folder, Parquet file or folder, WebDataset tars, .npy or .npz array, Hub data set, or "digits".
        out: run folder to write; it must not exist. Default: runs/DATA-METHOD.
        method: what is learned from, see `nearfar methods`.
        recipe: defaults to take from the method: "small" (tuned for small data) or a paper's, by its data's name.
        encoder: "small" or any timm backbone by name. Default: "small" up to 96 px, resnet18 above.
        init: local file with starting weights, .safetensors or .pth.
        image_size: pixels; images are resized to it. Default: their own up to 96 px, else 224.
        channels: 1 or 3. Default: 1 where all images are grey.
        split: part of the data to train on. Default: "train" where there is one, else everything.
        limit: train on the first so many images only.
        views: view plan: names of distributions joined by "+". Default: the method's, fitted to the images.
        held_out: images kept apart to measure health on, without labels. Default: a tenth, at most 512.
        epochs: passes over the images. Default: the recipe's, as for all below that are not set.
        batch_size: images in a batch, over all processes.
        micro_batch: images in memory at a time, with the exact gradient of the batch; "auto" finds a size that fits.
        optimizer: "sgd", "adamw" or "lars".
        lr: highest learning rate, taken as it is. Default: the recipe's, scaled to the batch.
        final_lr: last learning rate as a share of the highest.
        weight_decay: weight decay, left off for biases and norms.
        warmup_epochs: epochs of linear warm-up.
        clip_gradient: largest norm of the gradient.
        precision: "32-true", "bf16-mixed" or "16-mixed".
        accelerator: "auto", "cpu" or "cuda".
        devices: processes, one for each device.
        sync_batch_norm: batch statistics over all processes.
        seed: of weights, batches and views.
        log_every: steps between lines of metrics.jsonl.
        health_every: epochs between measurements of health. Default: about twenty in a run.
        tensorboard: also write tensorboard event files.
        resume: run folder to go on with from its checkpoint; all settings are taken from it.
        console: where progress is shown.
        hyperparameters: the method's own numbers, see `nearfar pretrain --method NAME --help`.

    Returns:
        The run: its path, encoder, metrics and verdict.

    Raises:
        ValueError: for anything that cannot be run as it is asked for; nothing is written then.
    """
    console = console or Console()
    if resume is not None:
        if data is not None or out is not None or hyperparameters:
            raise ValueError("--resume takes everything from the run folder; give it alone")
        run = Run(Path(resume))
        config = run.config
        images = open_images(config.data, split=config.split, image_size=config.image_size, channels=config.channels)
        launch(config, images, console, resume=True)
        write_report(run.path)
        return run
    if data is None:
        raise ValueError("name the images to train on: nearfar pretrain DATA")

    chosen = method_class(method)
    if recipe not in chosen.recipes:
        raise ValueError(f"{method} has no recipe {recipe!r}, it has: {', '.join(chosen.recipes)}")
    base = chosen.recipes[recipe]
    folder = Path(out) if out else Path("runs") / f"{Path(data).stem}-{method}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists already; choose another --out, or go on with --resume {folder}")
    images = open_images(data, split=split, image_size=image_size, channels=channels)
    total = min(limit, len(images)) if limit is not None else len(images)
    size = _or(batch_size, base.batch_size)
    apart = _or(held_out, min(512, total // 10))
    _check_sizes(epochs=epochs, batch_size=size, limit=limit, log_every=log_every, devices=devices)
    if size > total - apart:
        raise ValueError(
            f"the batch of {size} is larger than the {total - apart} images to train on; set a smaller --batch-size"
        )
    count = _or(epochs, base.epochs)
    numbers = dict(base.method) | hyperparameters
    crops = chosen(**numbers).crops()
    plan_name = views or fitted_views(crops, images.image_size, images.channels)
    if (made := len(plan(plan_name, images.image_size, images.channels))) != len(crops):
        raise ValueError(f"the view plan {plan_name!r} makes {made} views, but {method} needs {len(crops)}")
    config = Config(
        data=str(data),
        out=str(folder),
        method=method,
        hyperparameters=numbers,
        recipe=recipe,
        encoder=encoder or ("small" if images.image_size <= SMALL_NET_LIMIT else "resnet18"),
        init=init,
        image_size=images.image_size,
        channels=images.channels,
        split=split,
        limit=limit,
        views=plan_name,
        held_out=apart,
        epochs=count,
        batch_size=size,
        micro_batch=micro_batch,
        optimizer=_or(optimizer, base.optimizer),
        lr=_or(lr, _scaled(base, size)),
        final_lr=_or(final_lr, base.final_lr),
        weight_decay=_or(weight_decay, base.weight_decay),
        warmup_epochs=_or(warmup_epochs, min(base.warmup_epochs, count / 4)),
        clip_gradient=clip_gradient,
        precision=precision,
        accelerator=accelerator,
        devices=devices,
        sync_batch_norm=sync_batch_norm,
        seed=seed,
        log_every=log_every,
        health_every=_or(health_every, max(1, count // 20)),
        tensorboard=tensorboard,
    )
    build_method(config).wiring(total)  # a number out of range is found before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    config.save(folder / "config.yaml")
    write_environment(folder, seed)
    if images.skipped:
        (folder / "skipped.txt").write_text("".join(f"{name}\t{reason}\n" for name, reason in images.skipped))
        console.print(f"{len(images.skipped)} unreadable files skipped, listed in {folder / 'skipped.txt'}")
    console.print(f"{method} on {total} images of {images.image_size} px, {config.encoder}, {count} epochs -> {folder}")
    launch(config, images, console)
    write_report(folder)
    return Run(folder)


def load(run: str | Path) -> Encoder:
    """Return the encoder of a run in eval mode, with its preprocessing: uint8 [B, C, H, W] -> features [B, dim]."""
    return load_encoder(Path(run))


def evaluate(
    run: str | Path,
    data: str | None = None,
    *,
    protocol: Sequence[Literal["knn", "linear", "sgd", "few"]] = ("knn", "linear", "few"),
    limit: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    console: Console | None = None,
) -> dict[str, dict[str, float]]:
    """Compare the encoder with raw pixels and with itself untrained, on labelled images.

    Args:
        run: run folder.
        data: labelled images with a train and a test split, or without: then a share is kept for the test.
            Default: the data of the run.
        protocol: "knn", "linear" (L-BFGS), "sgd" (linear, the papers' protocol), "few" (1 and 5 labels a class).
        limit: use the first so many training images only. Default: as in the run.
        test_share: share of the images that is kept for the test where the data has no test split.
        seed: of that split and of the draws.
        console: where progress is shown.

    Returns:
        Accuracies by "raw_pixels", "untrained" and "trained"; also written to results.json and into the report.

    Raises:
        ValueError: for data without labels.
    """
    console = console or Console()
    folder, config = Path(run), Run(Path(run)).config
    train, test = _train_and_test(config, data, test_share, seed)
    limit = _or(limit, config.limit if data is None else None)
    if limit is not None:
        train = train.subset(range(min(limit, len(train))))
    encoder = load_encoder(folder)
    untrained = Encoder(
        initial_backbone(config),
        image_size=config.image_size,
        channels=config.channels,
        mean=encoder.mean.flatten().tolist(),
        std=encoder.std.flatten().tolist(),
    )
    results = {}
    for name, features_of in {"raw_pixels": raw_pixels, "untrained": untrained, "trained": encoder}.items():
        with console.status(f"evaluating {name.replace('_', ' ')}"):
            sets = [_features(features_of, images) for images in (train, test)]
            results[name] = evaluate_features(
                sets[0], train.labels, sets[1], test.labels, protocols=tuple(protocol), seed=seed
            )
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
    images = open_images(data or config.data, split=split, image_size=config.image_size, channels=config.channels)
    with console.status(f"embedding {len(images)} images"):
        features = _features(encoder, images).numpy()
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
    images = open_images(source, split=split, image_size=config.image_size, channels=config.channels)
    images = images.subset(range(min(limit, len(images))))
    with console.status(f"drawing the map of {len(images)} images"):
        seen = [_features(_augmented(encoder, images, config, seed, view), images) for view in range(views)]
        places = fit_map(torch.stack(seen), _features(encoder, images), epochs=epochs, seed=seed)
        draw_map(page.with_suffix(".png"), places, images.labels, images.class_names)
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


def _scaled(recipe: Recipe, batch_size: int) -> float:
    return scaled_lr(recipe.lr, batch_size, recipe.lr_scaling, recipe.reference_batch)


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _check_sizes(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {value}")


def _must_be_new(path: Path) -> None:
    if path.exists():
        raise ValueError(f"{path} exists already; choose another --out")


def _train_and_test(config: Config, data: str | None, share: float, seed: int) -> tuple[Images, Images]:
    """Open labelled images for fitting and for testing; both splits of the data, or a stratified cut of all of it."""
    source = data or config.data
    fitted = dict(image_size=config.image_size, channels=config.channels)
    if {"train", "test"} <= set(list_splits(source)):
        sets = [open_images(source, split=split, **fitted) for split in ("train", "test")]  # type: ignore[arg-type]
    else:
        images = open_images(source, **fitted)  # type: ignore[arg-type]
        _must_have_labels(images)
        rows = train_test_split(range(len(images)), test_size=share, random_state=seed, stratify=images.labels)
        sets = [images.subset(part) for part in rows]
    for images in sets:
        _must_have_labels(images)
    return sets[0], sets[1]


def _must_have_labels(images: Images) -> None:
    if images.labels is None:
        raise ValueError("these images have no labels to evaluate with; the report's verdict needs none")


def _features(encoder: nn.Module | Callable[[Tensor], Tensor], images: Images) -> Tensor:
    return extract(encoder, images.pixels)


def _results_table(results: dict[str, dict[str, float]], train: int, test: int) -> Table:
    columns = [name for name in results["trained"] if not name.endswith("_std")]
    table = Table("", *(name.replace("_", " ") for name in columns), title=f"{train} images to fit, {test} to test")
    for row, numbers in results.items():
        cells = (
            f"{numbers[c]:.3f}" + (f" ± {numbers[c + '_std']:.3f}" if c + "_std" in numbers else "") for c in columns
        )
        table.add_row(row.replace("_", " "), *cells)
    return table
