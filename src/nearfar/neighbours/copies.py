"""Copies of images by their pixels: candidates by small versions, confirmed at full size.

Images that look the same at 16 pixels can be different documents of one form. The decision is
therefore local: the largest difference anywhere, compared with the changes that JPEG makes there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped, UInt8
from PIL import Image
from scipy.ndimage import gaussian_filter, maximum_filter, uniform_filter
from torch import Tensor
from torchvision.io import decode_jpeg, encode_jpeg

from nearfar.data import Images
from nearfar.data.decoding import whole_planes
from nearfar.data.measures import opencv
from nearfar.data.resources import in_order, usable_cores
from nearfar.engine import each
from nearfar.progress import progress, tracked

SIDE = 16  # pixels of the small versions
# difference of small versions up to which images can be copies, in units of their contrast
COPY = 0.2
LOCAL = 1.5  # local difference up to which images are copies, in units of the changes by JPEG
# log ratio of two aspect ratios up to which images have the same proportions
PROPORTIONS = 0.03
ROUGH, FINE = 30, 50  # quality of that JPEG for images of the same and of different size
# pixels: reach of resizing kernels; a stroke of a letter; two blocks of JPEG
BLUR, WINDOW, AROUND = 0.7, 3, 17
FLOOR = 4.0  # of 255: difference that is allowed on plain ground
# pixels of a side of JPEG's blocks; of 255: mean change by JPEG of one that shows something
BLOCK, SHOWN = 8, 1.0
SMALLEST = 4.5  # a copy that is smaller by more leaves too little of the letters on a page
KERNELS = [Image.Resampling[name] for name in ("BOX", "BILINEAR", "BICUBIC", "LANCZOS")]
# times smaller: beyond these, the loss of detail makes differences fainter, and hides them
LESS, HALF = 1.6, 2.2
LOST = 0.17  # so much detail, of the contrast
# factors of differences between two sizes, without and with a loss of such detail
SMALLER, FAINT = 1.3, 2.6
# of stretched copies: pixels of a window; a detail of so many of 255 is none; the strength of what
# is lost, in units of what is left beside it
NEAR, DETAIL, MOST_LOST = 5, 8, 1.2
SHORTEST, LONGEST = 16, 65500  # pixels of a side: fewer show too little; JPEG holds no more
CUT = 1.25  # pixels that a copy may lack on each side
PLAIN = 32  # of 255: range of values below which an image shows too little to tell it from others
ROWS = 2**20  # pixels that are compared at a time
QUALITY, SHRINK = 50, 2  # of the copies by which the shift of features is measured
GATHERED = 256  # images in memory at a time
EVEN, PATCH, BIN = 5, 16, 16  # pixels and range of a flat window; of 255: colours that count as one
AREA, PORTION = 64, 0.005  # pixels, and part of the image, that a flat colour covers at least
# of 255: mean change of a flat colour by good JPEG, and by so much more at quality 30
SHIFT, ROUGHER = 2.5, 1.5
SHIFT_RESIZED = 3.5  # by resizing and JPEG
# pixels of a side of the versions that refuse pairs before they are compared at full size
REDUCED = 128
REFUSED, REFUSED_RESIZED = 1.5, 2.0  # local difference of these, for images of one size and of two
# orientations, each a number of quarter turns; so many more are those of the mirror image
MIRROR = 4
LEAST = 2.0  # of 255: contrast below which an image is plain, and noise would decide
BLOCKS = 4  # pixels of a side of the blocks whose means refuse most pairs of small versions
MEANS = 4096  # images whose means are computed at a time

Box = tuple[float, float, float, float]  # left, top, right, bottom


class Reduced(NamedTuple):
    """A version of 128 x 128 pixels, [channels, 128, 128], what JPEG changes around each, and the
    size of the image.
    """

    pixels: Float[np.ndarray, "channels side side"]
    changes: Float[np.ndarray, "channels side side"]
    height: int
    width: int


def small_images(
    images: Images,
    rows: Int64[Tensor, " rows"],
    side: int = SIDE,
) -> Tensor:
    """The images at these positions, shrunk to 16 pixels by area: float [rows, channels, 16, 16] in
    0..255; those that the images keep, rounded to whole numbers, are not made again.
    """
    if images.kept is not None and side == SIDE:
        return images.kept.small(rows.numpy()).float()
    out = []
    with progress("shrinking images", len(rows)) as bar:
        for pixels in each(partial(_shrunk, images, side), rows.split(GATHERED)):
            out.append(pixels)
            bar.advance(len(pixels))
    return torch.cat(out)


def _shrunk(images: Images, side: int, rows: Int64[Tensor, " rows"]) -> Tensor:
    """Some of `small_images`."""
    pixels = images.gather(rows)
    pixels = pixels.float() if pixels.dtype == torch.uint8 else 255 * pixels
    return F.interpolate(pixels, (side, side), mode="area") if pixels.shape[-1] > side else pixels


def whole_images(
    images: Images,
    rows: Int64[Tensor, " rows"],
    square: Bool[Tensor, " rows"],
    side: int = SIDE,
) -> Tensor:
    """The whole images at these positions, resized to a square whatever their proportions, by area:
    float [rows, channels, 16, 16] in 0..255, or fewer pixels where the images have fewer.

    square: which of them are square, and need not be read again.
    """
    side = min(side, images.image_size)
    out = torch.empty(len(rows), images.channels, side, side)
    out[square] = small_images(images, rows[square], side)
    others = torch.where(~square)[0]
    work = partial(_squashed, images, side)
    chunks = (some.tolist() for some in rows[others].split(GATHERED // 8))
    shrunk = chain.from_iterable(in_order(chunks, work, usable_cores()))
    tracked_pixels = tracked(shrunk, "shrinking images", len(others))
    for at, pixels in zip(others.tolist(), tracked_pixels, strict=True):
        out[at] = pixels
    return out


def _squashed(images: Images, side: int, row: int) -> Tensor:
    """A whole image resized to a square."""
    assert images.originals is not None
    data, at_least = images.originals[row], 2 * side
    planes = whole_planes(data, images.channels, images.value_range, at_least)
    planes = planes.float() if planes.dtype == torch.uint8 else 255 * planes
    return F.adaptive_avg_pool2d(planes, side)


def pixel_difference(
    first: Float[Tensor, "pairs channels side side"],
    second: Float[Tensor, "pairs channels side side"],
) -> Float[Tensor, " pairs"]:
    """Difference of images in units of their contrast: 0 for the same, sqrt 2 for unrelated ones.

    The root of their mean squared difference, divided by the root of the mean of their variances
    (within channels). The contrast counts as 2 of 255 at least.
    """
    if not len(first):  # torch warns of the variance of nothing
        return first.new_zeros(0)
    square = (first - second).square().flatten(1).mean(1)
    variances = torch.stack(
        [image.flatten(2).var(2, unbiased=False).mean(1) for image in (first, second)]
    )
    return (square / variances.mean(0).clamp_min(LEAST**2)).sqrt()


class Outlines(NamedTuple):
    """Small versions of images in little: the means of blocks of 4 x 4 pixels, and the contrast."""

    means: Float[Tensor, "images blocks"]
    variance: Float[Tensor, " images"]

    def refused(
        self, first: Int64[Tensor, " pairs"], second: Int64[Tensor, " pairs"]
    ) -> Bool[Tensor, " pairs"]:
        """Return which pairs of positions certainly have a `pixel_difference` above COPY: means
        differ by no more than what they are means of.
        """
        square = (self.means[first] - self.means[second]).square().mean(1)
        variance = (self.variance[first] + self.variance[second]) / 2
        return square > 1.001 * COPY**2 * variance.clamp_min(LEAST**2)  # beyond any rounding


def outlines(images: Images, rows: Int64[Tensor, " rows"]) -> Outlines:
    """Return the outlines of the images at these positions."""
    parts = []
    for some in rows.split(MEANS):
        small = small_images(images, some)
        side = BLOCKS if small.shape[-1] % BLOCKS == 0 else 1
        variance = small.flatten(2).var(2, unbiased=False).mean(1)
        parts.append((F.avg_pool2d(small, side).flatten(1), variance))
    means, variances = zip(*parts, strict=True)
    return Outlines(torch.cat(means), torch.cat(variances))


def turned(
    pixels: Shaped[np.ndarray, "*batch height width"], turn: int
) -> Shaped[np.ndarray, "*batch high wide"]:
    """Images in one of the eight orientations: mirrored left to right from 4 on, then `turn` % 4
    quarter turns left.
    """
    mirrored = pixels[..., ::-1] if turn >= MIRROR else pixels
    return np.ascontiguousarray(np.rot90(mirrored, turn % MIRROR, (-2, -1)))


def composed(turn: int, before: int) -> int:
    """The orientation that comes of two: turned(turned(x, before), turn)."""
    quarters = turn - before if turn >= MIRROR else turn + before
    return (turn // MIRROR ^ before // MIRROR) * MIRROR + quarters % MIRROR


def inverse(turn: int) -> int:
    """The orientation that undoes another; a mirror image is undone by itself."""
    return turn if turn >= MIRROR else -turn % MIRROR


def compare_pixels(
    first: Shaped[np.ndarray, "channels height width"],
    second: Shaped[np.ndarray, "bands high wide"],
    lossless: bool = False,
) -> str:
    """Compare all pixels of two images: "same pixels", "copy", "stretched copy", or
    "near-duplicate" for anything else.

    A stretched copy is one of other proportions. lossless: whether both files hold their pixels
    exactly. If they are of one size too, a copy differs by nothing but its grayscale being stored
    as colour, or by what is see-through being stored on white.
    """
    if np.array_equal(first, second):
        return "same pixels"
    (height, width), (high, wide) = first.shape[1:], second.shape[1:]
    if lossless and (height, width) == (high, wide):
        return "copy" if _equal_in_colour(first, second) else "near-duplicate"
    if local_difference(first, second) > LOCAL:
        return "near-duplicate"
    return "stretched copy" if _is_stretched(first, second) else "copy"


def _is_stretched(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether the proportions of two images differ by more than rounding."""
    (height, width), (high, wide) = first.shape[1:], second.shape[1:]
    return abs(math.log(width * high / (height * wide))) > PROPORTIONS


