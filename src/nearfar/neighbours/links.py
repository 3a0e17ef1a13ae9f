"""A link of two images: what they are to each other, as copies or near-duplicates."""

from __future__ import annotations

from typing import NamedTuple

from nearfar.neighbours.edits import Edit

KINDS = (
    "same file",
    "same pixels",
    "copy",
    "turned",
    "mirrored",
    "stretched copy",
    "edited copy",
    "near-duplicate",
)
# the relation of animations and documents whose first frames are copies
FRAME = "first frame alone"
# positions in KINDS
SAME_FILE, COPIED, TURNED, MIRRORED, STRETCHED, EDITED, NEAR_DUPLICATE = 0, 2, 3, 4, 5, 6, 7


class Link(NamedTuple):
    """Two images by their positions, the distance of their features, and their relation, a position
    in KINDS.

    turn: the orientation (`copies.turned`) in which the second shows the first; the distance of
    turned and mirrored copies is that of their small versions, and so is that of stretched copies
    that are not near by their features. edit: how the first becomes the second, for edited copies.
    """

    distance: float
    first: int
    second: int
    kind: int
    turn: int = 0
    edit: Edit | None = None
