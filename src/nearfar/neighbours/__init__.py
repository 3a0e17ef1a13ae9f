"""Nearest neighbours in feature space, and what rests on them: copies, choices, clusters."""

from nearfar.neighbours.approximate import approximate_rows
from nearfar.neighbours.clusters import Clusters, clusters_of
from nearfar.neighbours.copies import COPY, altered, components, pixel_difference, small_images
from nearfar.neighbours.nearest import METRICS, Nearest, nearest_rows
from nearfar.neighbours.selection import diverse_rows, remote_rows, typical_rows

__all__ = [
    "COPY",
    "METRICS",
    "Clusters",
    "Nearest",
    "altered",
    "approximate_rows",
    "clusters_of",
    "components",
    "diverse_rows",
    "nearest_rows",
    "pixel_difference",
    "remote_rows",
    "small_images",
    "typical_rows",
]
