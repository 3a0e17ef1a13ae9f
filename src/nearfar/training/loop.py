"""The training loop, for every method, from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearfar.data import Batches, Images, Stream, StreamBatches, rank_rows
from nearfar.device import Setup, send, setup_of
from nearfar.messages import raise_as_value_error
from nearfar.methods import Model, Recipe
from nearfar.networks import Encoder, layer_scales, save_encoder
from nearfar.progress import log
from nearfar.training import run_folder
from nearfar.training.capture import TrainingStep
from nearfar.training.health import validation_health
from nearfar.training.optimizers import GroupRules, build_optimizer, rate_factor, set_rates
from nearfar.training.processes import Process
from nearfar.training.progress import StepBudget, TrainingProgress
from nearfar.training.readout import saved_encoder
from nearfar.training.resident import ResidentImages, keep_resident
from nearfar.training.run_folder import OnMetrics
from nearfar.training.seeding import derive_seed, stream
from nearfar.training.settings import Settings
from nearfar.training.step import MakeViews
from nearfar.training.stopping import StopRequest
from nearfar.training.views_ahead import ViewsAhead
from nearfar.views import ViewPlan, Views, apply_views, make_views, takes_views

Pixels = Tensor | list[Tensor]
"""uint8 images [batch, channels, size, size], or crops of them, one such tensor for each view."""
# a checkpoint at the end of an epoch, between so often and so rarely
SAVE_SECONDS, SAVE_LATEST = 10.0, 300.0
ASK_EVERY = 10  # steps at most, after which several processes agree on the pace and on stopping
HEALTH_TIMES = 20  # measurements of the health in a run, about
MOST_EPOCHS = 1000  # the longest runs of the papers


class TrainingDiverged(RuntimeError):
    """The loss is no longer a finite number."""


class TrainingStopped(RuntimeError):
    """The user stopped the run; its checkpoint is saved."""


class StoppedByHook(TrainingStopped):
    """The run was stopped by `on_metrics`; raised in all processes."""


def fit(
    process: Process,
    model: Model,
    images: Images | Stream,
    validation: Images | None,
    plan: Views,
    settings: Settings,
    recipe: Recipe,
    resume: bool = False,
    seconds: float | None = None,
    on_metrics: OnMetrics | None = None,
) -> float:
    """Train a model on images to the last epoch, with metrics and checkpoints in the folder
    `settings.out`.

    Returns the epochs that were trained: those of the settings, or as many as fitted into `seconds`
    where that is set.

    images: the training set. validation: the validation set, which measures the health of the
    representation. recipe: what no setting holds: drops of the learning rate, the start of the
    warm-up, biases and norms. resume: go on from the folder's checkpoint, with every number as if
    the run had not been interrupted; from the start where there is none yet. on_metrics: see
    `pretrain`; given to the first process alone.

    Raises TrainingStopped after Ctrl-C, StoppedByHook (or the hook's own error) after `on_metrics`,
    and TrainingDiverged for a loss that is not finite; all leave a checkpoint. Raises
    NotWrittenError for a full disk, and for a folder that was moved.
    """
    folder, checkpoint = Path(settings.out), Path(settings.out) / run_folder.CHECKPOINT
    batches = _batches(process, images, plan, settings)
    ahead = sample_ahead(process, batches, images, plan, settings)
    resident = keep_resident(images, process.device) if isinstance(images, Images) else None
    per_epoch = len(batches)
    pace = StepBudget(max(1, round(settings.epochs * per_epoch)), seconds, MOST_EPOCHS * per_epoch)
    warmup_steps = round(settings.warmup_epochs * per_epoch)
    drops = [epoch * settings.epochs / recipe.epochs * per_epoch for epoch in recipe.lr_drops]
    shape = drops, recipe.lr_drop, recipe.warmup_start
    health_every = max(1, int(settings.epochs) // HEALTH_TIMES)

    finite = set(run_folder.finite_names(model.state_dict()))
    device_setup = to_device(process, model, settings.precision, bool(settings.compile))
    constant = (
        [model.predictor]
        if model.setup.constant_predictor_lr and model.predictor is not None
        else []
    )
    optimizer = build_optimizer(
        settings.optimizer,
        model,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        rules=GroupRules(
            decay_all=recipe.decay_all,
            vector_lr=recipe.vector_lr,
            constant=constant,
            lr_scales=layer_scales(model.backbone.net, settings.layer_decay),
        ),
        fused=device_setup.fused.value,
        on_device=device_setup.captured.value,
    )
    take_step = TrainingStep(
        process,
        model,
        optimizer,
        settings.batch_size,
        settings.micro_batch,
        settings.clip_gradient,
    )
    if device_setup.captured.value and take_step.plain_because and process.is_first:
        log.info("steps are not captured: %s", take_step.plain_because)
    stop = StopRequest()
    step, loss_sum, loss_count = 0, torch.zeros((), device=process.device), 0
    resumed = resume and checkpoint.is_file()
    if resumed:
        state = run_folder.load_checkpoint(checkpoint)
        run_folder.must_be_finite(checkpoint, state, finite)
        with raise_as_value_error(f"the checkpoint {checkpoint} is of another run"):
            model.load_state_dict(state["model"])
            run_folder.load_optimizer(optimizer, state["optimizer"]["state"])
            process.scaler.load_state_dict(state["precision"])
            step, loss_sum, loss_count = (
                state["step"],
                state["loss_sum"].to(process.device),
                state["loss_count"],
            )
            pace.load(state["pace"], step)

    def save() -> None:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if spoiled := run_folder.not_finite(kept, finite):
            raise TrainingDiverged(_what_to_try(step, f"{spoiled} became nan or inf", checkpoint))
        if process.is_first:
            run_folder.check_unmoved(folder, metrics.home)
            saved = kept | {"step": step, "loss_sum": loss_sum, "loss_count": loss_count}
            saved |= {"pace": pace.state()}
            run_folder.save_checkpoint(
                checkpoint, saved | {"precision": process.scaler.state_dict()}
            )

    def log_health(at_an_end: bool) -> None:
        if validation is not None and process.is_first:
            health = validation_health(model, validation, plan, settings.seed, with_lidar=at_an_end)
            metrics.write(step, epoch=step / per_epoch, health=asdict(health))

    def keep(epochs: int) -> None:
        if process.is_first:
            run_folder.check_unmoved(folder, metrics.home)
            write_encoder(run_folder.kept_encoder(folder, epochs), model, images, settings)

    written = run_folder.MetricsLog(
        folder,
        step if resumed else -1,
        settings.tensorboard,
        process.is_first,
        on_metrics,
    )
    with (
        closing(written) as metrics,
        TrainingProgress(pace, step, per_epoch, shown=process.is_first) as progress,
        stop.listening() if process.listens else nullcontext(),
    ):
        if step == 0:
            log_health(at_an_end=True)
        last_saved = since = time.perf_counter()
        waited, seen = 0.0, 0
        coming = batches_from(batches, step, process.device, resident)
        while step < pace.steps:
            waiting_since = time.perf_counter()
            pixels, index = next(coming)
            waited += time.perf_counter() - waiting_since

            # The learning rate moves with every step, and so do the method's own scheduled numbers.
            position = pace.position(step)
            epoch = position / per_epoch
            lr = settings.lr * rate_factor(
                position, pace.scheduled, warmup_steps, settings.final_lr, *shape
            )
            set_rates(optimizer, lr, settings.lr)
            model.set_schedules(epoch, settings.epochs)

            model.train()
            views_of = view_maker(process, pixels, images, plan, settings, step, ahead)
            seed = derive_seed(settings.seed, "step", step)
            loss = take_step(views_of, index, seed, epoch, settings.epochs)
            step, seen = step + 1, seen + settings.batch_size
            loss_sum, loss_count = loss_sum + loss, loss_count + 1
            together = step % min(settings.log_every, ASK_EVERY) == 0
            if seconds is not None and (process.world_size == 1 or together):
                pace.change(step, process.broadcast(pace.fit(step)))
            is_last, ends_epoch = step == pace.steps, step % per_epoch == 0

            if step % settings.log_every == 0 or ends_epoch or is_last:
                mean = (loss_sum / loss_count).item()
                if not abs(mean) < float("inf"):
                    raise TrainingDiverged(
                        _what_to_try(step, f"the loss became {mean}", checkpoint)
                    )
                spent = time.perf_counter() - since
                of_loss = {
                    name: float(value)
                    for name, value in getattr(model.loss, "monitored", {}).items()
                }
                monitored = {"monitored": of_loss} if of_loss else {}
                metrics.write(
                    step,
                    epoch=step / per_epoch,
                    loss=mean,
                    lr=lr,
                    images_per_second=seen / spent,
                    data_wait=waited / spent,
                    **monitored,
                )
                progress.update(mean, seen / spent, waited / spent)
                loss_sum, loss_count = torch.zeros_like(loss_sum), 0
                waited, seen, since = 0.0, 0, time.perf_counter()
            if is_last or (ends_epoch and step // per_epoch % health_every == 0):
                log_health(at_an_end=is_last)
                since = time.perf_counter()
            unsaved = time.perf_counter() - last_saved
            if is_last or unsaved > SAVE_LATEST or (ends_epoch and unsaved > SAVE_SECONDS):
                save()
                last_saved = since = time.perf_counter()
            if settings.save_every and ends_epoch and step // per_epoch % settings.save_every == 0:
                keep(step // per_epoch)
                since = time.perf_counter()
            progress.advance(step)
            asks = process.device.type == "cpu" or process.world_size == 1 or together
            if metrics.stop or metrics.error is not None:
                stop.ask()
            # several GPUs would wait for it in every step
            if asks and stop.agreed(process.device) and not is_last:
                save()
                if process.is_first:
                    write_encoder(folder, model, images, settings)
                ending = StoppedByHook if process.broadcast(metrics.stop) else TrainingStopped
                raise metrics.error or ending(
                    f"stopped after step {step} of {pace.steps}, saved; resume with: "
                    f"`nearfar.resume({str(folder)!r})`"
                )
        trained = pace.steps / per_epoch
        if pace.steps < round(settings.epochs * per_epoch):
            metrics.write(step, epoch=trained, planned_epochs=settings.epochs)
        if metrics.error is not None:
            raise metrics.error
    return trained


def write_encoder(folder: Path, model: Model, images: Images | Stream, settings: Settings) -> None:
    """Write the encoder as it is now, with all that the run saves beside it, into a folder."""
    trained = Encoder(
        model.backbone,
        settings.image_size,
        settings.channels,
        images.mean,
        images.std,
        images.value_range,
    )
    save_encoder(folder, saved_encoder(trained, settings))


def _batches(
    process: Process, images: Images | Stream, plan: Views, settings: Settings
) -> Batches | StreamBatches:
    """Batches of whole images, or, where no pixels are stored, of crops that workers make from the
    original files.
    """
    pin = setup_of(process.device, settings.precision).pinned.value
    crops = plan.crops(settings.image_size)
    if isinstance(images, Stream):
        return StreamBatches(
            images,
            settings.batch_size,
            settings.seed,
            process.rank,
            process.world_size,
            crops=crops,
            workers=settings.workers,
            pin=pin,
            failed=run_folder.SkippedImages(Path(settings.out)),
        )
    return Batches(
        images,
        settings.batch_size,
        settings.seed,
        process.rank,
        process.world_size,
        crops=None if images.stored else crops,
        workers=settings.workers,
        pin=pin,
    )


def sample_ahead(
    process: Process,
    batches: Batches | StreamBatches,
    images: Images | Stream,
    plan: Views,
    settings: Settings,
) -> ViewsAhead | None:
    """Parameters of views for several steps, sampled beside the batches; None where no kernel takes
    them, and each step samples its own.
    """
    if not isinstance(plan, ViewPlan) or not takes_views(plan, process.device):
        return None
    size = settings.image_size
    is_cropped = isinstance(images, Stream) or not images.stored
    sides = [view.size or size for view in plan.views] if is_cropped else [size] * len(plan)
    ahead = ViewsAhead(
        plan,
        settings.seed,
        settings.batch_size,
        rank_rows(settings.batch_size, process.rank, process.world_size),
        [(side, side) for side in sides],
        process.device,
        is_cropped=is_cropped,
        pin=setup_of(process.device, settings.precision).pinned.value,
    )
    if isinstance(batches, Batches):
        batches.beside = ahead.prepare
    return ahead


def to_device(process: Process, model: Model, precision: Any, compiled: bool) -> Setup:
    """Put a model where it is trained, in place, in the device's memory format; and how that device
    computes.
    """
    model.to(process.device)
    if model.teacher_rows is not None:
        model.teacher_rows = model.teacher_rows.to(process.device)
    device_setup = setup_of(process.device, precision)
    if device_setup.channels_last.value:
        model.to(memory_format=torch.channels_last)
    if device_setup.captured.value and model.momentum_encoder is not None:
        model.momentum = torch.zeros((), dtype=torch.float64, device=process.device)
    if compiled:
        model.compile_networks()
    return device_setup


def batches_from(
    batches: Batches | StreamBatches,
    step: int,
    device: torch.device,
    resident: ResidentImages | None,
) -> Iterator[tuple[Pixels, Tensor]]:
    """Images and their positions, on the device, of every step from one on."""
    for epoch in count(step // len(batches)):
        start = step % len(batches) if epoch == step // len(batches) else 0
        if resident is not None and isinstance(batches, Batches):
            for index in batches.positions(epoch, start):
                sent = send(index, device)
                yield resident.take(sent), sent
            continue
        for pixels, index in batches.epoch(epoch, start):
            if isinstance(pixels, list):
                yield [send(view, device) for view in pixels], send(index, device)
            else:
                yield send(pixels, device), send(index, device)


def view_maker(
    process: Process,
    pixels: Pixels,
    images: Images | Stream,
    plan: Views,
    settings: Settings,
    step: int,
    ahead: ViewsAhead | None,
) -> MakeViews:
    """Make views of any of this rank's rows; sampled for the joined batch, W processes see what one
    would.
    """
    offset = rank_rows(settings.batch_size, process.rank, process.world_size).start
    sampled = None if ahead is None else ahead.take(step)

    def views_of(rows: slice) -> list[Tensor]:
        generator = stream(settings.seed, "views", step)
        joined = slice(offset + rows.start, offset + rows.stop)
        own = [view[rows] for view in pixels] if isinstance(pixels, list) else pixels[rows]
        if sampled is not None and isinstance(plan, ViewPlan):
            return apply_views(own, plan, sampled[rows], images.mean, images.std)
        return make_views(
            own, plan, generator, images.mean, images.std, joined, settings.batch_size
        )

    return views_of


def _what_to_try(step: int, problem: str, checkpoint: Path) -> str:
    kept = (
        f"the last good checkpoint is {checkpoint}"
        if checkpoint.is_file()
        else "that folder can be used again"
    )
    return (
        f"{problem} by step {step}; {kept}. Try a lower `lr`, `clip_gradient=1` or more "
        "`warmup_epochs`"
    )
