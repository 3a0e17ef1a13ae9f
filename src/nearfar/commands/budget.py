"""What a machine can train in the time there is: encoder, image size, precision and epochs, from a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from nearfar.commands import adapting
from nearfar.messages import first_line
from nearfar.methods import Method
from nearfar.networks import size_step
from nearfar.threads import fastest_threads
from nearfar.training import world_size
from nearfar.training.loop import MOST_EPOCHS
from nearfar.training.progress import duration, waiting
from nearfar.training.settings import Settings
from nearfar.training.speed import training_speed
from nearfar.views import Views

MINUTES = 30.0
LEAST_EPOCHS = 100
"""A larger net or image is taken only if this many epochs fit into the time; see docs/photographs.md."""
RUNGS: tuple[tuple[str, int], ...] = (
    ("small", 96),
    ("small", 144),
    ("small", 192),
    ("resnet18", 192),
    ("resnet18", 240),
    ("resnet50", 240),
)
"""Encoders and image sizes for photographs, from the fastest to the slowest; crops have two thirds of the side."""
LARGER = 256  # images of a trial step where the usual number is too few
FITTING, LEAST_SEEN = (28, 48), 200_000
"""Images of such sides keep them, and get the medium net where a run sees so many; crops have three quarters."""
TURNS = 3  # trials of each precision, in turn and the best counts, as machines are noisy
_FASTER = 1.1
_SECONDS = 10.0


@dataclass(frozen=True)
class Machine:
    """What was chosen, with the images per second that were measured (None where nothing was), and the reason."""

    encoder: Any
    image_size: int
    crop_size: int
    precision: Any
    rate: float | None
    reason: str


def rungs(given: Settings, side: int, photographs: bool) -> list[tuple[Any, int, int]]:
    """List the encoders, image sizes and crop sizes to choose among: those of `RUNGS` that agree with what is given.

    Only for a time to fill is there more than one encoder: for photographs, whose size is free, and images of about 32
    px; else the first.
    Sizes that are chosen are multiples of a transformer's patch. side: pixels of the images.
    """
    free = photographs and given.image_size is None
    if not free or given.epochs is not None:
        size = given.image_size or (min(side, RUNGS[0][1]) if free else side)
        both = given.epochs is None and given.encoder is None and FITTING[0] <= size <= FITTING[1]
        encoders = ("small", "medium") if both else (given.encoder or RUNGS[0][0],)
        steps: tuple[tuple[Any, int], ...] = tuple((encoder, size) for encoder in encoders)
    else:
        steps = tuple(rung for rung in RUNGS if rung[1] <= side) or RUNGS[:1]
        if given.encoder is not None:
            steps = tuple((given.encoder, size) for size in sorted({size for _, size in steps}))
    step = size_step(given.encoder) if isinstance(given.encoder, str) else 1
    named = given.views is None or isinstance(given.views, str)

    def fitted(size: int) -> int:
        return max(step, size // step * step)

    def crop(size: int) -> int:
        if free and named:
            return fitted(size * 2 // 3)
        small = given.recipe == "small" and given.image_size is None and FITTING[0] <= size <= FITTING[1]
        return fitted(size * 3 // 4) if small and named else size

    sizes = [(encoder, given.image_size or fitted(size)) for encoder, size in steps]
    return [(encoder, size, given.crop_size or crop(size)) for encoder, size in sizes]


def choose_machine(
    given: Settings,
    method: Method,
    views_at: Callable[[int, int], Views],
    *,
    candidates: list[tuple[Any, int, int]],
    channels: int,
    images: int | None,
    seconds: float,
    console: Console,
) -> Machine:
    """Choose among the candidates by a measurement of about ten seconds: the last one that leaves epochs enough.

    views_at: returns the views for an image size and a crop size. images: to train on; None where not known yet.
    seconds: time for the training. What a user gave is not chosen. Raises ValueError for what cannot be built.
    """
    decided = given.precision != "auto" and given.epochs is not None
    needed = adapting.LEAST_EPOCHS if given.adapt else LEAST_EPOCHS
    chosen: Machine | None = None
    precision, words = given.precision, ""
    began = time.perf_counter()
    if decided:
        return Machine(*candidates[0], precision, None, "")
    with waiting(console, "measuring this machine"):
        for encoder, size, crop in candidates:
            asked = ["32-true", "bf16-mixed"] if precision == "auto" else [precision]
            rates = dict.fromkeys(asked, 0.0)
            for kind in asked * TURNS if len(asked) > 1 else asked:
                views = views_at(size, crop)
                rates[kind] = max(rates[kind], _speed(given, method, encoder, views, size, crop, channels, kind))
            if precision == "auto":
                gain = rates["bf16-mixed"] / max(rates["32-true"], 1e-9)
                precision = "bf16-mixed" if gain > _FASTER else "32-true"
                words = f", {precision} as bfloat16 has {gain:.1f} times the speed of float32"
            rate = rates[precision] * (given.devices or 1 if _on_gpu(given) else 1)
            enough = images and (min(needed * images, LEAST_SEEN) if size <= FITTING[1] else needed * images)
            fits = enough is not None and rate * seconds >= enough
            if chosen is None or fits:
                chosen = Machine(encoder, size, crop, precision, rate, words)
            if not fits or time.perf_counter() - began > _SECONDS:
                break
    assert chosen is not None
    return chosen


def choose_threads(given: Settings) -> int:
    """Return the CPU threads of each process: as given, or the fastest number, or beside a GPU or others a share."""
    processes = world_size(given.devices)
    if given.threads is not None:
        return given.threads
    if processes == 1 and not _on_gpu(given):
        return fastest_threads()
    return max(1, torch.get_num_threads() // (1 if "OMP_NUM_THREADS" in os.environ else processes))


def epochs_in(seconds: float, rate: float, images: int, batch_size: int) -> float:
    """Return how many epochs fit, whole ones where there are ten or more; at least one step, at most 1000 epochs."""
    epochs = min(rate * seconds / images, MOST_EPOCHS)
    return float(int(epochs)) if epochs >= 10 else max(round(epochs, 2), batch_size / images)


def reason(machine: Machine, settings: Settings, images: int) -> str:
    """Say in one line what was chosen and why."""
    assert machine.rate is not None
    place = torch.cuda.get_device_name() if _on_gpu(settings) else f"{torch.get_num_threads()} threads"
    return (
        f"about {duration(settings.epochs * images / machine.rate)}: {settings.epochs:g} epochs of {images} images "
        f"at {machine.rate:.0f} images/s on {place}{machine.reason}. "
        "To change it: --minutes, --epochs, --encoder, --image-size, --precision"
    )


def _speed(
    given: Settings, method: Method, encoder: Any, views: Views, size: int, crop: int, channels: int, precision: str
) -> float:
    wanted: dict[str, Any] = dict(image_size=size, crop_size=crop, channels=channels, accelerator=given.accelerator)
    wanted["small_stem"] = given.small_stem
    try:
        try:
            return training_speed(method, encoder, views, **wanted, precision=precision)
        except ValueError:  # perhaps the loss needs more images
            larger = max(LARGER, given.batch_size or 0)
            return training_speed(method, encoder, views, **wanted, precision=precision, batch_size=larger)
    except RuntimeError as error:
        raise ValueError(f"a trial step failed: {first_line(error)}") from error


def _on_gpu(given: Settings) -> bool:
    return given.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
