"""From settings as given to a plan with every number: names become objects, defaults are chosen,
all is checked.
"""

from __future__ import annotations

import os
import time
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearfar.data import Images, Stream, describe, list_splits, scan
from nearfar.data.opening import scanned
from nearfar.data.sources import are_paths
from nearfar.data.table import SMALL, most_common_side, printable, readable
from nearfar.data.value_range import EIGHT_BITS, FormatRequest
from nearfar.device import find_device, quiet_compiler
from nearfar.messages import check_known, raise_as_value_error
from nearfar.methods import Method, Model, Recipe, method_class, method_name
from nearfar.networks import (
    OWN_NETS,
    Encoder,
    StartingWeights,
    check_encoder,
    find_weights,
    fitting_size,
)
from nearfar.networks.backbone import name_and_arguments
from nearfar.progress import log, say_read
from nearfar.training.budget import (
    TrialResult,
    buildable,
    check_enough_images,
    choose_batch,
    choose_model_size,
    epochs_in,
    model_candidates,
    reason,
)
from nearfar.training.fabric import check_machine
from nearfar.training.job import Job, opened
from nearfar.training.optimizers import scaled_lr
from nearfar.training.processes import check_processes, world_size
from nearfar.training.readout import check_beside, chosen_readout
from nearfar.training.run_folder import CONFIG, TABLE
from nearfar.training.settings import (
    OBJECTS,
    Described,
    Settings,
    check_hyperparameters,
    describe_object,
    settings_fields,
)
from nearfar.training.teacher import teacher_of
from nearfar.views import PRESETS, ViewFunction, ViewPlan, Views, fit_views, plan

MINUTES, ADAPT_MINUTES = 30.0, 10.0
FINISHING = 6.0  # seconds for the last health metrics, the nearest images, the files and the report
PHOTOGRAPH = 64  # pixels of crops; from here on runs for small data take the preset for photographs
MOST_VIEWS = 100  # of an image
KEEP_COLOUR = 0.5  # of photographs; see docs/views.md
WHITENED = (
    "small",
    "medium",
)  # by default, see docs/photographs.md; "tiny" stays as tables compare by it
ADAPT_ENCODER = "resnet18"  # of `init='timm'` without `encoder`
LAYER_DECAY, FROZEN, ADAPT_WARMUP = 0.7, 2, 0.1  # the last as a share of the epochs
MOST_HELD_OUT, MIN_VALIDATION, SHARE_HELD_OUT = 512, 2, 10  # the health of one image is not defined


def plan_run(given: Settings, began: float) -> tuple[Job, Model]:
    """Resolve the settings of a new run and build its networks; nothing is written.

    began: when the time of the run began, as `time.perf_counter` gave it.
    Raises ValueError for anything that cannot be run as requested.
    """
    for name in OBJECTS:
        given.given(name)
    if given.encoder is not None:
        check_encoder(given.encoder)
        if isinstance(given.encoder, str):
            name_and_arguments(given.encoder)
        _must_learn(given.encoder)
    given, start = _with_start(given)
    method, recipe = resolve_method(given)
    given, recipe = _with_recipe(given, recipe)
    _check(given, method, recipe)
    images, trial = _open_and_measure(given, method, began)

    total = min(_or(given.limit, len(images)), len(images))
    validation_size = _validation_size(given, total)
    if isinstance(images, Stream):
        total = validation_size + len(images.split_holdout(validation_size, given.seed)[0])
    method, batch_size = choose_batch(given, method, recipe, total - validation_size)
    seconds, epochs = None, given.epochs
    if epochs is None:
        seconds = _seconds_left(given, began)
        epochs = epochs_in(seconds, trial.rate or 1.0, total - validation_size, batch_size)
    views = views_for(given, method, trial.crop_size, images.channels)
    settings = replace(
        given,
        keep_colour=keep_colour_for(given, views),
        out=given.out or str(default_folder(given)),
        method=method_name(method) or describe_object(method),
        hyperparameters={field.name: getattr(method, field.name) for field in fields(method)},
        views=_as_written(views.to_dict() if isinstance(views, ViewPlan) else views),
        held_out=validation_size,
        minutes=None,
        epochs=int(epochs) if epochs == int(epochs) else epochs,
        precision=trial.precision,
        compile=_or(given.compile, trial.compiled),
        devices=world_size(given.devices),
    )
    settings = _with_teacher(settings, method)
    settings = _with_data(settings, images, start)
    settings = _with_encoder(settings, images, trial)
    settings = _with_optimisation(settings, recipe, batch_size, epochs)
    if trial.rate:  # 0: a trial did not fit into the memory, and the run will say so
        log.info("%s", reason(trial, settings, total - validation_size))
    job = Job(
        settings, method, recipe, trial.encoder, resolve_views(views, settings), images, seconds
    )
    check_num_views(job.views, method)
    with buildable():
        return job, job.model()


