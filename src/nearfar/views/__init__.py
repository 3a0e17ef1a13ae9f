"""Batched augmentations: named plans of views, and the views themselves from uint8 batches."""

from nearfar.views.make import make_views
from nearfar.views.plans import compose, fit_views, plan, plan_names
from nearfar.views.sampling import crop_parameters
from nearfar.views.view import View, ViewPlan

__all__ = ["View", "ViewPlan", "compose", "crop_parameters", "fit_views", "make_views", "plan", "plan_names"]
