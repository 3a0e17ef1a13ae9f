"""The first verb: pretrain."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from nearfar.commands.opening import open_shown
from nearfar.commands.report import write_report
from nearfar.commands.run import Run
from nearfar.data import list_splits
from nearfar.methods import Model, Recipe, method_class
from nearfar.training import (
    Config,
    build_method,
    by_torchrun,
    check_machine,
    check_processes,
    follow,
    initial_backbone,
    is_follower,
    launch,
    world_size,
)
from nearfar.training.allocator import reuse_memory
from nearfar.training.config import Precision
from nearfar.training.environment import write_environment
from nearfar.training.optimizers import build_optimizer, scaled_lr
from nearfar.views import fit_views, plan

log = logging.getLogger("nearfar")
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
    devices: int | None = None,
    sync_batch_norm: bool = False,
    seed: int = 0,
    log_every: int = 10,
    health_every: int | None = None,
    tensorboard: bool = False,
    cache: bool = True,
    workers: int = 2,
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
        devices: processes, one for each device. Default: 1, all that torchrun started, or those of the resumed run.
        sync_batch_norm: batch statistics over all processes.
        seed: of weights, batches and views.
        log_every: steps between lines of metrics.jsonl.
        health_every: epochs between measurements of health. Default: about twenty in a run.
        cache: keep decoded images on disk; without, and beyond 8 GiB, workers decode and crop them anew in each epoch.
        workers: processes that do so.
        tensorboard: also write tensorboard event files.
        resume: run folder to go on with from its checkpoint; all settings are taken from it.
        console: where progress is shown.
        hyperparameters: the method's own numbers, see `nearfar pretrain --method NAME --help`.

    Returns:
        The run: its path, encoder, metrics and verdict.

    Raises:
        ValueError: for anything that cannot be run as it is asked for; nothing is written then.
    """
    reuse_memory()
    console = console or Console()
    if is_follower():
        settings = Run(Path(resume)).config if resume is not None else None
        wanted = (accelerator, precision) if settings is None else (settings.accelerator, settings.precision)
        return Run(Path(follow(*wanted)))
    if resume is not None:
        if data is not None or out is not None or hyperparameters:
            raise ValueError("--resume takes everything but --devices from the run folder; give it alone")
        run = Run(Path(resume))
        config = run.config
        if devices is not None or by_torchrun():
            config = replace(config, devices=world_size(devices))
        check_processes(config.devices, config.batch_size, config.micro_batch, config.sync_batch_norm)
        images = open_shown(
            config.data,
            console,
            split=config.split,
            image_size=config.image_size,
            channels=config.channels,
            cache=config.cache,
        )
        launch(config, images, console, resume=True)
        write_report(run.path)
        return run
    if data is None:
        raise ValueError("name the images to train on: nearfar pretrain DATA")

    processes = world_size(devices)
    chosen = method_class(method)
    if recipe not in chosen.recipes:
        raise ValueError(f"{method} has no recipe {recipe!r}, it has: {', '.join(chosen.recipes)}")
    base = chosen.recipes[recipe]
    folder = Path(out) if out else Path("runs") / f"{Path(data).stem}-{method}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists already; choose another --out, or go on with --resume {folder}")
    if split is None and "train" in list_splits(data):
        split = "train"
    images = open_shown(data, console, split=split, image_size=image_size, channels=channels, cache=cache)
    total = min(limit, len(images)) if limit is not None else len(images)
    size = _or(batch_size, base.batch_size)
    apart = _or(held_out, min(512, total // 10))
    sizes = dict(epochs=epochs, batch_size=size, limit=limit, log_every=log_every, devices=devices)
    _check_sizes(**sizes, micro_batch=None if micro_batch == "auto" else micro_batch)
    check_processes(processes, size, micro_batch, sync_batch_norm)
    check_machine(accelerator, precision, processes)
    if apart < 0:
        raise ValueError(f"--held-out must be 0 or more images, not {apart}")
    count = _or(epochs, base.epochs)
    numbers = dict(base.hyperparameters) | hyperparameters
    needed = chosen(**numbers).views
    plan_name = views or "+".join(fit_views(needed, images.image_size, images.channels))
    if (made := len(plan(plan_name, images.image_size, images.channels))) != len(needed):
        raise ValueError(f"the view plan {plan_name!r} makes {made} views, but {method} needs {len(needed)}")
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
        devices=processes,
        sync_batch_norm=sync_batch_norm,
        seed=seed,
        log_every=log_every,
        health_every=_or(health_every, max(1, count // 20)),
        tensorboard=tensorboard,
        cache=cache,
        workers=workers,
    )
    _must_be_buildable(config, total)
    if size > total - apart:
        raise ValueError(
            f"the batch of {size} is larger than the {total - apart} images to train on; set a smaller --batch-size"
        )
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


def _scaled(recipe: Recipe, batch_size: int) -> float:
    return scaled_lr(recipe.lr, batch_size, recipe.lr_scaling, recipe.reference_batch)


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _check_sizes(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {value}")


def _must_be_buildable(config: Config, images: int) -> None:
    """Raise ValueError for networks, numbers or an optimiser that cannot be built, before a file is written."""
    log.disabled = True  # the choice of stem is told when the run builds its own
    try:
        model = Model(build_method(config), initial_backbone(config), images)
        build_optimizer(config.optimizer, model, lr=config.lr, weight_decay=config.weight_decay)
    finally:
        log.disabled = False
