"""Images that differ from the others of a set in ways that need no encoder: blurred, dark, plain,
of an odd shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from nearfar.data import Images
from nearfar.data.measures import MEASURES, are_rough, grayscale, measures
from nearfar.data.resources import in_order, usable_cores
from nearfar.engine import each
from nearfar.progress import progress

# robust standard deviations from the median of the set beyond which an image is an outlier
DEVIATIONS = 5.0
# what a measure must exceed as well, whatever the set: chosen on training images (docs/check.md)
LIMITS = {
    "nearly uniform": -4.0,
    "dark": -64.0,
    "overexposed": 0.6,
    "blurred": 0.5,
    "odd size": float(np.log(4)),
    "odd proportions": float(np.log(2.5)),
}
"""Defects in the order in which they are reported, an image by the first of its pixels' alone;
negative: from below.
"""
SHAPES = ("odd size", "odd proportions")
USUAL = 1 / 6  # of the images: a defect that more of them have is how the set looks
PART = 256  # images that are measured at a time


def find_image_issues(
    images: Images, measured: np.ndarray | None = None
) -> dict[str, list[tuple[int, float]]]:
    """Find the images of a set that have a defect: by its name in `LIMITS` their positions and
    measures, worst first.

    A measure counts if it passes a fixed limit and lies 5 robust standard deviations (1.48 times
    the median absolute deviation) from the median of the set, so that a set of dark images has none
    that are dark; what is nearly uniform shows nothing in any set. Encoded pictures of 8 bits are
    measured at a shorter side of at most 256 pixels, others as they are opened. The size is that of
    the shorter side, and proportions are those of the longer to the shorter side; both only of
    encoded images. measured: the measures of each image [images, 4], where they are known.
    """
    columns = dict(
        zip(MEASURES, (_measured(images) if measured is None else measured).T, strict=True)
    )
    if images.originals is not None:
        sides = images.native_sizes(range(len(images)))
        short, long = np.log(sides.min(1)), np.log(sides.max(1))
        columns |= dict(zip(SHAPES, (np.abs(short - np.median(short)), long - short), strict=True))
    return outlying(columns)


def _measured(images: Images) -> Float[np.ndarray, "images 4"]:
    originals = images.originals
    rough = are_rough(originals, images.form)
    values: list[tuple[float, ...]] = []
    parts = torch.arange(len(images)).split(PART)
    made: Iterator[list[tuple[float, ...]]]
    if originals is not None and rough:
        work = partial(_measured_file, originals)
        made = in_order((rows.tolist() for rows in parts), work, usable_cores())
    else:
        made = each(partial(_measured_pictures, images), parts)
    with progress("measuring images", len(images)) as bar:
        for part in made:
            values += part
            bar.advance(len(part))
    return np.array(values)


def _measured_file(originals: Sequence[bytes | str], row: int) -> tuple[float, ...]:
    return measures(grayscale(originals[row]))


def _measured_pictures(images: Images, rows: Int64[Tensor, " rows"]) -> list[tuple[float, ...]]:
    return [measures(picture.float().mean(0).byte().numpy()) for picture in images.pictures(rows)]


def outlying(columns: dict[str, np.ndarray]) -> dict[str, list[tuple[int, float]]]:
    """The positions and values beyond the limits of each measure, worst first; of pixels the first
    measure alone, unless more than a sixth have that.
    """
    out, seen = {}, np.zeros(len(next(iter(columns.values()))), bool)
    for name, values in columns.items():
        low = LIMITS[name] < 0
        # logarithms, since a deviation would reach below 0
        ranked = -np.log1p(values) if low else values
        middle = np.median(ranked)
        limit = -np.log1p(-LIMITS[name]) if low else LIMITS[name]
        if name != "nearly uniform":
            limit = max(limit, middle + DEVIATIONS * 1.4826 * np.median(np.abs(ranked - middle)))
        beyond = (ranked > limit) & ((name in SHAPES) | ~seen)
        if name not in SHAPES and beyond.mean() <= USUAL:
            seen |= beyond
        rows = np.flatnonzero(beyond)
        rows = rows[np.argsort(-ranked[rows], kind="stable")]
        out[name] = [
            (int(row), float(np.exp(values[row]) if name in SHAPES else values[row]))
            for row in rows
        ]
    return out