def _must_learn(encoder: str | nn.Module) -> None:
    """Raise ValueError for a module of the user's own that training would leave as it is, or that
    normalises by itself.
    """
    weights = list(encoder.parameters()) if isinstance(encoder, nn.Module) else []
    if isinstance(encoder, Encoder):
        raise ValueError(
            "the encoder of a run normalises images itself: give its backbone, "
            "encoder=nearfar.load(run).backbone.net, or start from its weights by init=run"
        )
    if weights and not any(weight.requires_grad for weight in weights):
        raise ValueError(
            f"nothing of the encoder would be trained: all of its {len(weights)} parameters have "
            f"requires_grad=False; call encoder.requires_grad_(True)"
        )


# Method and recipe


def resolve_method(settings: Settings) -> tuple[Method, Recipe]:
    """Return the method with its hyperparameters, and the recipe, which has the other defaults."""
    method, given = settings.method, settings.hyperparameters
    if not isinstance(method, (str, Method)):
        raise ValueError(f"method must be a name or a nearfar.methods.Method, not {method!r}")
    kind = method_class(method) if isinstance(method, str) else type(method)
    recipe = kind.recipe(settings.recipe)
    known, names = (
        [field.name for field in fields(kind)],
        [field.name for field in settings_fields()],
    )
    if taken := [name for name in known if name in names]:
        raise ValueError(
            f"{kind.__name__}'s field {' and '.join(taken)} has the name of a setting: rename it"
        )
    for name in given:
        check_known("setting or hyperparameter", name, known + names, "see `nearfar methods`")
    if isinstance(method, str):
        check_hyperparameters(kind, given)
        method = kind.from_recipe(settings.recipe, **given)
    elif given:
        raise ValueError(
            f"{', '.join(given)}: a method that is an object already has its hyperparameters"
        )
    if len(method.views) > MOST_VIEWS:
        raise ValueError(
            f"{len(method.views)} views of each image are too many: at most {MOST_VIEWS}"
        )
    return method, recipe


def short_name(method: Method) -> str:
    """Return the name of a method, or that of its class."""
    return method_name(method) or type(method).__name__.lower()


def _with_recipe(given: Settings, recipe: Recipe) -> tuple[Settings, Recipe]:
    """Return the settings with what a paper's recipe says of encoder, images and time, and the
    recipe for `adapt`.
    """
    if given.minutes is not None and given.epochs is not None:
        raise ValueError("`minutes` and `epochs` both say how long a run is; give one of them")
    timed = given.epochs is not None or given.minutes is not None
    if given.adapt:  # the projector is new and learns at the full rate, the encoder at LAYER_DECAY
        recipe = replace(
            recipe,
            optimizer="adamw",
            lr=3e-4,
            lr_scaling="sqrt",
            reference_batch=256,
            weight_decay=0.05,
        )
    if given.recipe == "small":
        minutes = given.minutes if timed else ADAPT_MINUTES if given.adapt else MINUTES
        return replace(given, minutes=minutes, sync_batch_norm=bool(given.sync_batch_norm)), recipe
    return replace(
        given,
        encoder=_or(given.encoder, None if given.init else recipe.encoder),
        image_size=_or(given.image_size, recipe.image_size),
        views=_or(given.views, recipe.views),
        sync_batch_norm=_or(given.sync_batch_norm, recipe.sync_batch_norm),
        epochs=given.epochs if timed else recipe.epochs,
    ), recipe


def _with_start(given: Settings) -> tuple[Settings, StartingWeights | None]:
    """Return the settings with the encoder of the starting weights, and these weights, unread.

    Raises ValueError for `adapt` without weights, and what `find_weights` raises.
    """
    if given.init is None:
        if given.adapt:
            raise ValueError(
                "`adapt` starts from existing weights: give `init='timm'`, hf:owner/name, a "
                "run or a file"
            )
        return given, None
    encoder = given.given("encoder")
    if given.init == "timm" and encoder is None:
        encoder = ADAPT_ENCODER
    name = name_and_arguments(encoder)[0] if isinstance(encoder, str) else None
    start = find_weights(given.init, name)
    if start.file is not None:
        start.read({})  # what cannot be read is refused before the images are opened
    if given.init == "timm" and not isinstance(encoder, str):
        raise ValueError("`init='timm'` needs an encoder by its name, such as resnet18")
    return replace(given, encoder=start.encoder if encoder is None else encoder), start


