"""From settings as they are given to a job: names become objects, defaults are chosen, and everything is checked."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from nearfar.commands.opening import open_shown
from nearfar.data import Images, describe, list_splits
from nearfar.messages import did_you_mean
from nearfar.methods import Method, Model, Recipe, method_class, method_name
from nearfar.training import Described, Job, Settings, check_machine, check_processes, world_size
from nearfar.training.optimizers import build_optimizer, scaled_lr
from nearfar.training.settings import OBJECTS, describe_object, settings_fields
from nearfar.views import ViewFunction, ViewPlan, Views, fit_views, plan

SMALL_NET_LIMIT = 96  # pixels; up to here the small net is the default encoder, above it ResNet-18
MOST_HELD_OUT = 512


def new_job(given: Settings, console: Console) -> tuple[Job, Model]:
    """Resolve the settings of a new run and build its networks; nothing is written.

    Raises ValueError for anything that cannot be run as it is asked for.
    """
    if given.data is None:
        raise ValueError("name the images to train on: nearfar pretrain DATA")
    for name in OBJECTS:
        given.given(name)
    method, recipe = chosen_method(given)
    processes = world_size(given.devices)
    size = _or(given.batch_size, recipe.batch_size)
    check_processes(processes, size, given.micro_batch, given.sync_batch_norm)
    check_machine(given.accelerator, given.precision, processes)

    images = open_data(given, console)
    total = min(_or(given.limit, len(images)), len(images))
    epochs = _or(given.epochs, recipe.epochs)
    encoder = _or(given.encoder, "small" if images.image_size <= SMALL_NET_LIMIT else "resnet18")
    views = _or(given.views, "+".join(fit_views(method.views, images.image_size, images.channels)))
    settings = replace(
        given,
        data=given.data if isinstance(given.data, str) else Described(describe(given.data)),
        out=given.out or str(Path("runs") / f"{_stem(given.data)}-{_short_name(method)}"),
        method=method_name(method) or describe_object(method),
        hyperparameters={one.name: getattr(method, one.name) for one in fields(method)},
        encoder=encoder if isinstance(encoder, str) else describe_object(encoder),
        image_size=images.image_size,
        channels=images.channels,
        split=_or(given.split, images.split),
        views=views if isinstance(views, (str, ViewPlan)) else describe_object(views),
        held_out=_or(given.held_out, min(MOST_HELD_OUT, total // 10)),
        epochs=epochs,
        batch_size=size,
        optimizer=_or(given.optimizer, recipe.optimizer),
        lr=_or(given.lr, scaled_lr(recipe.lr, size, recipe.lr_scaling, recipe.reference_batch)),
        final_lr=_or(given.final_lr, recipe.final_lr),
        weight_decay=_or(given.weight_decay, recipe.weight_decay),
        warmup_epochs=_or(given.warmup_epochs, min(recipe.warmup_epochs, epochs / 4)),
        devices=processes,
        health_every=_or(given.health_every, max(1, epochs // 20)),
    )
    job = Job(settings, method, encoder, chosen_views(views, settings), images)
    _must_fit(job.views, method)
    return job, _checked_model(job, total)


def saved_job(settings: Settings, console: Console, objects: dict[str, Any]) -> Job:
    """Resolve the settings of a run folder, with the user's own objects given again where a file cannot hold them."""
    whole = replace(settings, **{name: value for name, value in objects.items() if value is not None})
    method = whole.given("method")
    if isinstance(method, str):
        method = method_class(method)(**settings.hyperparameters)
    views = chosen_views(whole.given("views"), settings)
    _must_fit(views, method)
    return Job(settings, method, whole.given("encoder"), views, open_data(whole, console))


def chosen_method(settings: Settings) -> tuple[Method, Recipe]:
    """Return the method with its numbers, and the recipe that the other defaults come from."""
    method, numbers = settings.method, settings.hyperparameters
    if not isinstance(method, (str, Method)):
        raise ValueError(f"method must be a name or a nearfar.methods.Method, not {method!r}")
    kind = method_class(method) if isinstance(method, str) else type(method)
    recipe = kind.recipe(settings.recipe)
    known = [one.name for one in fields(kind)]
    for name in numbers:
        if name not in known:
            near = did_you_mean(name, known + [one.name for one in settings_fields()], "see `nearfar methods`")
            raise ValueError(f"there is no setting {name!r} and {settings.method} has no such number: {near}")
    if isinstance(method, Method):
        if numbers:
            raise ValueError(f"{', '.join(numbers)}: a method that is an object has its numbers already")
        return method, recipe
    return kind.from_recipe(settings.recipe, **numbers), recipe


def chosen_views(views: Any, settings: Settings) -> Views:
    """Return the views as an object: those of a name, a plan as it is, a callable wrapped."""
    if isinstance(views, str):
        return plan(views, settings.image_size, settings.channels)
    if isinstance(views, (ViewPlan, ViewFunction)):
        return views
    if callable(views):
        return ViewFunction(views, settings.image_size, settings.channels)
    raise ValueError(f"views must be a name, a ViewPlan or a callable on uint8 batches, not {views!r}")


def _must_fit(views: Views, method: Method) -> None:
    if len(views) != len(method.views):
        needed = f"{_short_name(method)} needs {len(method.views)}"
        raise ValueError(f"the view plan {views.name!r} makes {len(views)} views, but {needed}")


def open_data(settings: Settings, console: Console) -> Images:
    """Open the images of a run, all of them."""
    data, split = settings.given("data"), settings.split
    if split is None and "train" in list_splits(data):
        split = "train"
    return open_shown(
        data,
        console,
        split=split,
        image_size=settings.image_size,
        channels=settings.channels,
        cache=settings.cache,
    )


def _checked_model(job: Job, total: int) -> Model:
    """Build the networks and try the optimiser; raises ValueError for what cannot be built."""
    settings = job.settings
    count = total - settings.held_out
    if not isinstance(job.encoder, (str, nn.Module)):
        raise ValueError(f"encoder must be a name or a torch module, not {job.encoder!r}")
    model = job.model(max(count, 1))
    build_optimizer(settings.optimizer, model, lr=settings.lr, weight_decay=settings.weight_decay)
    if settings.batch_size > count:
        raise ValueError(
            f"the batch of {settings.batch_size} is larger than the {count} images to train on; "
            "set a smaller --batch-size"
        )
    return model


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _stem(data: Any) -> str:
    return Path(data if isinstance(data, str) else type(data).__name__.lower()).stem


def _short_name(method: Method) -> str:
    return method_name(method) or type(method).__name__.lower()
