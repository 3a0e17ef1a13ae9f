"""Nearest neighbours in feature space, and what rests on them: copies, choices, clusters."""

from nearfar.neighbours.nearest import METRICS, Nearest, nearest_rows

__all__ = ["METRICS", "Nearest", "nearest_rows"]