def _equal_in_colour(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether a grayscale image is the other one, which is stored as colour, or a
    see-through one it on white.
    """
    ours, other = _on_one_ground(first, second)
    if (len(ours), len(other)) != (len(first), len(second)) and np.ptp(ours) < PLAIN:
        return False  # a white drawing shows nothing on white
    return {len(ours), len(other)} <= {1, 3} and bool((ours == other).all())


def reduced(image: Shaped[np.ndarray, "channels height width"]) -> Reduced | None:
    """A small version that can refuse copies; None for images of fewer than 256 pixels a side, or
    more than 8 bits.
    """
    height, width = image.shape[1:]
    if min(height, width) < 2 * REDUCED or image.dtype != np.uint8:
        return None
    small = np.stack([_resized(plane, REDUCED, REDUCED, Image.Resampling.BOX) for plane in image])
    lossy = _jpeg(torch.tensor(small), ROUGH).numpy()
    pixels = small.astype(np.float32)
    changes = [
        largest_around(_strength(plane - other), AROUND)
        for plane, other in zip(pixels, lossy.astype(np.float32), strict=True)
    ]
    return Reduced(pixels, np.stack(changes), height, width)


def differs(first: Reduced | None, second: Reduced | None) -> bool:
    """Return whether small versions show already that two images are no copies."""
    if first is None or second is None or len(first.pixels) != len(second.pixels):
        return False
    changes = np.maximum(first.changes, second.changes) + FLOOR
    strengths = np.stack(
        [_strength(plane - other) for plane, other in zip(first.pixels, second.pixels, strict=True)]
    )
    most = REFUSED if first[2:] == second[2:] else REFUSED_RESIZED
    return float((strengths / changes).max()) > most


def local_difference(
    first: Shaped[np.ndarray, "channels height width"],
    second: Shaped[np.ndarray, "bands high wide"],
) -> float:
    """The largest difference of two images anywhere, in units of the changes by JPEG there: up to
    LOCAL for copies.

    The larger one is resized to the size of the smaller, less the row or column that rounding may
    have cost. Both are blurred a little (sigma 0.7 pixels). The root mean square of their
    difference in each window of 3 x 3 pixels is divided by what JPEG of quality 30 changes within 8
    pixels of it, plus 4 of 255. For images of the same size, JPEG's changes are reduced if the
    images differ by less in their median block of 8 x 8 pixels: to nothing if they were saved
    alike. Colour is compared at half the size, as JPEG stores it. For different sizes, where
    strokes are fainter, JPEG is of quality 50, and the difference counts 1.3 times, or 2.6 times if
    the smaller one is about half as large and has lost sharp detail, as small letters do. A
    grayscale image becomes RGB for the comparison with an RGB image. Images of more than 8 bits are
    scaled to 8 by the range of both, and again without its ends, since a few bright pixels could
    hide the rest.

    Nor may a flat colour (what covers at least 64 pixels and 0.5 % of the image) change by more
    than 2.5 of 255 on average, in brightness or colour: JPEG changes pixels by more, and whole
    areas by less. It may change by 4 where JPEG changed as much as at quality 30, and by 3.5 for
    different sizes.

    Images of other proportions are both resized to one rectangle, the smaller of each side, and
    compared so (`_stretched_difference`).

    Infinite for images that cannot be compared so: with other channels or types, such detail at
    less than half the size, one more than 4.5 times as large, or next to no content (fewer than 16
    pixels on a side, or a range of values below 32 of 255).
    """
    first, second = _on_one_ground(first, second)
    if {len(first), len(second)} == {1, 3}:
        first, second = (np.broadcast_to(image, (3, *image.shape[1:])) for image in (first, second))
    if len(first) != len(second) or first.dtype != second.dtype:
        return math.inf
    if first.dtype == np.uint8:
        return _local_difference(first, second)
    differences = []
    for cut in (0, 0.5):
        both = [image.reshape(len(image), -1) for image in (first, second)]
        ends = np.array(
            [np.percentile(planes, [cut, 100 - cut], axis=1) for planes in both]
        )  # [2 images, 2 ends, channels]
        low, high = ends[:, 0].min(0)[:, None, None], ends[:, 1].max(0)[:, None, None]
        scale = 255 / np.where(high > low, high - low, 1)
        scaled = (
            ((image - low) * scale).clip(0, 255).round().astype(np.uint8)
            for image in (first, second)
        )
        differences.append(_local_difference(*scaled))
    return max(differences)


def _on_one_ground(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two images to compare: of one that stands on white and on black, that on white if the other
    has one ground.

    So a drawing is a copy of the see-through one that it was made of, unless that shows nothing on
    white.
    """
    for grounds in (2, 6):  # of grayscale and colour, each on two
        if len(first) == grounds and len(second) in (1, 3):
            first = first[: grounds // 2]
        elif len(second) == grounds and len(first) in (1, 3):
            second = second[: grounds // 2]
    return first, second


def _local_difference(
    first: UInt8[np.ndarray, "channels height width"],
    second: UInt8[np.ndarray, "channels high wide"],
) -> float:
    if first[0].size < second[0].size:
        first, second = second, first
    if _is_stretched(first, second):
        return _stretched_difference(first, second)
    (tall, broad), (height, width) = first.shape[1:], second.shape[1:]
    shrunk, contrast = (
        max(tall / height, broad / width),
        max(int(np.ptp(plane)) for plane in second),
    )
    if (
        shrunk > SMALLEST
        or contrast < PLAIN
        or min(height, width) < SHORTEST
        or max(height, width) > LONGEST
    ):
        return math.inf
    if (tall, broad) == (height, width):
        difference = min(
            _furthest(first, second, ROUGH, 0), _furthest(second, first, ROUGH, 0)
        )  # JPEG changes JPEG less
        if difference > LOCAL:
            return difference
        return max(difference, LOCAL * _recoloured(first, second) / _shift(first, second))
    faint = shrunk > LESS and _lost(first, height, width) > LOST * contrast
    if faint and shrunk > HALF:
        return math.inf
    nearest = min(_versions(first, second), key=lambda version: _mean_square(version, second))
    return _resized_difference(nearest, second, FAINT if faint else SMALLER)


def _resized_difference(first: np.ndarray, second: np.ndarray, factor: float) -> float:
    """The difference of two images one of which was resized, or both."""
    difference = _furthest(first, second, FINE, 1) * factor
    return (
        difference
        if difference > LOCAL
        else max(difference, LOCAL * _recoloured(first, second) / SHIFT_RESIZED)
    )


def _stretched_difference(
    first: UInt8[np.ndarray, "channels height width"],
    second: UInt8[np.ndarray, "channels high wide"],
) -> float:
    """The difference of images of other proportions, both resized to the smaller of each side.

    One is first resized to the size of the other, as it would be to make that of it; each of them,
    where each has the longer side. first: the one with more pixels. Infinite if an image loses more
    detail by that than it keeps (`_lost_detail`), as small letters do: two forms that differ in a
    letter would be equal then.
    """
    height, width = (min(sides) for sides in zip(first.shape[1:], second.shape[1:], strict=True))
    if not SHORTEST <= min(height, width) <= max(height, width) <= LONGEST:
        return math.inf
    if max(_lost_detail(image, height, width) for image in (first, second)) > MOST_LOST:
        return math.inf
    if max(int(np.ptp(plane)) for plane in second) < PLAIN:
        return math.inf

    def small(image: np.ndarray) -> np.ndarray:
        return np.stack([_resized(plane, width, height) for plane in image])

    made = [(first, second), (second, first)]
    if second.shape[1:] == (height, width):
        made.pop()
    tried = [
        (small(version), small(other))
        for source, other in made
        for version in [*_versions(source, other), _interpolated(source, other)]
    ]
    nearest, smaller = min(tried, key=lambda pair: _mean_square(*pair))
    return _resized_difference(nearest, smaller, SMALLER)


def _recoloured(first: np.ndarray, second: np.ndarray) -> float:
    """The largest mean change, of 255, of a flat colour of two images of one size, in brightness or
    colour.

    Pixels of one colour belong together wherever they are. The colours are those of the image that
    gives the smaller change: JPEG spreads one colour over several.
    """
    planes = [
        np.stack(_bands(image)).astype(np.int16) for image in (first, second)
    ]  # [channels, height, width]
    flat = np.ones(first.shape[1:], dtype=bool)
    for plane in (*planes[0], *planes[1]):
        flat &= largest_around(plane, EVEN) + largest_around(-plane, EVEN) <= PATCH
    change = [(plane - other)[flat] for plane, other in zip(*planes, strict=True)]
    least, means_of = max(AREA, PORTION * flat.size), []
    for image in planes:
        key = np.zeros(int(flat.sum()), dtype=np.int64)
        for plane in image[:3]:
            key = key * (256 // BIN + 1) + (plane[flat] + BIN // 2) // BIN
        counts = np.bincount(key)
        large = np.flatnonzero(counts >= least)
        sums = [np.abs(np.bincount(key, values)[large]) / counts[large] for values in change]
        means_of.append(max((float(means.max()) for means in sums if len(means)), default=0.0))
    return min(means_of)


def _shift(first: np.ndarray, second: np.ndarray) -> float:
    """The mean change, of 255, of a flat colour that JPEG explains in copies of one size."""
    light = (
        _planes(image)[0] for image in (first, second, _jpeg(torch.tensor(first), ROUGH).numpy())
    )
    return SHIFT + ROUGHER * _typical(*light)


def _bands(pixels: UInt8[np.ndarray, "channels height width"]) -> list[np.ndarray]:
    """Brightness and colour, or any other channels as they are."""
    if len(pixels) != 3:
        return list(pixels)
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    return [np.asarray(plane) for plane in image.convert("YCbCr").split()]


def _furthest(first: np.ndarray, second: np.ndarray, quality: int, least: float) -> float:
    """The largest local difference of images of one size, in units of the changes by JPEG of that
    quality, or better.

    How much less JPEG changed here is measured for each plane; `least` of the changes are allowed
    in any case.
    """
    rough = _jpeg(torch.tensor(first), quality).numpy()
    planes = zip(*map(_planes, (first, second, rough)), strict=True)
    return max(_largest(*three, strength=max(least, _typical(*three))) for three in planes)


def _typical(first: np.ndarray, second: np.ndarray, rough: np.ndarray) -> float:
    """The difference of two planes in the median block, in units of JPEG's changes there: up to 1.

    JPEG changes all blocks that show something; another digit, its own alone.
    """
    rows, columns = first.shape[0] // BLOCK, first.shape[1] // BLOCK
    errors, by_jpeg = (
        np.abs(np.subtract(first, other, dtype=np.int16))[: BLOCK * rows, : BLOCK * columns]
        .reshape(rows, BLOCK, columns, BLOCK)
        .mean((1, 3))
        for other in (second, rough)
    )
    shown = by_jpeg > SHOWN
    return min(1.0, float(np.median(errors[shown] / by_jpeg[shown]))) if shown.any() else 1.0


def _versions(first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
    """An image at the size of another by several kernels, also less what that may lack."""
    height, width = second.shape[1:]
    for box in (None, _box(first, second)):
        for kernel in KERNELS:
            yield np.stack([_resized(plane, width, height, kernel, box) for plane in first])


def _interpolated(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """An image at the size of another, interpolated between the nearest pixels, as by OpenCV."""
    (high, wide), (height, width) = first.shape[1:], second.shape[1:]
    whole, kernel = (0, 0, wide, high), Image.Resampling.BILINEAR
    images = map(Image.fromarray, first)
    made = [
        plane.transform((width, height), Image.Transform.EXTENT, whole, kernel) for plane in images
    ]
    return np.stack([np.asarray(plane) for plane in made])


def _mean_square(first: np.ndarray, second: np.ndarray) -> float:
    """The mean squared difference of two images of one size."""
    return float(np.square(np.subtract(first, second, dtype=np.float32)).mean())


def _resized(
    plane: np.ndarray,
    width: int,
    height: int,
    kernel: Image.Resampling = Image.Resampling.BICUBIC,
    box: Box | None = None,
) -> np.ndarray:
    return np.asarray(Image.fromarray(plane).resize((width, height), kernel, box=box))


def _box(first: np.ndarray, second: np.ndarray) -> Box:
    """The part of the larger image that the smaller one shows: all, or up to a pixel less on each
    side.

    Translation and scale in both directions, by least squares on the gradients (Lucas & Kanade
    1981), twice.
    """
    (tall, broad), (height, width) = first.shape[1:], second.shape[1:]
    ends, scale = np.array([0.0, 0.0, broad, tall]), np.tile([broad / width, tall / height], 2)
    first_plane, second_plane = (
        image.mean(0, dtype=np.float32).round().astype(np.uint8) for image in (first, second)
    )
    target = gaussian_filter(second_plane.astype(np.float32), 1)
    x, y = (
        np.linspace(-1, 1, width, dtype=np.float32),
        np.linspace(-1, 1, height, dtype=np.float32)[:, None],
    )
    for _ in range(2):
        stretched = gaussian_filter(
            _resized(first_plane, width, height, box=tuple(ends)).astype(np.float32), 1
        )
        down, across = np.gradient(stretched)
        slopes = np.stack([across, across * x, down, down * y]).reshape(4, -1)
        square = slopes @ slopes.T
        square += np.eye(4) * (
            1e-6 * np.trace(square) + 1e-6
        )  # for images without edges in one direction
        left, wider, top, taller = np.linalg.solve(square, slopes @ (target - stretched).ravel())
        ends += np.array([left - wider, top - taller, left + wider, top + taller]) * scale
        ends = np.clip(ends, [0, 0, broad - CUT, tall - CUT], [CUT, CUT, broad, tall])
    return tuple(ends)


def _planes(pixels: UInt8[np.ndarray, "channels height width"]) -> list[np.ndarray]:
    """Brightness, and colour at half the size; any other channels as they are."""
    light, *colours = _bands(pixels)
    if len(pixels) != 3:
        return [light, *colours]
    return [light, *(np.asarray(Image.fromarray(plane).reduce(2)) for plane in colours)]


def _lost(image: UInt8[np.ndarray, "channels height width"], height: int, width: int) -> float:
    """The largest local difference, of 255, between an image and its smaller version."""
    strongest, rows = 0.0, max(AROUND, ROWS // image.shape[2])
    for plane in image:
        back = _resized(_resized(plane, width, height), plane.shape[1], plane.shape[0])
        for top in range(0, len(plane), rows):
            lost = np.subtract(plane[top : top + rows], back[top : top + rows], dtype=np.float32)
            strongest = max(strongest, float(_strength(gaussian_filter(lost, BLUR)).max()))
    return strongest


def _lost_detail(image: UInt8[np.ndarray, "channels tall broad"], height: int, width: int) -> float:
    """Ratio of the detail that an image loses at a smaller size to that which it keeps.

    Lost is what varies within the area of a pixel of that size; kept is what varies between it and
    those near it (sigma 2). Both are root mean squares in windows of 5 x 5 pixels, and 4 of 255 are
    added to what is kept. The median of the windows where the most is lost (half of the largest or
    more): photographs keep more than they lose, letters lose more as soon as they are hard to read.
    0 where next to nothing is lost.
    """
    plane = image.mean(0, dtype=np.float32)
    mean = _resized(plane, width, height, Image.Resampling.BOX)
    lost = _resized(np.square(plane), width, height, Image.Resampling.BOX) - np.square(mean)
    strength, kept = (
        _strength(np.sqrt(lost.clip(0)), NEAR),
        _strength(mean - gaussian_filter(mean, 2), NEAR),
    )
    strong = strength > max(DETAIL, strength.max() / 2)
    return float(np.median((strength / (kept + FLOOR))[strong])) if strong.any() else 0.0


def largest_around(
    plane: Shaped[np.ndarray, "height width"], window: int
) -> Shaped[np.ndarray, "height width"]:
    """The largest number in the window around each pixel, by OpenCV where it is installed: the same
    in a tenth of the time.
    """
    cv2 = opencv()
    if cv2 is None:
        return maximum_filter(plane, window)
    return cv2.dilate(plane, np.ones((window, window), np.uint8))


def _strength(difference: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """Root mean square in the window around each pixel."""
    return np.sqrt(uniform_filter(np.square(difference), window).clip(min=0))


def _largest(first: np.ndarray, second: np.ndarray, rough: np.ndarray, *, strength: float) -> float:
    """The largest local difference of two planes, in units of JPEG's changes times `strength`; in
    strips of rows.
    """
    height, width = first.shape
    rows, largest = max(AROUND, ROWS // width), 0.0
    for top in range(0, height, rows):
        above, strip = min(top, AROUND), slice(max(0, top - AROUND), top + rows + AROUND)
        first_plane, second_plane, rough_plane = (
            gaussian_filter(plane[strip].astype(np.float32), BLUR)
            for plane in (first, second, rough)
        )
        share = _strength(first_plane - second_plane) / (
            strength * largest_around(_strength(first_plane - rough_plane), AROUND) + FLOOR
        )
        largest = max(largest, float(share[above : above + rows].max()))
    return largest


def perturb(
    pixels: UInt8[Tensor, "images channels side side"],
) -> list[UInt8[Tensor, "images channels side side"]]:
    """The images after half the size and back, and after JPEG of quality 50, as copies are."""
    side = pixels.shape[-1]
    half = F.interpolate(
        pixels.float(), (max(1, side // SHRINK),) * 2, mode="bilinear", antialias=True
    )
    back = F.interpolate(half, (side, side), mode="bilinear").round().clamp(0, 255).to(torch.uint8)
    return [back, torch.stack([_jpeg(image, QUALITY) for image in pixels])]


def _jpeg(
    pixels: UInt8[Tensor, "channels height width"], quality: int
) -> UInt8[Tensor, "channels height width"]:
    """One image after JPEG: in colour if it has three channels, else channel by channel."""
    parts = [pixels] if len(pixels) == 3 else pixels[:, None]
    return torch.cat([decode_jpeg(encode_jpeg(part.contiguous(), quality)) for part in parts])
