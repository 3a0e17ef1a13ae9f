"""Choices that fit a machine and a data set: encoder, image size, precision and epochs from a
measurement, and the batch.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.device import describe_gpu, find_device, half_precision, is_out_of_memory
from nearfar.messages import first_line, raise_as_value_error
from nearfar.methods import Method, Model, Recipe, Teacher
from nearfar.networks import build_backbone, fitting_size
from nearfar.progress import duration, log, waiting
from nearfar.threads import fastest_threads
from nearfar.training.fabric import build_fabric
from nearfar.training.loop import MOST_EPOCHS, to_device
from nearfar.training.optimizers import build_optimizer
from nearfar.training.processes import world_size
from nearfar.training.settings import Settings
from nearfar.training.step import GradientStep
from nearfar.training.teacher import teacher_of
from nearfar.views import Views, make_views

LEAST_EPOCHS, LEAST_ADAPT_EPOCHS = 100, 10
"""A larger net or image is taken only if this many epochs fit into the time; see
docs/photographs.md.
"""
MODEL_SIZES: tuple[tuple[str, int], ...] = (
    ("small", 96),
    ("small", 144),
    ("small", 192),
    ("resnet18", 192),
    ("resnet18", 240),
    ("resnet50", 240),
)
"""Encoders and image sizes for photographs, from the fastest to the slowest; crops have two thirds
of the side.
"""
FITTING, LEAST_SEEN = (28, 48), 200_000
"""Images of such sides keep them, and get the medium net where a run sees so many; crops have three
quarters.
"""
TURNS = 3  # trials of each precision, in turn; the best counts, as machines are noisy
FASTER = 1.1  # by which half precision must be faster to be taken
LONGEST = 10.0  # seconds of trials, about
PIXELS, LEAST, MOST = 64 * 96**2, 64, 128
"""A trial step has about so many pixels a view, in so many images: few small images would flatter
float32.
"""
LARGER = 256  # images of a trial step where the usual number is too few
# seconds left of a run of ten minutes, which tries torch.compile: that takes some 15
LEAST_COMPILED = 540.0
GAIN = 1.05  # by which it must be faster to be kept
SECONDS = 0.3  # of steps, after one that sets everything up; at least two steps
LEAST_WIDTH = 4  # of a projector's output that is made narrower
TRIAL = 256  # rows of a trial of heads and loss
TEACHER_DIM = 512  # features of a teacher in a trial


@dataclass(frozen=True)
class TrialResult:
    """The choice that was made, the images per second that were measured (None where nothing was),
    and why this precision.

    compiled: whether torch.compile is worth its start.
    """

    encoder: Any
    image_size: int
    crop_size: int
    precision: Any
    rate: float | None
    reason: str
    compiled: bool = False


def model_candidates(given: Settings, side: int, photographs: bool) -> list[tuple[Any, int, int]]:
    """List the encoders, image sizes and crop sizes to choose among: those of `MODEL_SIZES` that
    agree with what is given.

    Only with a time to fill is there more than one: for photographs, whose size is free, and images
    of about 32 px. Sizes that are chosen are multiples of a transformer's patch. side: pixels of
    the images.
    """
    free = photographs and given.image_size is None
    if not free or given.epochs is not None:
        size = given.image_size or (min(side, MODEL_SIZES[0][1]) if free else side)
        both = given.epochs is None and given.encoder is None and FITTING[0] <= size <= FITTING[1]
        encoders = ("small", "medium") if both else (given.encoder or MODEL_SIZES[0][0],)
        steps: tuple[tuple[Any, int], ...] = tuple((encoder, size) for encoder in encoders)
    else:
        steps = tuple(pair for pair in MODEL_SIZES if pair[1] <= side) or MODEL_SIZES[:1]
        if given.encoder is not None:
            steps = tuple((given.encoder, size) for size in sorted({size for _, size in steps}))
    named = given.views is None or isinstance(given.views, str)

    def fitted(encoder: Any, wanted: int, most: int) -> int:
        return fitting_size(encoder, wanted, most) if isinstance(encoder, str) else wanted

    def crop(encoder: Any, size: int) -> int:
        if free and named:
            return fitted(encoder, size * 2 // 3, size)
        small = (
            given.recipe == "small"
            and given.image_size is None
            and FITTING[0] <= size <= FITTING[1]
        )
        return fitted(encoder, size * 3 // 4, size) if small and named else size

    sizes = [(encoder, given.image_size or fitted(encoder, size, size)) for encoder, size in steps]
    return [(encoder, size, given.crop_size or crop(encoder, size)) for encoder, size in sizes]


def choose_model_size(
    given: Settings,
    method: Method,
    views_at: Callable[[int, int], Views],
    *,
    candidates: list[tuple[Any, int, int]],
    channels: int,
    images: int | None,
    seconds: float,
) -> TrialResult:
    """Choose among the candidates by a measurement of about ten seconds: the last one that leaves
    epochs enough.

    views_at: returns the views for an image size and a crop size. images: to train on; None where
    not known yet. seconds: time for the training. What a user gave is not chosen. Raises ValueError
    for what cannot be built.
    """
    precision, words = given.precision, ""
    if precision != "auto" and given.epochs is not None:
        return TrialResult(*candidates[0], precision, None, "")
    half: Any = half_precision(find_device(given.accelerator))
    if (
        precision == "auto" and half is None
    ):  # emulated, it would take more than the time of all trials
        precision, words = "32-true", ", 32-true as this CPU has no bfloat16"
    epochs = LEAST_ADAPT_EPOCHS if given.adapt else LEAST_EPOCHS
    chosen: TrialResult | None = None
    began = time.perf_counter()
    with waiting("measuring this machine"):
        for encoder, size, crop in candidates:
            precisions = ["32-true", half] if precision == "auto" else [precision]
            rates = dict.fromkeys(precisions, 0.0)
            for kind in precisions * TURNS if len(precisions) > 1 else precisions:
                rate = _measure_throughput(
                    given, method, views_at, (encoder, size, crop), channels, kind
                )
                rates[kind] = max(rates[kind], rate)
            if precision == "auto":
                gain = rates[half] / max(rates["32-true"], 1e-9)
                precision = half if gain > FASTER else "32-true"
                words = f", {precision} as {_gain_in_words(half, gain, rates['32-true'])}"
            rate = rates[precision] * (given.devices or 1 if _on_gpu(given) else 1)
            enough = images and (
                min(epochs * images, LEAST_SEEN) if size <= FITTING[1] else epochs * images
            )
            fits = enough is not None and rate * seconds >= enough
            if chosen is None or fits:
                chosen = TrialResult(encoder, size, crop, precision, rate, words)
            if not fits or time.perf_counter() - began > LONGEST:
                break
        assert chosen is not None
        if given.compile is None and given.epochs is None and seconds >= LEAST_COMPILED:
            chosen = _compiled(chosen, given, method, views_at, channels)
    return chosen


def _gain_in_words(half: str, gain: float, exact: float) -> str:
    """Say how half precision compares with float32; exact: images per second of float32."""
    if not exact:
        return "float32 does not fit into the memory"
    kind = "bfloat16" if half == "bf16-mixed" else "float16"
    return f"{kind} has {gain:.1f} times the speed of float32"


def _compiled(
    chosen: TrialResult,
    given: Settings,
    method: Method,
    views_at: Callable[[int, int], Views],
    channels: int,
) -> TrialResult:
    """Return the same, compiled, if that is faster; torch may lack a compiler, or fail with any
    error.
    """
    candidate = chosen.encoder, chosen.image_size, chosen.crop_size
    rates, began = {True: 0.0, False: 1e-9}, time.perf_counter()
    with suppress(Exception):
        for compiled in [True, False] * TURNS:
            if compiled and time.perf_counter() - began > 3 * LONGEST:  # on a busy machine
                break
            rate = _measure_throughput(
                given, method, views_at, candidate, channels, chosen.precision, compiled
            )
            rates[compiled] = max(rates[compiled], rate)
    if rates[True] < GAIN * rates[False]:
        return chosen
    words = f"{chosen.reason}, and is {rates[True] / rates[False]:.1f} times as fast compiled"
    rate = (chosen.rate or 0.0) * rates[True] / rates[False]
    return replace(chosen, rate=rate, reason=words, compiled=True)


def _measure_throughput(
    given: Settings,
    method: Method,
    views_at: Callable[[int, int], Views],
    candidate: tuple[Any, int, int],
    channels: int,
    precision: Any,
    compiled: bool = False,
) -> float:
    """Return the images per second of a candidate: its encoder, image size and crop size."""
    _, image_size, crop_size = candidate
    views = views_at(image_size, crop_size)

    def measured(batch_size: int | None) -> float:
        return training_speed(
            given,
            method,
            views,
            candidate,
            channels,
            precision=precision,
            batch_size=batch_size,
            compiled=compiled,
        )

    few = given.batch_size if (given.batch_size or LEAST) < LEAST else None
    with raise_as_value_error("a trial step failed", RuntimeError):
        with suppress(ValueError):
            return measured(few)
        return measured(max(LARGER, given.batch_size or 0))  # which the loss may need


def training_speed(
    given: Settings,
    method: Method,
    views: Views,
    candidate: tuple[str | nn.Module, int, int],
    channels: int,
    *,
    precision: Any = "32-true",
    batch_size: int | None = None,
    compiled: bool = False,
) -> float:
    """Return the images per second that a run would train on, from steps on random pixels; 0 if
    memory ends.

    given: for the device, the micro-batch and the teacher. candidate: an encoder, the size of the
    images, and that of the crops, which the encoder is built for. batch_size: of the trial; by
    default 64 to 128, the more the smaller the crops are. compiled: by torch.compile, whose time
    does not count. Data that must be decoded meanwhile is slower.
    """
    encoder, image_size, crop_size = candidate
    batch_size = batch_size or max(LEAST, min(PIXELS // crop_size**2, MOST))
    fabric = build_fabric(given.accelerator, precision)
    before, log.disabled = log.disabled, True
    try:
        backbone = build_backbone(encoder, image_size=crop_size, channels=channels)
        model = _with_rows(Model(method, backbone, batch_size, teacher_of(given)), batch_size)
    finally:
        log.disabled = before
    setup = to_device(fabric, model, precision, compiled)
    optimizer: Any = build_optimizer(
        "sgd", model, lr=0.0, weight_decay=0.0, fused=setup.fused.value
    )
    optimizer = fabric.setup_optimizers(optimizer)
    gradient_of = GradientStep(fabric, model, given.micro_batch)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(
        256, (batch_size, channels, image_size, image_size), dtype=torch.uint8, generator=generator
    )
    pixels, index = fabric.to_device((pixels, torch.arange(batch_size)))
    moments = [0.5] * channels

    def step() -> None:
        optimizer.zero_grad()
        loss, embeddings = gradient_of(
            lambda rows: make_views(pixels[rows], views, generator, moments, moments),
            index,
            batch_size,
            0,
        )
        optimizer.step()
        model.after_step(embeddings, 0.0, 1)
        loss.item()  # waits for a GPU

    model.train()
    return batch_size * _steps_in_a_second(step)


def _steps_in_a_second(step: Callable[[], None]) -> float:
    """Time steps after a first one, which sets everything up; 0 where memory ends."""
    try:
        step()
        began, steps = time.perf_counter(), 0
        while steps < 2 or time.perf_counter() - began < SECONDS:
            step()
            steps += 1
    except RuntimeError as error:
        if is_out_of_memory(error):
            return 0.0
        raise
    return steps / (time.perf_counter() - began)


def choose_threads(given: Settings) -> int:
    """Return the CPU threads of each process: as given, or the fastest number, or beside a GPU or
    others a share.
    """
    processes = world_size(given.devices)
    if given.threads is not None:
        return given.threads
    if processes == 1 and not _on_gpu(given):
        return fastest_threads()
    return max(1, torch.get_num_threads() // (1 if "OMP_NUM_THREADS" in os.environ else processes))


def default_precision(given: Settings) -> Any:
    """Return the precision for "auto" where processes cannot agree on a measurement: half
    precision on a GPU.
    """
    return half_precision(find_device(given.accelerator)) if _on_gpu(given) else "32-true"


def epochs_in(seconds: float, rate: float, images: int, batch_size: int) -> float:
    """Return how many epochs fit, whole ones where there are ten or more; at least one step, at
    most 1000 epochs.
    """
    epochs = min(rate * seconds / images, MOST_EPOCHS)
    return float(int(epochs)) if epochs >= 10 else max(round(epochs, 2), batch_size / images)


def reason(trial: TrialResult, settings: Settings, images: int) -> str:
    """Say in one line what was chosen and why."""
    assert trial.rate is not None
    place = describe_gpu()["name"] if _on_gpu(settings) else f"{torch.get_num_threads()} threads"
    return (
        f"about {duration(settings.epochs * images / trial.rate)}: {settings.epochs:g} "
        f"epochs of {images} training "
        f"images at {trial.rate:.0f} images/s on {place}{trial.reason}. "
        "To change it: `minutes`, `epochs`, `encoder`, `image_size`, `precision`"
    )


def _on_gpu(given: Settings) -> bool:
    return find_device(given.accelerator).type != "cpu"


def check_enough_images(images: int) -> None:
    """Raise ValueError for fewer than two images to train on."""
    if images < 2:
        raise ValueError(f"{images} image to train on is too few: images are compared with others")


def choose_batch(
    given: Settings, method: Method, recipe: Recipe, images: int
) -> tuple[Method, int]:
    """Return the method and a batch size that work on this many training images.

    With few images the recipe's batch becomes smaller: at most half of them, or all if the loss
    needs more; then the projector's output becomes narrower. Neither changes where the user gave
    it. Raises ValueError, with the complaint of the loss, where nothing works.
    """
    check_enough_images(images)
    if given.batch_size is not None and given.batch_size > images:
        raise ValueError(
            f"`batch_size={given.batch_size}` is larger than the {images} images to train on"
        )
    whole = min(recipe.batch_size, images)
    half = (
        recipe.batch_size
        if recipe.batch_size <= images
        else max(2, 1 << ((images // 2).bit_length() - 1))
    )
    sizes = (
        [given.batch_size] if given.batch_size is not None else list(dict.fromkeys([half, whole]))
    )
    complaint = ""
    *widths, last = method.projector
    halvable = isinstance(given.method, str) and "projector" not in given.hyperparameters
    halved = [
        last >> times
        for times in range(1, last.bit_length())
        if last >> times >= LEAST_WIDTH and halvable
    ]
    for fitted in (method, *(replace(method, projector=(*widths, width)) for width in halved)):
        for size in sizes:
            if problem := _problem(fitted, size, images, teacher_of(given)):
                complaint = complaint or problem
                continue
            changed = (
                [] if size == (given.batch_size or recipe.batch_size) else [f"`batch_size={size}`"]
            )
            if fitted.projector != method.projector:
                changed.append(f"`projector={fitted.projector}`")
            if changed:
                log.info("%s, for %d training images", " and ".join(changed), images)
            return fitted, size
    raise ValueError(f"`batch_size={sizes[-1]}` does not work: {complaint}")


def buildable() -> AbstractContextManager[None]:
    """Turn the errors of networks that cannot be built into one line."""
    kinds = (TypeError, RuntimeError, OverflowError, MemoryError)
    return raise_as_value_error("the networks cannot be built with these settings", *kinds)


class _Features(nn.Sequential):
    """In the place of a backbone: feature maps that are normalised as those of most are, and
    flattened.
    """

    shape, num_features = (16, 2, 2), 64

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(self.shape[0]), nn.Flatten())


def _with_rows(model: Model, images: int) -> Model:
    """Return a model for a trial, with a teacher's features of its images where it needs some."""
    if "teacher" in model.setup.pairing.names:
        model.teacher_rows = torch.randn(images, TEACHER_DIM)
    return model


def _problem(method: Method, batch_size: int, images: int, teacher: Teacher | None) -> str:
    """Return why heads and loss cannot take a batch of this size, empty where they can.

    A large batch is tried by a smaller one first, which costs less and divides into groups as it
    does. Raises ValueError for networks that cannot be built, whatever the batch.
    """
    problem = ""
    with buildable():
        setup = method.setup_for(images, teacher)
    groups = math.lcm(
        setup.norm_groups, setup.online_norm_groups, getattr(method, "group_size", None) or 1
    )
    less = max(0, batch_size - TRIAL) // groups * groups
    for rows in dict.fromkeys([batch_size - less, batch_size]):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            with buildable():
                model = _with_rows(Model(method, _Features(), images, teacher), rows).train()
            try:
                views: list[Tensor] = [torch.randn(rows, *_Features.shape) for _ in method.views]
                model.compute_loss(model(views), torch.arange(rows))
                return ""
            except (ValueError, RuntimeError) as error:
                problem = first_line(error)
    return problem