def _check(given: Settings, method: Method, recipe: Recipe) -> None:
    """Raise ValueError for settings that do not go together, or not with this machine, before data
    is opened.
    """
    processes = world_size(given.devices)
    batch_size = _or(given.batch_size, recipe.batch_size)
    check_processes(processes, batch_size, given.micro_batch, bool(given.sync_batch_norm))
    check_machine(
        given.accelerator, "32-true" if given.precision == "auto" else given.precision, processes
    )
    if given.compile:
        quiet_compiler()
        with raise_as_value_error("`compile` does not work on this machine", RuntimeError):
            torch.compile(torch.sin)(torch.ones(2, device=find_device(given.accelerator)))
    if given.tensorboard and find_spec("tensorboard") is None:
        raise ValueError(
            "`tensorboard` needs a package of that name: pip install 'nearfar[tensorboard]'"
        )
    _check_teacher(given, method)
    check_beside(given)
    if given.stream and given.limit is not None:
        raise ValueError("`limit` does not go with `stream`: name fewer tars")
    if given.stream and method.setup(1).needs_index:
        instead = (
            "`scale='matrix'`" if hasattr(method, "scale") else "`method='saclr'` `scale='matrix'`"
        )
        raise ValueError(
            f"{short_name(method)} keeps numbers for each image, which a stream does not "
            f"allow: use {instead}, "
            "or another method, such as simclr"
        )
    place = Path(given.data) if isinstance(given.data, (str, os.PathLike)) else None
    if place is not None and all((place / name).is_file() for name in (CONFIG, TABLE)):
        raise ValueError(
            f"{place} is a run folder: name images, or continue it with "
            f"`nearfar.resume({str(place)!r})`"
        )
    if (given.mean is None) != (given.std is None):
        raise ValueError("`mean` and `std` go together: give both or none")


def _check_teacher(given: Settings, method: Method) -> None:
    """Raise ValueError where a teacher does not go with the other settings."""
    numbers = given.teacher_weight, given.teacher_temperature
    teacher = teacher_of(given)
    if teacher is None:
        if any(number is not None for number in numbers):
            raise ValueError("`teacher_weight` and `teacher_temperature` are for a `teacher`")
        return
    if given.stream:
        raise ValueError(
            "`teacher` does not go with `stream`: its features of all images are computed first"
        )
    in_place = method.setup_for(2, teacher).beside is None
    if in_place and given.teacher_weight is not None:
        raise ValueError(
            f"{short_name(method)} takes the teacher's similarities as its targets: leave "
            "`teacher_weight` out"
        )


def _with_teacher(given: Settings, method: Method) -> Settings:
    teacher = teacher_of(given)
    if teacher is None:
        return given
    beside = method.setup_for(2, teacher).beside is not None
    return replace(
        given,
        teacher=serializable_source(given.teacher),
        teacher_weight=teacher.weight if beside else None,
        teacher_temperature=teacher.temperature,
    )


# Data


def open_data(settings: Settings) -> Images | Stream:
    """Open the images of a run, all of them, and say what was read and left out."""
    images = _read(settings)
    say_read(images)
    return images


def _read(settings: Settings) -> Images | Stream:
    return opened(replace(settings, split=split_of(settings)))


def split_of(settings: Settings) -> str | None:
    """Return the split of the data to train on, None for all of it."""
    if (
        settings.split is None
        and not settings.stream
        and "train" in list_splits(settings.given("data"))
    ):
        return "train"
    return settings.split


def serializable_source(data: Any) -> Any:
    """Return data as config.yaml holds it: a path, or several, valid in any folder; an object is
    described.
    """
    if are_paths(data):
        return [serializable_source(path) for path in data]
    if not isinstance(data, (str, os.PathLike)):
        return Described(describe(data))
    data = os.fspath(data)
    path = Path(data).expanduser()
    return os.path.abspath(path) if data != "digits" and path.exists() else data


def default_folder(given: Settings) -> Path:
    """Return the run folder where none is given."""
    method, _ = resolve_method(given)
    return Path("runs") / f"{printable(_stem(given.data))}-{short_name(method)}"


def _stem(data: Any) -> str:
    if are_paths(data):
        return "-".join(dict.fromkeys(map(_stem, data)))[:100]
    return Path(data).stem if isinstance(data, (str, Path)) else type(data).__name__.lower()


