"""Edits by which an image becomes another: found by maps, confirmed by pixels, and in words.

Local features of two images give the affine map between them (`edit_maps`). Then all pixels of the
common area decide (`edit_pixels`), as for other copies.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8

from nearfar.neighbours.copies import MIRROR
from nearfar.neighbours.edit_maps import (
    EDGE,
    LEAST_SIDE,
    Map,
    aligned_image,
    exact_map,
    from_pixels,
    grayscale,
    inverse_map,
    map_on_grid,
    to_pixels,
)
from nearfar.neighbours.edit_pixels import MIXED, aligned_difference


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


SQUEEZED = 3.0  # ratio of the scales of a map in two directions, at most
LEAST_SHARE = 0.04  # share of either image that the common area has at least
STRETCH = 0.03  # log ratio of proportions that differ
# of the sides: a map that turns and scales less only moves the image; one that moves it less, not;
# pixels across the common area by which ECC may be wrong
STILL, UNMOVED, INEXACT = 0.01, 0.005, 2.0


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
    explains the rest changes, in grayscale if either image is. In plain places that are neither
    black nor white, where noise is most of the detail, the difference may have 0.93 times its
    variance, and hardly any coarser detail: two shots of a burst do not have the same noise.
    Images of one scale that are only moved, perhaps turned by quarters or mirrored, too, are other
    shots, frames, or parts of a page: None.
    """
    (height, width), (high, wide) = first.shape[1:], second.shape[1:]
    pixels = to_pixels(rough, (width, height), (wide, high))
    scales = np.linalg.svd(pixels[:, :2], compute_uv=False)
    if not scales[1] > 0 or scales[0] > SQUEEZED * scales[1]:
        return None
    if min(height, width, high, wide) < LEAST_SIDE:
        return None
    if np.sqrt(scales.prod()) > 1:  # the second is the finer one
        reverse = find_edit(second, first, inverse_map(rough))
        return None if reverse is None else reverse.undone()
    exact = exact_map(grayscale(first), grayscale(second), pixels)
    if exact is None:
        return None
    on_grid = map_on_grid(exact, (width, height))
    exact = exact if on_grid is None else on_grid
    aligned, common = aligned_image(
        first, exact, second.shape[1:], EDGE if on_grid is None else MIXED
    )
    own_share = common.mean()
    share = common.sum() / np.abs(np.linalg.det(exact[:, :2])) / (width * height)
    if min(own_share, share) < LEAST_SHARE or common.sum() < LEAST_SIDE**2:
        return None
    matrix = from_pixels(exact, (width, height), (wide, high))
    edit = Edit(tuple(matrix.ravel().tolist()))
    squeezed = abs(math.log(width * high / (height * wide))) > STRETCH
    still = max(STILL, INEXACT / math.sqrt(common.sum()))
    if not (squeezed or _changes(edit._replace(recoloured=True), still)):
        return None  # whatever its pixels are
    difference, recoloured, blur = aligned_difference(aligned, second, common, on_grid is not None)
    if difference > 1:
        return None
    edit = edit._replace(recoloured=recoloured, blur=blur)
    return edit if squeezed or _changes(edit, still) else None


SMALLEST = LEAST_SIDE + 2 * MIXED  # pixels of a side of the smallest square that is compared


def are_large_enough(sizes: Int64[np.ndarray, "images 2"]) -> Bool[np.ndarray, " images"]:
    """Return which images, by height and width, `find_edit` can find an edit of: of all others less
    than 32 x 32 pixels would be compared, without the rim of 2.
    """
    compared = np.clip(sizes - 2 * MIXED, 0, None).prod(1)
    return (sizes.min(1) >= LEAST_SIDE) & (compared >= LEAST_SIDE**2)


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


ANGLE = 1.0  # degrees of a turn that is said
WHOLE = 0.97  # share of an image that counts as all of it


def edit_in_words(edit: Edit, size: tuple[int, int], other: tuple[int, int]) -> str:
    """The words for an edit: how an image of a size, (width, height), becomes one of another size:
    "turned by 12 degrees, cropped to 71 %".
    """
    pixels = to_pixels(np.reshape(edit.matrix, (2, 3)), size, other)
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


GRID = 200  # places of a side by which shares are counted


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
