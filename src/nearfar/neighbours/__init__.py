"""Nearest neighbours in feature space: exact and approximate, copies, duplicates and selections."""

from nearfar.neighbours.approximate import approximate_rows, find_nearest
from nearfar.neighbours.copies import COPY, LOCAL, local_difference, pixel_difference
from nearfar.neighbours.duplicates import (
    duplicate_threshold,
    find_leaks,
    find_links,
    near_duplicate_threshold,
)
from nearfar.neighbours.files import Facts, image_stats, paths_of
from nearfar.neighbours.groups import Member, group_links, group_members, same_proportions
from nearfar.neighbours.links import FRAME, KINDS, Link
from nearfar.neighbours.nearest import Nearest, nearest_rows
from nearfar.neighbours.removal import Staying
from nearfar.neighbours.selection import diverse_rows, outlier_rows, typical_rows

__all__ = [
    "Nearest",
    "approximate_rows",
    "diverse_rows",
    "find_links",
    "find_nearest",
    "nearest_rows",
    "outlier_rows",
    "typical_rows",
]