def _open_and_measure(
    given: Settings, method: Method, began: float
) -> tuple[Images | Stream, TrialResult]:
    """Open the images, at a size that is chosen from a measurement unless it is given or theirs is
    small.
    """
    images, count, side = None, None, given.image_size or 0
    if not given.stream:  # what is found is kept, however often it is asked for
        request = FormatRequest(given.image_size, given.channels)
        given = replace(given, data=scanned(given.data, request=request))
    if given.stream:
        images = open_data(given)
        assert isinstance(images, Stream)
        count = len(images)
        side = given.image_size or (images.image_size if images.side <= SMALL else images.side)
    elif given.image_size is None and (table := _scanned(given)) is not None:
        count, side = len(readable(table)), most_common_side(table)
        if count < 2:  # before anything is measured; says why, if none can be read
            check_enough_images(len(open_data(given)))
    if side <= SMALL and images is None:
        images = open_data(given)
        count, side = len(images), images.image_size
    channels = given.channels or (images.channels if images is not None else 3)
    trial = choose_model_size(
        given,
        method,
        partial(views_at, given, method, channels=channels),
        candidates=model_candidates(given, side, side > SMALL),
        channels=channels,
        images=None if count is None else min(_or(given.limit, count), count),
        seconds=_seconds_left(given, began),
    )
    sized = replace(given, image_size=trial.image_size)
    if images is None:
        images = open_data(sized)
    elif images.image_size != trial.image_size:  # the same images, which were counted above
        images = _read(sized)
    if images.value_range is None and given.value_range not in (None, EIGHT_BITS):
        raise ValueError(
            "`value_range` is for images of more than 8 bits, and all of these have 8 bits"
        )
    return images, trial


def _scanned(given: Settings) -> Any:
    return scan(given.data, given.split, digests=False)


