"""Batched augmentations: named plans of views, the views themselves from batches, and the one resize."""

from nearfar.views.geometry import centre_square, resize_square, with_channels
from nearfar.views.make import ViewFunction, Views, make_views
from nearfar.views.photometric import eight_bits, from_range, unit
from nearfar.views.plans import PRESETS, compose, fit_views, names_in, plan, plan_names
from nearfar.views.sampling import sample_boxes
from nearfar.views.view import View, ViewPlan

__all__ = [
    "PRESETS",
    "View",
    "ViewFunction",
    "ViewPlan",
    "Views",
    "centre_square",
    "compose",
    "eight_bits",
    "fit_views",
    "from_range",
    "make_views",
    "names_in",
    "plan",
    "plan_names",
    "resize_square",
    "sample_boxes",
    "unit",
    "with_channels",
]
