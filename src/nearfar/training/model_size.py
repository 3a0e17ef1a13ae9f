"""The encoder, the sizes of images and crops, and the precision of a run: chosen from what is known
of the data and what a measurement says of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nearfar.data.table import SMALL
from nearfar.networks import fitting_size
from nearfar.training.facts import Facts
from nearfar.training.settings import Settings

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
FASTER = 1.1  # by which half precision must be faster to be taken
# seconds left of a run of ten minutes, which tries torch.compile: that takes some 15
LEAST_COMPILED = 540.0
GAIN = 1.05  # by which it must be faster to be kept


class Candidate(NamedTuple):
    """An encoder, by name or as a module, and pixels of the sides of images and crops."""

    encoder: Any
    image_size: int
    crop_size: int


class Way(NamedTuple):
    """A way to compute a step."""

    precision: Any
    compiled: bool = False


Measure = Callable[[Candidate, int, Sequence[Way]], dict[Way, float] | None]
"""Images per second of a candidate for so many channels, by the way to compute: 0 where memory
ends, None where there is no time left for a trial.
"""


@dataclass(frozen=True)
class ModelChoice:
    """The choice that was made.

    rate: images per second of all processes; None where nothing had to be measured. reason: of the
    precision, for the end of a sentence. compiled: whether torch.compile is worth its start.
    """

    encoder: Any
    image_size: int
    crop_size: int
    precision: Any
    rate: float | None
    reason: str
    compiled: bool = False


def choose_model(
    given: Settings,
    facts: Facts,
    measure: Measure,
    candidates: Sequence[Candidate] | None = None,
) -> ModelChoice:
    """Choose the last of the candidates that leaves epochs enough; what a user gave is not chosen.

    candidates: default `model_candidates`. Raises what `measure` raises for networks that cannot be
    built.
    """
    first, *larger = candidates or model_candidates(given, facts.side)
    precision = given.precision
    if precision != "auto" and given.epochs is not None:
        return ModelChoice(*first, precision, None, "")
    chosen = _first_choice(given, facts, measure, first)
    way = Way(chosen.precision)
    for candidate in larger if _fits(chosen, given, facts) else ():
        rates = measure(candidate, facts.channels, [way])
        if rates is None:
            break
        rate = rates[way] * _together(facts)
        choice = ModelChoice(*candidate, chosen.precision, rate, chosen.reason)
        if not _fits(choice, given, facts):
            break
        chosen = choice
    if given.compile is None and given.epochs is None and facts.seconds >= LEAST_COMPILED:
        return _compiled(chosen, facts, measure)
    return chosen


def _first_choice(
    given: Settings, facts: Facts, measure: Measure, candidate: Candidate
) -> ModelChoice:
    """Measure the first candidate, by which the precision is chosen."""
    precision: Any = given.precision
    reason = ""
    if precision == "auto" and facts.half is None:
        # emulated, it would take more than the time of all trials
        precision, reason = "32-true", ", 32-true as this CPU has no bfloat16"
    ways = [Way("32-true"), Way(facts.half)] if precision == "auto" else [Way(precision)]
    rates = measure(candidate, facts.channels, ways) or {}
    if precision == "auto":
        exact, half = (rates.get(way, 0.0) for way in ways)
        gain = half / max(exact, 1e-9)
        precision = facts.half if gain > FASTER else "32-true"
        reason = f", {precision} as {_gain_in_words(facts.half, gain, exact)}"
    rate = rates.get(Way(precision), 0.0) * _together(facts)
    return ModelChoice(*candidate, precision, rate, reason)


def _fits(choice: ModelChoice, given: Settings, facts: Facts) -> bool:
    """Return whether epochs enough fit into the time."""
    images = min(given.limit or facts.images, facts.images)
    enough = images * (LEAST_ADAPT_EPOCHS if given.adapt else LEAST_EPOCHS)
    if choice.image_size <= FITTING[1]:
        enough = min(enough, LEAST_SEEN)
    return bool(images) and (choice.rate or 0.0) * facts.seconds >= enough


def _together(facts: Facts) -> int:
    """Return how many times as fast all processes are as one: on CPUs they share the cores."""
    return 1 if facts.device == "cpu" else facts.processes


def _gain_in_words(half: str | None, gain: float, exact: float) -> str:
    """Say how half precision compares with float32; exact: images per second of float32."""
    if not exact:
        return "float32 does not fit into the memory"
    kind = "bfloat16" if half == "bf16-mixed" else "float16"
    return f"{kind} has {gain:.1f} times the speed of float32"


def _compiled(chosen: ModelChoice, facts: Facts, measure: Measure) -> ModelChoice:
    """Return the choice compiled, if that is faster."""
    candidate = Candidate(chosen.encoder, chosen.image_size, chosen.crop_size)
    compiled, plain = Way(chosen.precision, compiled=True), Way(chosen.precision)
    rates = measure(candidate, facts.channels, [compiled, plain]) or {}
    gain = rates.get(compiled, 0.0) / max(rates.get(plain, 0.0), 1e-9)
    if gain < GAIN:
        return chosen
    return replace(
        chosen,
        rate=(chosen.rate or 0.0) * gain,
        reason=f"{chosen.reason}, and is {gain:.1f} times as fast compiled",
        compiled=True,
    )


def model_candidates(given: Settings, side: int) -> list[Candidate]:
    """List the encoders, image sizes and crop sizes to choose among: those of `MODEL_SIZES` that
    agree with what is given.

    Only with a time to fill is there more than one: for photographs, whose size is free, and images
    of about 32 px. Sizes that are chosen are multiples of a transformer's patch. side: pixels of
    the images.
    """
    free = side > SMALL and given.image_size is None
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

    least = min(side, given.crop_size or 1) if free else 1  # crops enlarge no image without need
    steps = tuple(dict.fromkeys((encoder, max(size, least)) for encoder, size in steps))
    sizes = [(encoder, given.image_size or fitted(encoder, size, size)) for encoder, size in steps]
    return [
        Candidate(encoder, size, given.crop_size or crop(encoder, size)) for encoder, size in sizes
    ]
