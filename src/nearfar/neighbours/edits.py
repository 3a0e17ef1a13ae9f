"""Edits by which an image becomes another: affine maps by local features, confirmed by pixels.

Local features (SIFT, Lowe 2004) of two images are matched, RANSAC (Fischler & Bolles 1981) finds
the affine map on which they agree, and ECC (Evangelidis & Psarakis 2008) makes it exact to a part
of a pixel. Then all pixels of the common area decide, as for other copies: two forms that differ in
a digit have the same map, and so have two frames of a series. One map of colours and one blur are
allowed for the whole area, a difference at one place is not: therefore an image with a text or a
figure on it is no edited copy, since another digit is no less than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped, UInt8
from scipy.optimize import nnls

from nearfar.neighbours.copies import LOCAL, MIRROR, local_difference

LONGEST_SIDE = 320  # pixels of a version that local features are taken from
FEATURES = 200  # of an image at most, the strongest ones
RATIO = 0.8  # of the distances to the nearest and the second nearest feature, as Lowe (2004)
AGREEING = 8  # matches at least that one affine map explains
REACH = 0.01  # distance, of the sides, up to which it explains them
STEPS, ACCURACY, ECC_BLUR = 60, 1e-6, 5  # of ECC; the side of its Gaussian filter in pixels
FIRST_SIDE = 512  # pixels of a side of the versions by which the map is made exact first
SQUEEZED = 3.0  # ratio of the scales of a map in two directions, at most
LEAST_SIDE, LEAST_SHARE = 32, 0.04  # pixels of the common area, and its share of either image
EDGE = 4  # pixels of the rim of the common area that are not compared
# pixels of a window that is compared, of one whose variance is measured, and of those around it
WINDOW, VARIED, AROUND = 3, 7, 17
BLURS = (0.0, 0.7, 1.4, 2.1, 2.8, 3.5)  # sigmas of the Gaussian blur that one image may have more
SOFT = 0.7  # sigma of the blur of both before they are compared
FLOOR = 6.0  # of 255: difference that counts as noise
# difference of two windows, of the variance near them, up to which they are equal; of images one of
# which is much softer or has other colours; the blur from which it is
DIFFERENT, SOFTER, MUCH = 0.3, 0.6, 1.4
# times the difference that fits the rest of the images at such a place, in brightness: another
# digit is alone; the same for images one of which is much softer or has other colours
ALONE, ALONE_SOFTER = 32.0, 64.0
# pixels around that count for a place, pixels that a fit is made on, its rounds and what it leaves
# out as the worst; the difference of levels squared that counts as none
NEAR, FITTED, ROUNDS, WORST, NONE = 5, 4000, 3, 0.02, 0.3
# qualities of JPEG that may have made a difference; side of its blocks, and pixels by which one is
# moved, so that it is not that of an image; mean change, of 255, of a block that shows something,
# and so many of them
QUALITIES = (95, 90, 85, 80, 70, 60, 50, 40, 30)
BLOCK, OFF, CHANGED, LEAST_BLOCKS = 8, 4, 0.3, 9
# times what JPEG changes near a place, plus so many of 255: of a good quality, and of a poor one;
# the least ratio of differences to those changes
GOOD, LIKE_GOOD, LIKE_POOR, CHANGE, LEAST_TIMES = 80, 1.12, 1.35, 2.0, 0.5
# sigma beyond which detail is not noise; the share of windows with the least of it; ratio of the
# noise of the difference to that of an image, which is 2 for two shots
DETAIL, QUIET, SHOTS = 1.0, 0.01, 0.93
# mean brightness at which noise is not cut, and brightness of a pixel at which it is
DARK, LIGHT, BLACK, WHITE = 15, 240, 5, 250
# sigma beyond which noise is not coarse, pixels of a window in which it is measured; the variance
# of 255 that JPEG leaves there of a difference; what fine and coarse noise may come to together
COARSE, COARSER, SPARED, TOGETHER = 2.0, 9, 0.2, 1.17
# pixels by which a map on whole pixels may seem to miss them, and of the rim that JPEG mixes with
# what lies around an image
OFF_GRID, MIXED = 0.25, 2
# an image is drawn where so much of it has one of two brightnesses, each within 2 of 255; the local
# difference up to which it is a copy: that of a digit of 5 pixels can be 1.07
BAND, DRAWN, LOCAL_DRAWN = 2, 0.65, 1.0
PLAIN = 12.0  # of 255: standard deviation of the common area below which it shows too little
GRID = 200  # places of a side by which shares are counted
WHOLE = 0.97  # share of an image that counts as all of it
# of the sides: a map that turns and scales less only moves the image; one that moves it less, not;
# pixels across the common area by which ECC may be wrong
STILL, UNMOVED, INEXACT = 0.01, 0.005, 2.0
ANGLE, STRETCH = 1.0, 0.03  # degrees and log ratio that are said
DARKEST, BRIGHTEST = 4, 251  # of 255: beyond, a colour may have been cut
CURVE = 32  # steps of a curve of brightness
RECOLOURED = 8.0  # of 255: mean change of the colours that is said

# where each number of a descriptor is in that of the mirror image
ROWS, COLUMNS, DIRECTIONS = np.indices((4, 4, 8)).reshape(3, -1)
MIRRORED = ((3 - ROWS) * 4 + COLUMNS) * 8 + -DIRECTIONS % 8

# of red, green and blue, in brightness and the two colours of JPEG
YCBCR = np.array(
    [[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]], np.float32
)

Map = Float[np.ndarray, "2 3"]


class Local(NamedTuple):
    """Local features of an image: their places, the centre being 0 and the sides 1, and their
    descriptors.
    """

    points: Float[np.ndarray, "features 2"]
    descriptors: UInt8[np.ndarray, "features 128"]


class Edit(NamedTuple):
    """The edit by which the first image becomes the second.

    matrix: the affine map, in rows, from places in the first to those in the second, where the
    centre of an image is 0 and its sides are 1. recoloured: whether the colours differ. blur: sigma
    of a Gaussian blur that the second has more, in pixels of the smaller; negative if the first
    has it.
    """

    matrix: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    recoloured: bool = False
    blur: float = 0.0

    def then(self, other: Edit) -> Edit:
        """Both, this one first."""
        both = _square(other.matrix) @ _square(self.matrix)
        return Edit(_rows(both), self.recoloured or other.recoloured, self.blur + other.blur)

    def undone(self) -> Edit:
        """The edit from the second image to the first."""
        return Edit(_rows(np.linalg.inv(_square(self.matrix))), self.recoloured, -self.blur)


def _square(matrix: tuple[float, ...]) -> np.ndarray:
    return np.vstack([np.reshape(matrix, (2, 3)), [0, 0, 1]])


def _rows(square: np.ndarray) -> tuple[float, ...]:
    return tuple(square[:2].ravel().tolist())


def edit_of_turn(turn: int) -> Edit:
    """The edit from a first image to a second that shows it in an orientation (`copies.turned` of
    the second gives the first).
    """
    back = np.diag([-1.0 if turn >= MIRROR else 1.0, 1.0])
    left = np.array([[0.0, 1.0], [-1.0, 0.0]])  # a quarter turn left, where y points down
    linear = np.linalg.inv(np.linalg.matrix_power(left, turn % MIRROR) @ back)
    return Edit(_rows(np.pad(linear, ((0, 1), (0, 1)))))


def opencv() -> Any:
    """OpenCV; ValueError where it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise ValueError(
            "edited copies are found by local features of OpenCV: pip install 'nearfar[edits]'"
        ) from error
    return cv2