def default_validation(total: int) -> int:
    """Return the size of the validation set of a run on so many images, where nobody chose it."""
    return min(MOST_HELD_OUT, total // SHARE_HELD_OUT)


def _validation_size(given: Settings, total: int) -> int:
    if given.held_out is None:
        share = default_validation(total)
        if share >= MIN_VALIDATION:
            return share
        log.info("%d images: too few for a validation set; skipping the health metrics", total)
        return 0
    if given.held_out == 1:
        raise ValueError("`held_out=1`: health metrics need two images or more; 0 skips them")
    if given.held_out >= total:
        raise ValueError(
            f"`held_out={given.held_out}` leaves none of the {total} images to train on"
        )
    return given.held_out


def _with_data(given: Settings, images: Images | Stream, start: StartingWeights | None) -> Settings:
    theirs = start.moments(images.channels) if start is not None and given.mean is None else None
    mean, std = theirs or (given.mean, given.std)
    if mean is not None and std is not None:
        images.normalised_by(mean, std)  # raises ValueError for another number of channels
    elif max(images.std) == 0:
        raise ValueError(
            f"the {len(images)} images are all of one colour: there is nothing to learn from them"
        )
    elif min(images.std) == 0:  # which cannot be divided by
        log.info("a channel is constant over all images: it is not scaled")
        mean, std = images.mean, [deviation or 1.0 for deviation in images.std]
    return replace(
        given,
        data=serializable_source(given.data),
        image_size=images.image_size,
        channels=images.channels,
        value_range=images.value_range or EIGHT_BITS,
        split=_or(given.split, images.split),
        mean=mean,
        std=std,
    )


# Views


def views_for(given: Settings, method: Method, crop_size: int, channels: int) -> Any:
    """Return views as given; for none or a preset, the name of as many as the method needs.

    Without views: a paper's recipe takes the method's own unchanged; other runs take those for
    photographs, and below 64 px the method's own, fitted to the size. Other channels than grayscale
    and colour take those of that name.
    """
    views = given.given("views")
    names = method.views if given.teacher is None else method.taught_views
    if views is None and given.recipe != "small":
        return "+".join(names)
    if views is None and crop_size >= PHOTOGRAPH and channels in (1, 3):
        views = "photographs"
    if views is None or (isinstance(views, str) and views in PRESETS):
        return "+".join(fit_views(names, crop_size, channels, views))
    return views


def keep_colour_for(given: Settings, views: Any) -> float:
    """Return the share of images whose views keep their colours. Raises ValueError for one with a
    callable.
    """
    if given.keep_colour is not None:
        if not isinstance(views, (str, dict, ViewPlan)):
            raise ValueError(
                "`keep_colour` is for views by name and for a ViewPlan, not for a callable"
            )
        return given.keep_colour
    if isinstance(views, ViewPlan):
        return views.keep_colour
    return KEEP_COLOUR if isinstance(views, str) and views.startswith("photographs") else 0.0


def resolve_views(views: Any, settings: Settings) -> Views:
    """Return the views as an object: those of a name or a file, a plan, a callable wrapped."""
    if isinstance(views, str):
        views = plan(views, settings.crop_size, settings.channels)
        if isinstance(settings.encoder, str):
            views = _fitted_to(views, settings.encoder, settings.crop_size)
    if isinstance(views, dict):
        views = ViewPlan.from_dict(views)
    if isinstance(views, ViewPlan):
        return (
            views
            if settings.keep_colour is None
            else replace(views, keep_colour=settings.keep_colour)
        )
    if isinstance(views, ViewFunction):
        return views
    if callable(views):
        return ViewFunction(views, settings.image_size, settings.channels)
    raise ValueError(
        f"views must be a name, a ViewPlan or a callable on uint8 batches, not {views!r}"
    )


def _fitted_to(views: ViewPlan, encoder: str, crop_size: int) -> ViewPlan:
    """Return a plan whose small crops have sizes that the encoder can take."""
    sizes = {view.size for view in views.views if view.size not in (None, crop_size)}
    known = {
        size: fitting_size(encoder, size, crop_size, built_for=crop_size)
        for size in sizes
        if size is not None
    }
    fitted = [
        replace(view, size=known.get(view.size, view.size) if view.size is not None else None)
        for view in views.views
    ]
    return replace(views, views=tuple(fitted))


def check_num_views(views: Views, method: Method) -> None:
    """Raise ValueError where a plan makes another number of views than the method needs."""
    if len(views) != len(method.views):
        needed = f"{short_name(method)} needs {len(method.views)}"
        raise ValueError(f"the view plan {views.name!r} makes {len(views)} views, but {needed}")


def views_at(
    given: Settings, method: Method, image_size: int, crop_size: int, channels: int
) -> Views:
    """Return the views that a run takes for such images; raises ValueError for more or fewer than
    the method needs.
    """
    sized = replace(given, image_size=image_size, crop_size=crop_size, channels=channels)
    views = resolve_views(views_for(given, method, crop_size, channels), sized)
    check_num_views(views, method)
    return views


# Encoder, optimisation and time


def _with_encoder(given: Settings, images: Images | Stream, trial: TrialResult) -> Settings:
    if given.whiten and (given.init is not None or trial.encoder not in OWN_NETS):
        raise ValueError(
            f"`whiten` is for the encoders {', '.join(OWN_NETS)}, without starting weights"
        )
    grid, beside = chosen_readout(given, trial.encoder, images.channels, trial.image_size)
    return replace(
        given,
        encoder=_as_written(trial.encoder),
        crop_size=trial.crop_size,
        grid=grid,
        beside=beside,
        whiten=_or(
            given.whiten,
            given.init is None and images.channels == 3 and trial.encoder in WHITENED,
        ),
        layer_decay=_or(given.layer_decay, LAYER_DECAY if given.adapt else 1.0),
        frozen=_or(given.frozen, FROZEN if given.adapt else 0),
    )


def _with_optimisation(given: Settings, recipe: Recipe, batch_size: int, epochs: float) -> Settings:
    check_processes(
        world_size(given.devices), batch_size, given.micro_batch, bool(given.sync_batch_norm)
    )
    warmup = ADAPT_WARMUP * epochs if given.adapt else min(recipe.warmup_epochs, epochs / 4)
    return replace(
        given,
        batch_size=batch_size,
        optimizer=_or(given.optimizer, recipe.optimizer),
        lr=_or(
            given.lr, scaled_lr(recipe.lr, batch_size, recipe.lr_scaling, recipe.reference_batch)
        ),
        final_lr=_or(given.final_lr, recipe.final_lr),
        weight_decay=_or(given.weight_decay, recipe.weight_decay),
        warmup_epochs=_or(given.warmup_epochs, warmup),
    )


def _seconds_left(given: Settings, began: float) -> float:
    """Return the time for training: what reading and measuring left of the minutes, but at least
    half of them.
    """
    whole = 60 * _or(given.minutes, MINUTES)
    return max(whole / 2, whole - (time.perf_counter() - began) - FINISHING)


def _as_written(value: Any) -> Any:
    """Return a name, or views as plain values, as they are, and describe an object."""
    return value if isinstance(value, (str, dict)) else describe_object(value)


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given
