"""The affine map between two images: by local features, exact to a part of a pixel.

Local features (SIFT, Lowe 2004) of two images are matched, RANSAC (Fischler & Bolles 1981) finds
the affine map on which they agree, and ECC (Evangelidis & Psarakis 2008) makes it exact. An image
is then brought to the pixels of the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped, UInt8

LONGEST_SIDE = 320  # pixels of a version that local features are taken from
FEATURES = 200  # of an image at most, the strongest ones

# where each number of a descriptor is in that of the mirror image
ROWS, COLUMNS, DIRECTIONS = np.indices((4, 4, 8)).reshape(3, -1)
MIRRORED = ((3 - ROWS) * 4 + COLUMNS) * 8 + -DIRECTIONS % 8

Map = Float[np.ndarray, "2 3"]


class Local(NamedTuple):
    """Local features of an image: their places, the centre being 0 and the sides 1, and their
    descriptors.
    """

    points: Float[np.ndarray, "features 2"]
    descriptors: UInt8[np.ndarray, "features 128"]


def opencv() -> Any:
    """OpenCV; ValueError where it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise ValueError(
            "edited copies are found by local features of OpenCV: pip install 'nearfar[edits]'"
        ) from error
    return cv2


@contextmanager
def opencv_in_one_thread() -> Iterator[None]:
    """Let OpenCV compute in the thread that calls it while the context is open: threads of its own
    beside ours would wait for each other.
    """
    cv2 = opencv()
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def comparable(image: Shaped[np.ndarray, "bands height width"]) -> np.ndarray | None:
    """Grayscale or colour of 8 bits, of a see-through image that on white, [channels, height,
    width]; None for other images.
    """
    channels = {1: 1, 2: 1, 3: 3, 6: 3}.get(len(image))
    return None if channels is None or image.dtype != np.uint8 else image[:channels]


def grayscale(
    image: UInt8[np.ndarray, "channels height width"],
) -> UInt8[np.ndarray, "height width"]:
    if len(image) == 1:
        return image[0]
    cv2 = opencv()
    return cv2.cvtColor(np.ascontiguousarray(image.transpose(1, 2, 0)), cv2.COLOR_RGB2GRAY)


def local_features(image: UInt8[np.ndarray, "channels height width"]) -> Local:
    """Up to 200 local features of an image, reduced to 320 pixels of its longer side."""
    cv2 = opencv()
    gray = grayscale(image)
    shrunk = LONGEST_SIDE / max(gray.shape)
    if shrunk < 1:
        size = [max(1, round(side * shrunk)) for side in gray.shape[::-1]]
        gray = cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
    sift = cv2.SIFT_create(nfeatures=FEATURES, enable_precise_upscale=True)
    keypoints, descriptors = sift.detectAndCompute(gray, None)
    if descriptors is None:
        return Local(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.uint8))
    places = np.array([point.pt for point in keypoints[:FEATURES]], dtype=np.float32)
    sides = np.array(gray.shape[::-1], dtype=np.float32)
    return Local((places + 0.5) / sides - 0.5, descriptors[:FEATURES].astype(np.uint8))


def mirrored(local: Local) -> Local:
    """The local features of the mirror image, left to right.

    A descriptor of SIFT is 4 x 4 histograms of 8 directions around a feature, turned to its main
    direction: in the mirror image the rows and the directions are reversed.
    """
    return Local(local.points * np.array([-1, 1], np.float32), local.descriptors[:, MIRRORED])


def root_descriptors(
    descriptors: UInt8[np.ndarray, "features 128"],
) -> Float[np.ndarray, "features 128"]:
    """Unit rows whose products compare histograms by Hellinger's distance (RootSIFT, Arandjelovic &
    Zisserman 2012).
    """
    numbers = descriptors.astype(np.float32)
    return np.sqrt(numbers / numbers.sum(1, keepdims=True).clip(1))


RATIO = 0.8  # of the distances to the nearest and the second nearest feature, as Lowe (2004)
AGREEING = 8  # matches at least that one affine map explains
REACH = 0.01  # distance, of the sides, up to which it explains them


def matched_map(first: Local, second: Local) -> Map | None:
    """The affine map on which at least eight matches of local features agree, in places where the
    sides of an image are 1; None without one.
    """
    if min(len(first.points), len(second.points)) < AGREEING:
        return None
    likeness = root_descriptors(first.descriptors) @ root_descriptors(second.descriptors).T
    every, at = np.arange(len(likeness)), likeness.argmax(1)
    nearest = 2 - 2 * likeness[every, at]
    likeness[every, at] = -1
    clear = np.flatnonzero(nearest < RATIO**2 * (2 - 2 * likeness.max(1)))
    if len(clear) < AGREEING:
        return None
    cv2 = opencv()
    matrix, agree = cv2.estimateAffine2D(
        first.points[clear],
        second.points[at[clear]],
        method=cv2.RANSAC,
        ransacReprojThreshold=REACH,
        maxIters=1000,
    )
    if matrix is None or len(np.unique(at[clear][agree.ravel() > 0])) < AGREEING:
        return None
    return matrix


def inverse_map(matrix: Map) -> Map:
    return np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))[:2]


def _frame(size: tuple[int, int]) -> np.ndarray:
    """From places in an image to its pixels, whose first centre is 0."""
    width, height = size
    return np.array([[width, 0, (width - 1) / 2], [0, height, (height - 1) / 2], [0, 0, 1.0]])