def comparable(image: Shaped[np.ndarray, "bands height width"]) -> np.ndarray | None:
    """Grayscale or colour of 8 bits, of a see-through image that on white, [channels, height,
    width]; None for other images.
    """
    channels = {1: 1, 2: 1, 3: 3, 6: 3}.get(len(image))
    return None if channels is None or image.dtype != np.uint8 else image[:channels]


def local_features(image: UInt8[np.ndarray, "channels height width"]) -> Local:
    """Up to 200 local features of an image, reduced to 320 pixels of its longer side."""
    cv2 = opencv()
    gray = _gray(image)
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


def _gray(image: UInt8[np.ndarray, "channels height width"]) -> UInt8[np.ndarray, "height width"]:
    if len(image) == 1:
        return image[0]
    cv2 = opencv()
    return cv2.cvtColor(np.ascontiguousarray(image.transpose(1, 2, 0)), cv2.COLOR_RGB2GRAY)


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


def find_edit(
    first: UInt8[np.ndarray, "channels height width"],
    second: UInt8[np.ndarray, "bands high wide"],
    rough: Map,
) -> Edit | None:
    """The edit by which the first image becomes the second, by a map that local features agree on;
    None if their pixels differ.

    Both images: grayscale or RGB. The finer image is brought to the pixels of the coarser one, and
    one map of colours and one Gaussian blur are fitted for the whole of their common area. There,
    in each window of 3 x 3 pixels, the mean squared difference may be up to 0.3 of the largest
    variance within 8 pixels (of both, plus that of noise), and up to 32 times what the rest of the
    images leads to expect there. Where nothing is resampled it may be what JPEG of the quality that
    explains the rest changes. In plain places that are neither black nor white, where noise is most
    of the detail, the difference may have 0.93 times its variance, and hardly any coarser detail:
    two shots of a burst do not have the same noise.
    Images of one scale that are only moved, perhaps turned by quarters or mirrored, too, are other
    shots, frames, or parts of a page: None.
    """
    (height, width), (high, wide) = first.shape[1:], second.shape[1:]
    pixels = _to_pixels(rough, (width, height), (wide, high))
    scales = np.linalg.svd(pixels[:, :2], compute_uv=False)
    if not scales[1] > 0 or scales[0] > SQUEEZED * scales[1]:
        return None
    if min(height, width, high, wide) < LEAST_SIDE:
        return None
    if np.sqrt(scales.prod()) > 1:  # the second is the finer one
        reverse = find_edit(second, first, _inverse(rough))
        return None if reverse is None else reverse.undone()
    exact = _exact(_gray(first), _gray(second), pixels)
    if exact is None:
        return None
    on_grid = _on_grid(exact, (width, height))
    exact = exact if on_grid is None else on_grid
    aligned, common = _aligned(first, exact, second.shape[1:], EDGE if on_grid is None else MIXED)
    own_share = common.mean()
    share = common.sum() / np.abs(np.linalg.det(exact[:, :2])) / (width * height)
    if min(own_share, share) < LEAST_SHARE or common.sum() < LEAST_SIDE**2:
        return None
    compared = _compared(aligned, second, common, on_grid is not None)
    if compared is None:
        return None
    matrix = _from_pixels(exact, (width, height), (wide, high))
    edit = Edit(tuple(matrix.ravel().tolist()), *compared)
    squeezed = abs(math.log(width * high / (height * wide))) > STRETCH
    still = max(STILL, INEXACT / math.sqrt(common.sum()))
    return edit if squeezed or _changes(edit, still) else None


