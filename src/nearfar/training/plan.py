"""From what was asked for and the facts to a plan with every number: what config.yaml holds.

`plan_run` is a pure function: it reads no clock, no file and no image, and builds no network but
the heads of a trial batch. Every number is decided here, each after those that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from nearfar.data import Images, Stream
from nearfar.data.images import divisors
from nearfar.data.value_range import EIGHT_BITS
from nearfar.methods import Method, Recipe, method_name
from nearfar.networks import OWN_NETS
from nearfar.progress import duration
from nearfar.training.batch_size import check_batch_size, choose_batch
from nearfar.training.facts import Facts
from nearfar.training.loop import MOST_EPOCHS
from nearfar.training.model_size import ModelChoice
from nearfar.training.optimizers import scaled_lr
from nearfar.training.processes import check_processes
from nearfar.training.readout import chosen_readout, trained_weight
from nearfar.training.request import Request, default_folder, serializable_source
from nearfar.training.settings import Settings, describe_object, given_or
from nearfar.training.teacher import teacher_of
from nearfar.training.view_choice import check_num_views, keep_colour_for, resolve_views, views_for
from nearfar.views import ViewPlan, Views

WHITENED = (
    "small",
    "medium",
)  # by default, see docs/photographs.md; "tiny" stays as tables compare by it
LAYER_DECAY, FROZEN, ADAPT_WARMUP = 0.7, 2, 0.1  # the last as a share of the epochs
MOST_HELD_OUT, MIN_VALIDATION, SHARE_HELD_OUT = 512, 2, 10  # the health of one image is not defined


@dataclass(frozen=True)
class Plan:
    """A run before its first step.

    settings: with nothing left to choose. seconds: time for the training, which the number of
    epochs is then fitted to. notes: what was chosen and why, a line each.
    """

    settings: Settings
    method: Method
    recipe: Recipe
    encoder: Any
    views: Views
    seconds: float | None
    notes: tuple[str, ...]


def plan_run(request: Request, facts: Facts, model: ModelChoice) -> Plan:
    """Plan a run; raises ValueError for what cannot be run as requested."""
    given, recipe = request.settings, request.recipe
    train, held_out, few = split_sizes(given, facts)
    method, batch_size, changed = choose_batch(given, request.method, recipe, train)
    check_processes(facts.processes, batch_size, given.micro_batch, bool(given.sync_batch_norm))
    seconds, epochs = None, given.epochs
    if epochs is None:
        seconds = facts.seconds
        epochs = epochs_in(seconds, model.rate or 1.0, train, batch_size)
    views = views_for(given, method, model.crop_size, facts.channels)
    settings = replace(
        given,
        data=serializable_source(given.data),
        out=given.out or str(default_folder(given)),
        method=method_name(method) or describe_object(method),
        hyperparameters={field.name: getattr(method, field.name) for field in fields(method)},
        image_size=model.image_size,
        crop_size=model.crop_size,
        channels=facts.channels,
        keep_colour=keep_colour_for(given, views),
        views=_as_written(views.to_dict() if isinstance(views, ViewPlan) else views),
        held_out=held_out,
        minutes=None,
        epochs=int(epochs) if epochs == int(epochs) else epochs,
        batch_size=batch_size,
        precision=model.precision,
        compile=given_or(given.compile, model.compiled),
        devices=facts.processes,
    )
    settings = _with_teacher(settings, given, method)
    settings = _with_encoder(settings, facts, model)
    settings = _with_optimisation(settings, recipe)
    notes = [*few, *changed]
    if model.rate:  # 0: a trial did not fit into the memory, and the run will say so
        notes.append(_reason(model, settings, facts, train))
    made = resolve_views(views, settings)
    check_num_views(made, method)
    if facts.opened is not None:
        moments = None if request.start is None else request.start.moments(facts.channels)
        settings, scaled = _with_pixels(settings, facts.opened, moments)
        notes = [*scaled, *notes]
    return Plan(settings, method, recipe, model.encoder, made, seconds, tuple(notes))


def split_sizes(given: Settings, facts: Facts) -> tuple[int, int, list[str]]:
    """Return the sizes of training and validation set, and a note where there is none.

    Raises ValueError for a validation set that leaves nothing, and a batch of more images than
    there are. They need no measurement, so that a mistake is told before one.
    """
    total = min(given_or(given.limit, facts.images), facts.images)
    held_out, notes = _validation_size(given, total)
    check_batch_size(given, total - held_out)
    return total - held_out, held_out, notes


def default_validation(total: int) -> int:
    """Return the size of the validation set of a run on so many images, where nobody chose it."""
    return min(MOST_HELD_OUT, total // SHARE_HELD_OUT)


def _validation_size(given: Settings, total: int) -> tuple[int, list[str]]:
    """Return the size of the validation set, and a note where there is none."""
    if given.held_out is None:
        share = default_validation(total)
        if share >= MIN_VALIDATION:
            return share, []
        return 0, [f"{total} images: too few for a validation set; skipping the health metrics"]
    if given.held_out == 1:
        raise ValueError("`held_out=1`: health metrics need two images or more; 0 skips them")
    if given.held_out >= total:
        raise ValueError(
            f"`held_out={given.held_out}` leaves none of the {total} images to train on"
        )
    return given.held_out, []


def epochs_in(seconds: float, rate: float, images: int, batch_size: int) -> float:
    """Return how many epochs fit, whole ones where there are ten or more; at least one step, at
    most 1000 epochs.
    """
    epochs = min(rate * seconds / images, MOST_EPOCHS)
    return float(int(epochs)) if epochs >= 10 else max(round(epochs, 2), batch_size / images)


def _with_teacher(settings: Settings, given: Settings, method: Method) -> Settings:
    teacher = teacher_of(settings)
    if teacher is None:
        return settings
    beside = method.setup_for(2, teacher).beside is not None
    return replace(
        settings,
        teacher=serializable_source(given.teacher),
        teacher_weight=teacher.weight if beside else None,
        teacher_temperature=teacher.temperature,
    )


def _with_encoder(settings: Settings, facts: Facts, model: ModelChoice) -> Settings:
    if settings.whiten and (settings.init is not None or model.encoder not in OWN_NETS):
        raise ValueError(
            f"`whiten` is for the encoders {', '.join(OWN_NETS)}, without starting weights"
        )
    grid, beside = chosen_readout(
        settings, model.encoder, facts.channels, model.image_size, facts.weights
    )
    whiten = settings.init is None and facts.channels == 3 and model.encoder in WHITENED
    return replace(
        settings,
        encoder=_as_written(model.encoder),
        grid=grid,
        beside=beside,
        whiten=given_or(settings.whiten, whiten),
        layer_decay=given_or(settings.layer_decay, LAYER_DECAY if settings.adapt else 1.0),
        frozen=given_or(settings.frozen, FROZEN if settings.adapt else 0),
    )


def _with_optimisation(settings: Settings, recipe: Recipe) -> Settings:
    lr = scaled_lr(recipe.lr, settings.batch_size, recipe.lr_scaling, recipe.reference_batch)
    warmup = min(recipe.warmup_epochs, settings.epochs / 4)
    if settings.adapt:
        warmup = ADAPT_WARMUP * settings.epochs
    return replace(
        settings,
        optimizer=given_or(settings.optimizer, recipe.optimizer),
        lr=given_or(settings.lr, lr),
        final_lr=given_or(settings.final_lr, recipe.final_lr),
        weight_decay=given_or(settings.weight_decay, recipe.weight_decay),
        warmup_epochs=given_or(settings.warmup_epochs, warmup),
    )


def _reason(model: ModelChoice, settings: Settings, facts: Facts, images: int) -> str:
    """Say in one line how long the run is, and why."""
    assert model.rate is not None
    return (
        f"about {duration(settings.epochs * images / model.rate)}: {settings.epochs:g} "
        f"epochs of {images} training "
        f"images at {model.rate:.0f} images/s on {facts.place}{model.reason}. "
        "To change it: `minutes`, `epochs`, `encoder`, `image_size`, `precision`"
    )


def _with_pixels(
    settings: Settings, images: Images | Stream, moments: tuple[list[float], list[float]] | None
) -> tuple[Settings, list[str]]:
    """Return the settings with what the pixels say, and notes on it: the value range, the split,
    and mean and standard deviation where they are not those of the images.

    moments: those of the starting weights. Raises ValueError for images that teach nothing, and for
    a value range that none of them has.
    """
    if images.value_range is None and settings.value_range not in (None, EIGHT_BITS):
        raise ValueError(
            "`value_range` is for images of more than 8 bits, and all of these have 8 bits"
        )
    mean, std, notes = settings.mean, settings.std, []
    if mean is None and moments is not None:
        mean, std = moments
    if mean is not None and std is not None:
        images.normalised_by(mean, std)  # raises ValueError for another number of channels
    elif max(images.std) == 0:
        raise ValueError(
            f"the {len(images)} images are all of one colour: there is nothing to learn from them"
        )
    elif min(images.std) == 0:
        notes = ["a channel is constant over all images: it is not scaled"]
        mean, std = images.mean, divisors(images.std)
    head = images.head if isinstance(images, Stream) else images
    weight, chosen = trained_weight(settings, settings.beside, head)
    return replace(
        settings,
        trained_weight=weight,
        image_size=images.image_size,
        channels=images.channels,
        value_range=images.value_range or EIGHT_BITS,
        split=given_or(settings.split, images.split),
        mean=mean,
        std=std,
    ), [*notes, *chosen]


def _as_written(value: Any) -> Any:
    """Return a name, or views as plain values, as they are, and describe an object."""
    return value if isinstance(value, (str, dict)) else describe_object(value)
