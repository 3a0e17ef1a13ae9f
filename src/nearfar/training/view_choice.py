"""The views of a run: those that were asked for, or the ones that suit its method and images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nearfar.methods import Method
from nearfar.networks import fitting_size
from nearfar.training.request import short_name
from nearfar.training.settings import Settings
from nearfar.views import PRESETS, ViewFunction, ViewPlan, Views, fit_views, plan

PHOTOGRAPH = 64  # pixels of crops; from here on runs for small data take the preset for photographs
KEEP_COLOUR = 0.5  # of photographs; see docs/views.md


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