def _changes(edit: Edit, still: float) -> bool:
    """Return whether an edit is more than a shift, perhaps of the turned or mirrored image: whether
    it scales an image, or turns it by another angle, by more than a share of its sides, or leaves
    it in its place in another orientation, with other colours or another sharpness. Without any of
    them, the pixels have been compared already.
    """
    matrix = np.reshape(edit.matrix, (2, 3))
    orientation = np.rint(matrix[:, :2])
    if np.abs(matrix[:, :2] - orientation).max() > still or abs(np.linalg.det(orientation)) != 1:
        return True
    in_its_place = bool(np.abs(matrix[:, 2]).max() <= UNMOVED)
    is_upright = np.array_equal(orientation, np.eye(2))
    return in_its_place and (not is_upright or edit.recoloured or edit.blur != 0)


def _inverse(matrix: Map) -> Map:
    return np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))[:2]


def _frame(size: tuple[int, int]) -> np.ndarray:
    """From places in an image to its pixels, whose first centre is 0."""
    width, height = size
    return np.array([[width, 0, (width - 1) / 2], [0, height, (height - 1) / 2], [0, 0, 1.0]])


def _to_pixels(matrix: Map, size: tuple[int, int], other: tuple[int, int]) -> Map:
    square = np.vstack([matrix, [0, 0, 1]])
    return (_frame(other) @ square @ np.linalg.inv(_frame(size)))[:2]


