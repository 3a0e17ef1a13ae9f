"""Images that differ from the others of a set in ways that need no encoder: blurred, dark, plain,
of an odd shape.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from scipy.ndimage import uniform_filter1d

from nearfar.data import Images
from nearfar.data.decoding import PICTURE, whole_planes
from nearfar.data.resources import usable_cores
from nearfar.progress import progress

SIDE = 256  # pixels of the shorter side at which images are measured, at most
BLURRED_BY = 9  # pixels of the averages that sharp images lose much by: Crété et al., section 3
WHITE = 250  # of 255: values from here on are clipped, or nearly
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


def measures(pixels: UInt8[np.ndarray, "height width"]) -> tuple[float, float, float, float]:
    """Measure a grayscale image.

    Its standard deviation and its 98th percentile, of 255; the share of its pixels from 250 on; and
    its blur, 0..1: how little of the differences between neighbouring pixels is lost when it is
    blurred once more, in the direction in which that is least. Source of the last: Crété et al.
    2007, "The blur effect".
    """
    shares = np.bincount(pixels.reshape(-1), minlength=256).cumsum() / pixels.size
    values, blur = pixels.astype(np.float32), 0.0
    for axis in (0, 1):
        before = np.abs(np.diff(values, axis=axis))
        after = np.abs(np.diff(uniform_filter1d(values, BLURRED_BY, axis=axis), axis=axis))
        if total := float(before.sum()):
            blur = max(blur, 1 - float(np.maximum(0, before - after).sum()) / total)
    return (
        float(values.std()),
        float(np.searchsorted(shares, 0.98)),
        float(1 - shares[WHITE - 1]),
        blur,
    )


def find_image_issues(images: Images) -> dict[str, list[tuple[int, float]]]:
    """Find the images of a set that have a defect: by its name in `LIMITS` their positions and
    measures, worst first.

    A measure counts if it passes a fixed limit and lies 5 robust standard deviations (1.48 times
    the median absolute deviation) from the median of the set, so that a set of dark images has none
    that are dark; what is nearly uniform shows nothing in any set. Encoded pictures of 8 bits are
    measured at a shorter side of at most 256 pixels, others as they are opened. The size is that of
    the shorter side, and proportions are those of the longer to the shorter side; both only of
    encoded images.
    """
    originals = images.originals
    rough = originals is not None and images.value_range is None and images.channels in PICTURE
    measured: list[tuple[float, ...]] = []
    with (
        ThreadPoolExecutor(usable_cores()) as pool,
        progress("measuring images", len(images)) as bar,
    ):
        for rows in torch.arange(len(images)).split(PART):
            if originals is not None and rough:
                measured += pool.map(
                    lambda row: measures(_grayscale(originals[row])), rows.tolist()
                )
            else:
                measured += [
                    measures(picture.float().mean(0).byte().numpy())
                    for picture in images.pictures(rows)
                ]
            bar.update(len(measured))
        columns = dict(zip(LIMITS, np.array(measured).T, strict=False))
        if originals is not None:
            sides = images.native_sizes(range(len(images)))
            short, long = np.log(sides.min(1)), np.log(sides.max(1))
            columns |= dict(
                zip(SHAPES, (np.abs(short - np.median(short)), long - short), strict=True)
            )
    return outlying(columns)


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


def _grayscale(data: bytes | str) -> UInt8[np.ndarray, "height width"]:
    image = Image.fromarray(whole_planes(data, 1, None, SIDE)[0].numpy())
    share = SIDE / min(image.size)
    if share < 1:
        image = image.resize(
            (max(1, round(image.width * share)), max(1, round(image.height * share)))
        )
    return np.asarray(image)
