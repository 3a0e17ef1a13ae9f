"""Nearest neighbours in feature space, and what rests on them: copies and choices."""

from nearfar.neighbours.approximate import approximate_rows
from nearfar.neighbours.copies import COPY, LOCAL, altered, components, local_difference, pixel_difference, small_images
from nearfar.neighbours.nearest import METRICS, Nearest, nearest_rows
from nearfar.neighbours.selection import diverse_rows, remote_rows, typical_rows

__all__ = [
    "COPY",
    "LOCAL",
    "METRICS",
    "Nearest",
    "altered",
    "approximate_rows",
    "components",
    "diverse_rows",
    "local_difference",
    "nearest_rows",
    "pixel_difference",
    "remote_rows",
    "small_images",
    "typical_rows",
]