def _from_pixels(matrix: Map, size: tuple[int, int], other: tuple[int, int]) -> Map:
    square = np.vstack([matrix, [0, 0, 1]])
    return (np.linalg.inv(_frame(other)) @ square @ _frame(size))[:2]


def _exact(
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
        unit = _from_pixels(pixels, (width, height), (wide, high))
        start = _inverse(_to_pixels(unit, small, size))
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
        unit = _from_pixels(_inverse(back), small, size)
        pixels = _to_pixels(unit, (width, height), (wide, high))
        if shrunk == 1:
            break
    return pixels


def _on_grid(exact: Map, size: tuple[int, int]) -> Map | None:
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


def _aligned(
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
    return np.stack(planes), _without_rim(common, edge)


def _without_rim(common: np.ndarray, edge: int) -> Bool[np.ndarray, "height width"]:
    """An area without so many pixels of its rim."""
    cv2 = opencv()
    framed = cv2.copyMakeBorder(common.astype(np.uint8), 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
    return cv2.erode(framed, np.ones((2 * edge + 1,) * 2, np.uint8))[1:-1, 1:-1].astype(bool)


def _compared(
    aligned: UInt8[np.ndarray, "channels height width"],
    second: UInt8[np.ndarray, "bands height width"],
    common: np.ndarray,
    on_grid: bool,
) -> tuple[bool, float] | None:
    """Return whether colours differ, and the blur that the second image has more, of images of one
    size; None if a window of their common area differs.
    """
    difference, recoloured, blur = aligned_difference(aligned, second, common, on_grid)
    return (recoloured, blur) if difference <= 1 else None


def aligned_difference(
    first: UInt8[np.ndarray, "channels height width"],
    second: UInt8[np.ndarray, "bands height width"],
    common: np.ndarray,
    on_grid: bool = False,
) -> tuple[float, bool, float]:
    """The difference of two aligned images in their common area, up to 1 for copies; whether their
    colours differ, and the blur that the second has more.

    on_grid: whether nothing was resampled. What is drawn differs infinitely without that.
    """
    if min(_gray(image)[common].std() for image in (first, second)) < PLAIN:
        return math.inf, False, 0.0
    blur = _more_blur(first, second, common)
    images = _blurred(first, max(blur, 0)), _blurred(second, max(-blur, 0))
    three = [np.broadcast_to(image, (3, *image.shape[1:])) for image in images]
    recoloured = bool(np.abs(three[0] - three[1])[:, common].mean() > RECOLOURED)
    is_drawn = any(_is_drawn(image, common) for image in (first, second))
    if is_drawn and (blur or not on_grid):
        return math.inf, recoloured, blur
    if is_drawn or (on_grid and not blur and not recoloured):
        difference = _difference_on_grid(first, second, common, recoloured, is_drawn)
    else:
        common = _without_rim(common, EDGE - MIXED) if on_grid else common
        is_softer = recoloured or abs(blur) >= MUCH
        difference = min(
            _largest(_recoloured(source, target, common), target, common, is_softer)
            for source, target in (images, images[::-1])
        )
    if difference > 1:
        return difference, recoloured, blur
    gray = [image.mean(0)[None] for image in (first, second)]
    softened = _blurred(gray[0], max(blur, 0), 0), _blurred(gray[1], max(-blur, 0), 0)
    noise = _noise(*softened, common, is_drawn)
    return max(difference, noise), recoloured, blur


def _is_drawn(image: UInt8[np.ndarray, "channels height width"], common: np.ndarray) -> bool:
    """Return whether most of an area has one of two brightnesses, as in pages and forms."""
    counts = np.bincount(_gray(image)[common], minlength=256)
    band, share = np.ones(2 * BAND + 1), 0.0
    for _ in range(2):
        near = np.convolve(counts, band, "same")
        most = int(near.argmax())
        share += near[most] / common.sum()
        counts[max(0, most - BAND) : most + BAND + 1] = 0
    return bool(share > DRAWN)


def _difference_on_grid(
    first: np.ndarray, second: np.ndarray, common: np.ndarray, recoloured: bool, is_drawn: bool
) -> float:
    """The largest difference of the same pixels of two images, up to 1 for copies: as of two copies
    of one size, and by JPEG of the quality that explains the rest.
    """
    area = tuple(slice(at.min(), at.max() + 1) for at in np.nonzero(common))
    if recoloured:
        source, target = (image.astype(np.float32) for image in (first, second))
        first = _recoloured(source, target, common).round().clip(0, 255).astype(np.uint8)
    images = first[:, *area], second[:, *area]
    as_copies = local_difference(*images) / (LOCAL_DRAWN if is_drawn else LOCAL)
    return as_copies if as_copies > 1 else max(as_copies, _beyond_jpeg(*images))


def _beyond_jpeg(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of two images in a window, up to 1 for copies, in units of what JPEG
    changes near it.

    It is JPEG of the quality whose changes of brightness are most like the differences in the
    median block. Colours are compared at half the size, as JPEG stores them.
    """
    bands = max(len(first), len(second))
    first, second = (np.broadcast_to(x, (bands, *x.shape[1:])) for x in (first, second))
    planes, others = _jpeg_planes(first), _jpeg_planes(second)
    low, high, tried = 0, len(QUALITIES), dict[int, tuple[float, list[np.ndarray]]]()
    while low < high:  # the best quality that changes as much
        middle = (low + high) // 2
        changes = [
            _changes_by_jpeg(image, known, QUALITIES[middle])
            for image, known in ((first, planes), (second, others))
        ]
        strengths = [np.maximum(*pair) for pair in zip(*changes, strict=True)]
        tried[middle] = _times_as_much(planes[0] - others[0], strengths[0]), strengths
        low, high = (low, middle) if tried[middle][0] <= 1 else (middle + 1, high)
    at = min(tried, key=lambda place: abs(math.log(max(tried[place][0], 1e-3))))
    largest, cv2 = 0.0, opencv()
    for plane, other, strength in zip(planes, others, tried[at][1], strict=True):
        times = max(_times_as_much(plane - other, strength), LEAST_TIMES)
        around = (AROUND if plane.shape == planes[0].shape else AROUND // 2 | 1,) * 2
        near = cv2.dilate(strength, np.ones(around, np.uint8))
        largest = max(largest, float((_strength(plane - other) / (times * near + CHANGE)).max()))
    return largest / (LIKE_GOOD if QUALITIES[at] >= GOOD else LIKE_POOR)


def _jpeg_planes(image: UInt8[np.ndarray, "channels height width"]) -> list[np.ndarray]:
    """Brightness, and the two colours of JPEG at half the size."""
    numbers = np.tensordot(YCBCR if len(image) == 3 else np.eye(1, dtype=np.float32), image, 1)
    size = image.shape[2] // 2, image.shape[1] // 2
    cv2 = opencv()
    return [numbers[0], *(cv2.resize(x, size, interpolation=cv2.INTER_AREA) for x in numbers[1:])]


def _changes_by_jpeg(
    image: UInt8[np.ndarray, "channels height width"], planes: list[np.ndarray], quality: int
) -> list[np.ndarray]:
    """Changes by JPEG of a quality in each window of the planes of an image."""
    made = _jpeg_planes(_jpeg(image, quality))
    return [_strength(other - plane) for plane, other in zip(planes, made, strict=True)]


def _times_as_much(difference: np.ndarray, strength: np.ndarray) -> float:
    """Ratio of a difference to what JPEG changes, in the median block that this shows in; 0 where
    there are few.
    """
    by_jpeg = _block_means(strength)
    shown = by_jpeg > CHANGED
    if shown.sum() < LEAST_BLOCKS:
        return 0.0
    apart = _block_means(_strength(difference))
    return float(np.median(apart[shown]) / np.median(by_jpeg[shown]))


def _strength(difference: np.ndarray) -> Float[np.ndarray, "height width"]:
    """Root mean square of what is softened a little, in the window around each pixel."""
    return np.sqrt(_mean(np.square(_blurred(difference[None], 0)[0]), WINDOW).clip(0))


def _block_means(plane: np.ndarray) -> Float[np.ndarray, "rows columns"]:
    """The means of the blocks of 8 x 8 pixels."""
    rows, columns = (side // BLOCK for side in plane.shape)
    cut = plane[: BLOCK * rows, : BLOCK * columns]
    return cut.reshape(rows, BLOCK, columns, BLOCK).mean((1, 3))


def _jpeg(
    image: UInt8[np.ndarray, "channels height width"], quality: int
) -> UInt8[np.ndarray, "channels height width"]:
    """An image after JPEG, in blocks that lie half a block beside those of an image saved so."""
    cv2, sides = opencv(), [(OFF, BLOCK)] * 2
    padded = np.pad(image[::-1], [(0, 0), *sides], mode="edge").transpose(1, 2, 0)
    _, data = cv2.imencode(".jpg", padded, [cv2.IMWRITE_JPEG_QUALITY, quality])
    made = cv2.imdecode(data, cv2.IMREAD_UNCHANGED).reshape(padded.shape)
    return made[OFF:-BLOCK, OFF:-BLOCK].transpose(2, 0, 1)[::-1]


def _more_blur(first: np.ndarray, second: np.ndarray, common: np.ndarray) -> float:
    """Sigma of the Gaussian blur after which images are most alike: of the first, or of the second
    if it is negative.
    """
    gray = [image.mean(0)[None] for image in (first, second)]
    left = {}
    for blur in sorted({sign * sigma for sigma in BLURS for sign in (-1, 1)}, key=abs):
        both = [
            _blurred(image, max(by, 0))[0][common]
            for image, by in zip(gray, (blur, -blur), strict=True)
        ]
        left[blur] = 1 - np.corrcoef(*both)[0, 1] ** 2 + 1e-3 * abs(blur)
    return min(left, key=lambda blur: left[blur])


def _blurred(
    image: np.ndarray, sigma: float, soft: float = SOFT
) -> Float[np.ndarray, "channels height width"]:
    cv2 = opencv()
    both = math.hypot(sigma, soft)
    if not both:
        return image.astype(np.float32)
    return np.stack([cv2.GaussianBlur(plane.astype(np.float32), (0, 0), both) for plane in image])


def _recoloured(source: np.ndarray, target: np.ndarray, common: np.ndarray) -> np.ndarray:
    """An image in the colours of another, by the linear map of colours that fits best where neither
    ends at black or white.
    """
    values = np.concatenate([source, np.ones_like(source[:1])])
    within = [((image > DARKEST) & (image < BRIGHTEST)).all(0) for image in (source, target)]
    inside = common & within[0] & within[1]
    if inside.sum() < LEAST_SIDE**2:
        inside = common
    linear, *_ = np.linalg.lstsq(values[:, inside].T, target[:, inside].T, rcond=None)
    made = np.tensordot(linear.T, values, 1).clip(0, 255)
    return np.stack([_on_curve(*planes, common) for planes in zip(made, target, strict=True)])


def _on_curve(plane: np.ndarray, target: np.ndarray, common: np.ndarray) -> np.ndarray:
    """A plane by the curve of brightness through the means of the target in 32 steps of it."""
    values = plane[common]
    steps = np.minimum(values * (CURVE / 256), CURVE - 1).astype(np.int64)
    counts = np.bincount(steps, minlength=CURVE)
    filled = counts >= CURVE
    if filled.sum() < 2:
        return plane
    at, to = (
        np.bincount(steps, weights, CURVE)[filled] / counts[filled]
        for weights in (values, target[common])
    )
    return plane + np.interp(plane, at, to - at).astype(np.float32)


def _mean(plane: Float[np.ndarray, "height width"], window: int) -> np.ndarray:
    return opencv().boxFilter(plane, -1, (window, window))


def _variance(plane: Float[np.ndarray, "height width"]) -> np.ndarray:
    return (_mean(np.square(plane), VARIED) - np.square(_mean(plane, VARIED))).clip(0)


def _largest(source: np.ndarray, target: np.ndarray, common: np.ndarray, is_softer: bool) -> float:
    """The largest difference of images in a window, up to 1 for copies: of the variance near it,
    and of what fits the rest of the images.
    """
    cv2, around, largest = opencv(), np.ones((AROUND, AROUND), np.uint8), 0.0
    for plane, other in zip(source.astype(np.float32), target.astype(np.float32), strict=True):
        variance = _variance(np.asarray(plane)) + _variance(np.asarray(other))
        allowed = cv2.dilate(variance, around) + 2 * FLOOR**2
        difference = _mean(np.square(plane - other), WINDOW) / allowed
        largest = max(largest, float(difference[common].max()))
    alone = _alone(_light(source), _light(target), common)
    return max(
        largest / (SOFTER if is_softer else DIFFERENT),
        alone / (ALONE_SOFTER if is_softer else ALONE),
    )


def _light(image: np.ndarray) -> Float[np.ndarray, "height width"]:
    """Brightness, as in JPEG."""
    return np.tensordot(YCBCR[0] if len(image) == 3 else [1], image, 1).astype(np.float32)


def _alone(plane: np.ndarray, other: np.ndarray, common: np.ndarray) -> float:
    """The largest difference of two planes in a window, in units of what is to be expected there.

    Resampling and JPEG change images where these have detail: the mean squared difference is fitted
    by that of the finest detail and of the slopes near it, with no negative factor, and relative to
    itself, so that plain places count as much as others. The worst places are left out of the fit.
    """
    cv2, near = opencv(), np.ones((NEAR, NEAR), np.uint8)
    finest, slopes = np.zeros_like(plane), np.zeros_like(plane)
    for image in (plane, other):
        finest += np.square(image - cv2.GaussianBlur(image, (0, 0), DETAIL))
        for across in (0, 1):
            slopes += np.square(cv2.Sobel(image, -1, across, 1 - across, scale=1 / 8))
    causes = [cv2.dilate(_mean(cause, WINDOW).clip(0), near)[common] for cause in (finest, slopes)]
    known = np.stack([*causes, np.ones_like(causes[0])], 1)
    differences = _mean(np.square(plane - other), WINDOW).clip(0)[common]
    chance = np.random.default_rng(0)
    some = chance.permutation(len(known))[:FITTED]
    expected = known[some] @ np.array([0.01, 0.01, 0.5])
    used = np.ones(len(some), bool)
    factors = np.zeros(3)
    for _ in range(ROUNDS):
        rows, scale = some[used], expected[used]
        factors, _ = nnls(known[rows] / scale[:, None], differences[rows] / scale)
        expected = known[some] @ factors + NONE
        apart = differences[some] / expected
        used = apart <= np.quantile(apart, 1 - WORST)
    return float((differences / (known @ factors + NONE)).max())


def _noise(
    first: np.ndarray, second: np.ndarray, common: np.ndarray, is_drawn: bool = False
) -> float:
    """The difference of two images in the places with the least detail, up to 1 for copies.

    Of the finest detail its variance counts, by that of an image: 2 where noise is independent. In
    coarser detail JPEG and resampling spare noise, so that copies hardly differ, and two shots do.
    Places near black or white do not count. Infinite where none is left, but for what is drawn.
    """
    light = [image[0] for image in (first, second)]
    within = common.copy()
    for plane in light:
        mean = _mean(plane, VARIED)
        cut = ((plane <= BLACK) | (plane >= WHITE)).astype(np.uint8)
        near_cut = opencv().dilate(cut, np.ones((COARSER, COARSER), np.uint8)) > 0
        within &= (mean > DARK) & (mean < LIGHT) & ~near_cut
    if within.sum() < LEAST_SIDE**2 / 4:
        return 0.0 if is_drawn else math.inf
    light[0] = _recoloured(light[0][None], light[1][None], common)[0].astype(np.float32)
    soft = [_blurred(plane[None], DETAIL, 0)[0] for plane in light]
    details = [plane - softer for plane, softer in zip(light, soft, strict=True)]
    coarse = [
        softer - _blurred(plane[None], COARSE, 0)[0]
        for plane, softer in zip(light, soft, strict=True)
    ]
    apart, variances = _apart(details, within, VARIED)
    ratio = apart / (max(variances) + 0.25) / SHOTS
    left = _apart(coarse, within, COARSER)[0] / SPARED
    return max(ratio, left, math.hypot(ratio, left) / TOGETHER)


def _apart(
    planes: Sequence[np.ndarray], within: np.ndarray, window: int
) -> tuple[float, list[float]]:
    """The mean square of the difference of two planes, and those of each, in the windows where
    these have least.
    """
    squares = [_mean(np.square(plane), window) for plane in (*planes, planes[0] - planes[1])]
    both = squares[0] + squares[1]
    quiet = within & (both <= np.quantile(both[within], QUIET))
    *own, apart = (float(square[quiet].mean()) for square in squares)
    return apart, own


def edit_in_words(edit: Edit, size: tuple[int, int], other: tuple[int, int]) -> str:
    """The words for an edit: how an image of a size, (width, height), becomes one of another size:
    "turned by 12 degrees, cropped to 71 %".
    """
    pixels = _to_pixels(np.reshape(edit.matrix, (2, 3)), size, other)
    linear, words = pixels[:, :2].copy(), []
    is_mirrored = np.linalg.det(linear) < 0
    if is_mirrored:
        linear[:, 0] *= -1
    left, scales, right = np.linalg.svd(linear)
    turn = left @ right
    angle = math.degrees(math.atan2(turn[1, 0], turn[0, 0]))
    if is_mirrored and abs(angle) > 135:
        angle -= math.copysign(180, angle)
        words.append("mirrored top to bottom")
    elif is_mirrored:
        words.append("mirrored")
    stretch = turn.T @ linear
    ratio = stretch[0, 0] / stretch[1, 1]
    if abs(math.log(ratio)) > STRETCH:
        side, part = ("height", 1 / ratio) if ratio > 1 else ("width", ratio)
        words.append(f"squeezed to {part:.0%} of its {side}".replace("%", " %"))
    elif scales[0] > (1 + 2 * STRETCH) * scales[1]:
        words.append("squeezed")
    if abs(angle) > ANGLE:
        words.append(f"turned by {abs(angle):.0f} degrees {'right' if angle > 0 else 'left'}")
    shown, covered = shares(edit)
    if shown < WHOLE:
        words.append(f"cropped to {shown:.0%}".replace("%", " %"))
    if covered < WHOLE:
        words.append(f"with a border of {1 - covered:.0%}".replace("%", " %"))
    if edit.recoloured:
        words.append("other colours")
    if edit.blur:
        words.append("blurred" if edit.blur > 0 else "sharper")
    return ", ".join(words) or "resized or encoded again"


def shares(edit: Edit) -> tuple[float, float]:
    """The share of the first image that the second shows, and the share of the second that is of
    the first.
    """
    steps = (np.arange(GRID) + 0.5) / GRID - 0.5
    places = np.stack([*np.meshgrid(steps, steps), np.ones((GRID, GRID))]).reshape(3, -1)
    shown, covered = (
        float((np.abs(np.reshape(direction.matrix, (2, 3)) @ places) <= 0.5).all(0).mean())
        for direction in (edit, edit.undone())
    )
    return shown, covered


def corners_in_first(edit: Edit) -> Float[np.ndarray, "4 2"]:
    """Return the corners of the second image in the first, whose own are at (0, 0) and (1, 1);
    they may lie outside.
    """
    corners = np.array([[-0.5, 0.5, 0.5, -0.5], [-0.5, -0.5, 0.5, 0.5], [1, 1, 1, 1]])
    return (np.reshape(edit.undone().matrix, (2, 3)) @ corners).T + 0.5
