"""From the names in the settings of a run to objects, and back: method, views and data."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from nearfar.commands.opening import shown
from nearfar.data import Images, Stream, describe, list_splits
from nearfar.data.sources import are_paths
from nearfar.messages import did_you_mean
from nearfar.methods import Method, Recipe, method_class, method_name
from nearfar.training import Described, Settings
from nearfar.training.checking import check_numbers
from nearfar.training.job import opened
from nearfar.training.settings import settings_fields
from nearfar.views import PRESETS, ViewFunction, ViewPlan, Views, fit_views, plan

PHOTOGRAPH = 64  # pixels of crops; from here on runs for small data take the preset for photographs


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
    check_numbers(kind, numbers)
    return kind.from_recipe(settings.recipe, **numbers), recipe


def must_suit_streams(settings: Settings, method: Method) -> None:
    """Raise ValueError for settings that do not go with the way in which data is read."""
    if not settings.stream:
        if settings.steps_per_epoch is not None:
            raise ValueError("--steps-per-epoch is for --stream: give --epochs, of which one is a pass over the images")
        return
    if settings.limit is not None:
        raise ValueError("--limit does not go with --stream: name fewer tars")
    if method.setup(1).needs_index:
        instead = "--scale matrix" if hasattr(method, "scale") else "--method saclr --scale matrix"
        raise ValueError(
            f"{short_name(method)} keeps a number for each image, for which a stream has no place: take {instead}, "
            "or another method, such as simclr"
        )


def views_for(given: Settings, method: Method, crop_size: int, channels: int) -> Any:
    """Return views as they are given; for none or a preset, the name of as many as the method needs.

    None are given: for a paper's recipe the method's own as they are; for small data those for photographs, and below
    64 px the method's own, fitted to the size. For other channels than grey and colour those of that name.
    """
    views = given.given("views")
    if views is None and given.recipe != "small":
        return "+".join(method.views)
    if views is None and crop_size >= PHOTOGRAPH and channels in (1, 3):
        views = "photographs"
    if views is None or (isinstance(views, str) and views in PRESETS):
        return "+".join(fit_views(method.views, crop_size, channels, views))
    return views


def chosen_views(views: Any, settings: Settings) -> Views:
    """Return the views as an object: those of a name, a plan as it is, a callable wrapped."""
    if isinstance(views, str):
        return plan(views, settings.crop_size, settings.channels)
    if isinstance(views, (ViewPlan, ViewFunction)):
        return views
    if callable(views):
        return ViewFunction(views, settings.image_size, settings.channels)
    raise ValueError(f"views must be a name, a ViewPlan or a callable on uint8 batches, not {views!r}")


def must_fit(views: Views, method: Method) -> None:
    """Raise ValueError where a plan makes another number of views than the method needs."""
    if len(views) != len(method.views):
        needed = f"{short_name(method)} needs {len(method.views)}"
        raise ValueError(f"the view plan {views.name!r} makes {len(views)} views, but {needed}")


def open_data(settings: Settings, console: Console) -> Images | Stream:
    """Open the images of a run, all of them."""
    with shown(console, "reading images") as progress:
        return opened(replace(settings, split=split_of(settings)), progress=progress)


def split_of(settings: Settings) -> str | None:
    """Return the part of the data to train on, None for all of it."""
    if settings.split is None and not settings.stream and "train" in list_splits(settings.given("data")):
        return "train"
    return settings.split


def lasting(data: Any) -> Any:
    """Return data as a run notes it: a path, or several, as found from any folder, an object in a few words."""
    if are_paths(data):
        return [lasting(one) for one in data]
    if not isinstance(data, (str, os.PathLike)):
        return Described(describe(data))
    data = os.fspath(data)
    path = Path(data).expanduser()
    return os.path.abspath(path) if data != "digits" and path.exists() else data


def short_name(method: Method) -> str:
    return method_name(method) or type(method).__name__.lower()
