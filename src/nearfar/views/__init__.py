"""Batched augmentations: named plans of views, the views themselves from batches, and the one
resize.
"""

from nearfar.views.fused import pack as pack_views
from nearfar.views.fused import takes as takes_views
from nearfar.views.geometry import centre_square, resize_square, with_channels
from nearfar.views.make import ViewFunction, Views, apply_views, make_views
from nearfar.views.photometric import check_value_range, eight_bits, from_range, unit
from nearfar.views.plans import PRESETS, compose, fit_views, names_in, plan, plan_names
from nearfar.views.sampling import SampledViews, sample_boxes, sample_views
from nearfar.views.view import View, ViewPlan

__all__ = [
    "View",
    "ViewFunction",
    "ViewPlan",
    "Views",
    "compose",
    "fit_views",
    "make_views",
    "plan",
]
