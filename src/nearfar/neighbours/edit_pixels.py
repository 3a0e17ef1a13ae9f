"""The comparison of the pixels of two images that are aligned.

One map of colours and one blur are fitted for the whole of the common area. A difference at one
place is then no edit: two forms that differ in a digit have the same map, and so have two frames of
a series. An image with a text or a figure on it is no edited copy either, since another digit is no
less than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from scipy.optimize import nnls

from nearfar.neighbours.copies import LOCAL, local_difference
from nearfar.neighbours.edit_maps import EDGE, LEAST_SIDE, grayscale, opencv, without_rim

PLAIN = 12.0  # of 255: standard deviation of the common area below which it shows too little
RECOLOURED = 8.0  # of 255: mean change of the colours that is said
MUCH = 1.4  # sigma of the blur from which an image is much softer
MIXED = 2  # pixels of the rim that JPEG mixes with what lies around an image


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
    if min(grayscale(image)[common].std() for image in (first, second)) < PLAIN:
        return math.inf, False, 0.0
    blur = _more_blur(first, second, common)
    images = _blurred(first, max(blur, 0)), _blurred(second, max(-blur, 0))
    three = [np.broadcast_to(image, (3, *image.shape[1:])) for image in images]
    recoloured = bool(np.abs(three[0] - three[1])[:, common].mean() > RECOLOURED)
    is_drawn = any(_is_drawn(image, common) for image in (first, second))
    if is_drawn and (blur or not on_grid):
        return math.inf, recoloured, blur
    if is_drawn or (on_grid and not blur and not recoloured):
        if _is_gray(first) != _is_gray(second):
            first, second, recoloured = grayscale(first)[None], grayscale(second)[None], True
        difference = _difference_on_grid(first, second, common, recoloured, is_drawn)
    else:
        common = without_rim(common, EDGE - MIXED) if on_grid else common
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


def _is_gray(image: UInt8[np.ndarray, "channels height width"]) -> bool:
    return bool((image == image[:1]).all())


# an image is drawn where so much of it has one of two brightnesses, each within 2 of 255
BAND, DRAWN = 2, 0.65


def _is_drawn(image: UInt8[np.ndarray, "channels height width"], common: np.ndarray) -> bool:
    """Return whether most of an area has one of two brightnesses, as in pages and forms."""
    counts = np.bincount(grayscale(image)[common], minlength=256)
    band, share = np.ones(2 * BAND + 1), 0.0
    for _ in range(2):
        near = np.convolve(counts, band, "same")
        most = int(near.argmax())
        share += near[most] / common.sum()
        counts[max(0, most - BAND) : most + BAND + 1] = 0
    return bool(share > DRAWN)


# the share of a window's variance, and the multiples of what fits the rest of the images, up to
# which two windows are equal; for images one of which is much softer or has other colours
DIFFERENT, SOFTER = 0.3, 0.6
ALONE, ALONE_SOFTER = 32.0, 64.0
FLOOR = 6.0  # of 255: difference that counts as noise
# pixels of a window that is compared, of one whose variance is measured, and of those around it
WINDOW, VARIED, AROUND = 3, 7, 17


def _largest(source: np.ndarray, target: np.ndarray, common: np.ndarray, is_softer: bool) -> float:
    """The largest difference of images in a window, up to 1 for copies: of the variance near it,
    and of what fits the rest of the images. It ends at a plane that is no copy's.
    """
    cv2, around, largest = opencv(), np.ones((AROUND, AROUND), np.uint8), 0.0
    different, most = (SOFTER, ALONE_SOFTER) if is_softer else (DIFFERENT, ALONE)
    for plane, other in zip(source.astype(np.float32), target.astype(np.float32), strict=True):
        variance = _variance(np.asarray(plane)) + _variance(np.asarray(other))
        allowed = cv2.dilate(variance, around) + 2 * FLOOR**2
        difference = _mean(np.square(plane - other), WINDOW) / allowed
        largest = max(largest, float(difference[common].max()) / different)
        if largest > 1:
            return largest
    return max(largest, _alone(_light(source), _light(target), common) / most)


DETAIL = 1.0  # sigma beyond which detail is not the finest
# pixels around that count for a place, pixels that a fit is made on, its rounds and what it leaves
# out as the worst; the difference of levels squared that counts as none
NEAR, FITTED, ROUNDS, WORST, NONE = 5, 4000, 3, 0.02, 0.3


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


# local difference up to which what is drawn is a copy: that of a digit of 5 pixels can be 1.07
LOCAL_DRAWN = 1.0


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


# qualities of JPEG that may have made a difference; side of its blocks, and pixels by which one is
# moved, so that it is not that of an image; mean change, of 255, of a block that shows something,
# and so many of them
QUALITIES = (95, 90, 85, 80, 70, 60, 50, 40, 30)
BLOCK, OFF, CHANGED, LEAST_BLOCKS = 8, 4, 0.3, 9
# times what JPEG changes near a place, plus so many of 255: of a good quality, and of a poor one;
# the least ratio of differences to those changes
GOOD, LIKE_GOOD, LIKE_POOR, CHANGE, LEAST_TIMES = 80, 1.12, 1.35, 2.0, 0.5


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


def _changes_by_jpeg(
    image: UInt8[np.ndarray, "channels height width"], planes: list[np.ndarray], quality: int
) -> list[np.ndarray]:
    """Changes by JPEG of a quality in each window of the planes of an image."""
    made = _jpeg_planes(_jpeg(image, quality))
    return [_strength(other - plane) for plane, other in zip(planes, made, strict=True)]


def _jpeg(
    image: UInt8[np.ndarray, "channels height width"], quality: int
) -> UInt8[np.ndarray, "channels height width"]:
    """An image after JPEG, in blocks that lie half a block beside those of an image saved so."""
    cv2, sides = opencv(), [(OFF, BLOCK)] * 2
    padded = np.pad(image[::-1], [(0, 0), *sides], mode="edge").transpose(1, 2, 0)
    _, data = cv2.imencode(".jpg", padded, [cv2.IMWRITE_JPEG_QUALITY, quality])
    made = cv2.imdecode(data, cv2.IMREAD_UNCHANGED).reshape(padded.shape)
    return made[OFF:-BLOCK, OFF:-BLOCK].transpose(2, 0, 1)[::-1]


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


# of red, green and blue, in brightness and the two colours of JPEG
YCBCR = np.array(
    [[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]], np.float32
)


def _jpeg_planes(image: UInt8[np.ndarray, "channels height width"]) -> list[np.ndarray]:
    """Brightness, and the two colours of JPEG at half the size."""
    numbers = np.tensordot(YCBCR if len(image) == 3 else np.eye(1, dtype=np.float32), image, 1)
    size = image.shape[2] // 2, image.shape[1] // 2
    cv2 = opencv()
    return [numbers[0], *(cv2.resize(x, size, interpolation=cv2.INTER_AREA) for x in numbers[1:])]


def _light(image: np.ndarray) -> Float[np.ndarray, "height width"]:
    """Brightness, as in JPEG."""
    return np.tensordot(YCBCR[0] if len(image) == 3 else [1], image, 1).astype(np.float32)


# the share of windows with the least detail; ratio of the finest detail of the difference to that
# of an image, which is 2 for two shots
QUIET, SHOTS = 0.01, 0.93
# sigma beyond which noise is not coarse, pixels of a window in which it is measured; the variance
# of 255 that JPEG leaves there of a difference; what fine and coarse noise may come to together
COARSE, COARSER, SPARED, TOGETHER = 2.0, 9, 0.2, 1.17
# mean brightness at which noise is not cut, and brightness of a pixel at which it is
DARK, LIGHT, BLACK, WHITE = 15, 240, 5, 250


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


BLURS = (0.0, 0.7, 1.4, 2.1, 2.8, 3.5)  # sigmas of the Gaussian blur that one image may have more
SOFT = 0.7  # sigma of the blur of both before they are compared


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


DARKEST, BRIGHTEST = 4, 251  # of 255: beyond, a colour may have been cut
CURVE = 32  # steps of a curve of brightness


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