def to_pixels(matrix: Map, size: tuple[int, int], other: tuple[int, int]) -> Map:
    square = np.vstack([matrix, [0, 0, 1]])
    return (_frame(other) @ square @ np.linalg.inv(_frame(size)))[:2]


def from_pixels(matrix: Map, size: tuple[int, int], other: tuple[int, int]) -> Map:
    square = np.vstack([matrix, [0, 0, 1]])
    return (np.linalg.inv(_frame(other)) @ square @ _frame(size))[:2]


STEPS, ACCURACY, ECC_BLUR = 60, 1e-6, 5  # of ECC; the side of its Gaussian filter in pixels
FIRST_SIDE = 512  # pixels of a side of the versions by which the map is made exact first
LEAST_SIDE = 32  # pixels of a side of what is compared
EDGE = 4  # pixels of the rim of the common area that are not compared


def exact_map(
    first: UInt8[np.ndarray, "height width"], second: UInt8[np.ndarray, "high wide"], pixels: Map
) -> Map | None:
    """A map of pixels made exact by ECC: on the second image at up to 512 pixels, then at full
    size; None where it finds no likeness.
    """
    cv2 = opencv()
    (height, width), (high, wide) = first.shape, second.shape
    until = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, STEPS, ACCURACY)
    for side in (FIRST_SIDE, None):
        shrunk = 1.0 if side is None else min(1.0, side / max(high, wide))
        size = max(1, round(wide * shrunk)), max(1, round(high * shrunk))
        # the first image is brought to the scale of the second, so that it has no finer detail
        by = min(1.0, shrunk * float(np.sqrt(abs(np.linalg.det(pixels[:, :2])))))
        small = max(1, round(width * by)), max(1, round(height * by))
        if min(small) < LEAST_SIDE or min(size) < LEAST_SIDE:
            return None
        source = cv2.resize(first, small, interpolation=cv2.INTER_AREA)
        target = cv2.resize(second, size, interpolation=cv2.INTER_AREA)
        unit = from_pixels(pixels, (width, height), (wide, high))
        start = inverse_map(to_pixels(unit, small, size))
        # both without their rims, where ECC's blur mixes an image with what lies around it
        inside = np.zeros(source.shape, np.uint8)
        inside[EDGE:-EDGE, EDGE:-EDGE] = 1
        target, offset = target[EDGE:-EDGE, EDGE:-EDGE], np.array([EDGE, EDGE])
        start[:, 2] += start[:, :2] @ offset
        try:
            _, fitted = cv2.findTransformECC(
                target.copy(),
                source,
                start.astype(np.float32),
                cv2.MOTION_AFFINE,
                until,
                inside,
                ECC_BLUR,
            )
        except cv2.error:
            return None
        back = fitted.astype(np.float64)
        back[:, 2] -= back[:, :2] @ offset
        unit = from_pixels(inverse_map(back), small, size)
        pixels = to_pixels(unit, (width, height), (wide, high))
        if shrunk == 1:
            break
    return pixels


OFF_GRID = 0.25  # pixels by which a map on whole pixels may seem to miss them


def map_on_grid(exact: Map, size: tuple[int, int]) -> Map | None:
    """The map from the pixels of an image of this size to pixels of another that is nearest to an
    exact one: a crop, a border, a quarter turn or a mirror image; None for one that resamples.
    """
    linear = np.rint(exact[:, :2])
    if not np.array_equal(np.abs(linear).sum(0), (1, 1)) or abs(np.linalg.det(linear)) != 1:
        return None
    width, height = size
    corners = np.array([[0, 0], [width - 1, 0], [0, height - 1], [width - 1, height - 1]]).T
    apart = exact @ np.vstack([corners, np.ones(4)]) - linear @ corners
    offset = np.rint(apart.mean(1, keepdims=True))
    return None if np.abs(apart - offset).max() > OFF_GRID else np.hstack([linear, offset])


def aligned_image(
    first: UInt8[np.ndarray, "channels height width"], pixels: Map, size: tuple[int, int], edge: int
) -> tuple[UInt8[np.ndarray, "channels high wide"], np.ndarray]:
    """An image at the pixels of another, averaged where it is finer, and the common area without
    its rim.
    """
    cv2 = opencv()
    high, wide = size
    finest = float(np.linalg.svd(pixels[:, :2], compute_uv=False)[1])
    times = min(6, max(1, math.ceil(1 / finest - 0.25)))
    finer = np.array([[times, 0, (times - 1) / 2], [0, times, (times - 1) / 2], [0, 0, 1]])
    matrix = (finer @ np.vstack([pixels, [0, 0, 1]]))[:2]

    def warped(plane: np.ndarray, kernel: int) -> np.ndarray:
        made = cv2.warpAffine(plane, matrix, (wide * times, high * times), flags=kernel)
        return cv2.resize(made, (wide, high), interpolation=cv2.INTER_AREA)

    planes = [warped(np.ascontiguousarray(plane), cv2.INTER_CUBIC) for plane in first]
    common = warped(np.full(first.shape[1:], 255, np.uint8), cv2.INTER_LINEAR) == 255
    return np.stack(planes), without_rim(common, edge)


def without_rim(common: np.ndarray, edge: int) -> Bool[np.ndarray, "height width"]:
    """An area without so many pixels of its rim."""
    cv2 = opencv()
    framed = cv2.copyMakeBorder(common.astype(np.uint8), 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
    return cv2.erode(framed, np.ones((2 * edge + 1,) * 2, np.uint8))[1:-1, 1:-1].astype(bool)
