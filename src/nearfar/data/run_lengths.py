"""Masks as COCO stores them: runs of background and object in turn, down the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw


def run_lengths(counts: Any) -> list[int] | None:
    """Return the runs from COCO's list or compressed text; None for what is neither."""
    if isinstance(counts, str):
        counts = _decompressed(counts)
    fine = isinstance(counts, list) and all(type(run) is int and run >= 0 for run in counts)
    return counts if fine else None


def _decompressed(text: str) -> list[int] | None:
    """COCO's text: 5 bits in a letter, the lowest first; from the fourth run on the change to the last but one."""
    runs: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 60:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (1 << shift) if bits & 16 else 0
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return runs if shift == 0 else None


def to_mask(segmentation: Any, width: int, height: int) -> UInt8[np.ndarray, "height width"]:
    """Draw a checked segmentation: 1 on the object."""
    if isinstance(segmentation, dict):
        runs = segmentation["counts"]
        return np.repeat(np.arange(len(runs), dtype=np.uint8) % 2, runs).reshape(width, height).T
    drawn = Image.new("L", (width, height))
    for polygon in segmentation:
        ImageDraw.Draw(drawn).polygon(polygon, fill=1)
    return np.asarray(drawn)


def to_runs(mask: np.ndarray) -> dict[str, Any]:
    """Return the runs of a mask [height, width]."""
    flat = np.asarray(mask, np.uint8).T.flatten()
    ends = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff([0, *ends, len(flat)]).tolist()
    return {"size": [int(side) for side in mask.shape], "counts": [0, *runs] if flat[:1].any() else runs}
