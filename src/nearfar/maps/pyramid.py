"""Representatives of the regions of a map, at several zooms: the cells of a quadtree, in Z-order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt

COARSEST, FINEST = 2, 12  # a depth of d has 2**d cells on a side


@dataclass(frozen=True)
class Level:
    """The occupied cells of one depth in Z-order: the position of the point that stands for each, and their counts."""

    depth: int
    points: Int[np.ndarray, " cells"]
    counts: Int[np.ndarray, " cells"]


@dataclass(frozen=True)
class Square:
    """The square that the quadtree divides: all points lie in it."""

    left: float
    bottom: float
    side: float

    @classmethod
    def around(cls, places: Float[np.ndarray, "points 2"]) -> Square:
        """The smallest one with its corner at the lowest coordinates."""
        low = places.min(axis=0)
        side = float((places.max(axis=0) - low).max())
        return cls(float(low[0]), float(low[1]), side or 1.0)


def z_order_keys(places: Float[np.ndarray, "points 2"], square: Square) -> UInt[np.ndarray, " points"]:
    """Return the position of each point along the Z-order curve (Morton 1966), 16 bits a side: uint32."""
    unit = (np.asarray(places, dtype=float) - (square.left, square.bottom)) / square.side
    bits = np.clip(unit * 2**16, 0, 2**16 - 1).astype(np.uint32)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        bits = (bits | (bits << np.uint32(shift))) & np.uint32(mask)
    return bits[:, 0] | (bits[:, 1] << np.uint32(1))


def levels(places: Float[np.ndarray, "points 2"], square: Square) -> list[Level]:
    """Return the levels from the coarsest down to where a cell holds two points on average.

    In a cell of the finest level the point nearest to the mean of its points stands for them; above it, the one that
    stands for the fullest of the cells it is made of. So zooming in keeps every representative that is shown.
    """
    keys = z_order_keys(places, square)
    order = np.argsort(keys, kind="stable")
    keys, sorted_places = keys[order], np.asarray(places, dtype=float)[order]
    depth = COARSEST
    while depth < FINEST and 2 * len(_starts(keys >> np.uint32(2 * (16 - depth)))) < len(keys):
        depth += 1
    cells = keys >> np.uint32(2 * (16 - depth))
    starts = _starts(cells)
    counts = np.diff(np.append(starts, len(cells)))
    means = np.add.reduceat(sorted_places, starts) / counts[:, None]
    far = np.square(sorted_places - np.repeat(means, counts, axis=0)).sum(axis=1)
    found = [Level(depth, order[_least(far, starts)].astype(np.int32), counts.astype(np.int32))]
    cells = cells[starts]
    while depth > COARSEST:
        depth, cells, below = depth - 1, cells >> np.uint32(2), found[-1]
        starts = _starts(cells)
        points, counts = below.points[_least(-below.counts, starts)], np.add.reduceat(below.counts, starts)
        found.append(Level(depth, points, counts.astype(np.int32)))
        cells = cells[starts]
    return found[::-1]


def _starts(cells: np.ndarray) -> np.ndarray:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))


def _least(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The position of the least value of each run."""
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    return np.lexsort((values, run))[starts]
