"""The request for a run: its settings with every name resolved, and checked before any data is
opened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearfar.data import describe
from nearfar.data.sources import are_paths
from nearfar.data.table import printable
from nearfar.device import find_device, quiet_compiler
from nearfar.messages import check_known, raise_as_value_error
from nearfar.methods import Method, Recipe, method_class, method_name
from nearfar.networks import Encoder, StartingWeights, check_encoder, find_weights
from nearfar.networks.backbone import name_and_arguments
from nearfar.training.processes import check_machine, check_processes, world_size
from nearfar.training.readout import check_beside
from nearfar.training.run_folder import CONFIG, TABLE
from nearfar.training.settings import (
    OBJECTS,
    Described,
    Settings,
    check_hyperparameters,
    given_or,
    settings_fields,
)
from nearfar.training.teacher import teacher_of

MINUTES, ADAPT_MINUTES = 30.0, 10.0
MOST_VIEWS = 100  # of an image
BESIDE_SETTINGS = ("hyperparameters", "on_metrics")  # further arguments of `pretrain`
ADAPT_ENCODER = "resnet18"  # of `init='timm'` without `encoder`


@dataclass(frozen=True)
class Request:
    """The settings as they were given, and the objects that their names stand for.

    settings: with what a paper's recipe or the starting weights say of encoder, images and time.
    recipe: the other defaults. start: weights to start from, unread.
    """

    settings: Settings
    method: Method
    recipe: Recipe
    start: StartingWeights | None


def resolve(given: Settings) -> Request:
    """Resolve the names in the settings of a new run; raises ValueError for what cannot be run as
    requested, or not on this machine.
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
    _check(given, method)
    return Request(given, method, recipe, start)


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
    known, names = (
        [field.name for field in fields(kind)],
        [field.name for field in settings_fields()],
    )
    if taken := [name for name in known if name in (*names, *BESIDE_SETTINGS)]:
        raise ValueError(
            f"{kind.__name__}'s field {' and '.join(taken)} has the name of a setting: rename it"
        )
    if hidden := kind.hidden_parts():
        raise ValueError(
            f"{kind.__name__}'s field {' and '.join(hidden)} has the name of a part of Method: "
            f"rename it"
        )
    recipe = kind.recipe(settings.recipe)
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
        encoder=given_or(given.encoder, None if given.init else recipe.encoder),
        image_size=given_or(given.image_size, recipe.image_size),
        views=given_or(given.views, recipe.views),
        sync_batch_norm=given_or(given.sync_batch_norm, recipe.sync_batch_norm),
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


def _check(given: Settings, method: Method) -> None:
    """Raise ValueError for settings that do not go together, or not with this machine, before data
    is opened.
    """
    processes = world_size(given.devices)
    batch_size = given_or(given.batch_size, processes)  # one that is chosen is checked by `plan`
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


# Data


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
