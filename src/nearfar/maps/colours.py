"""Colours of classes: far apart from each other, and visible on a light and on a dark ground."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

# Chosen by farthest-point search in OKLab within a band of lightness and chroma; the first ones are farthest apart.
PALETTE = (
    *("#3b83d6", "#ecaf07", "#9d3629", "#147c11", "#fd6fa2", "#15c8ce", "#873cb2", "#6bcb51", "#967216", "#f47205"),
    *("#d9464c", "#cfb0c0", "#bd6be0", "#1355c2", "#3e656a", "#7da3ff", "#a3a16b", "#916989", "#54a105", "#439183"),
)
GREY = "#8a8f98"


@dataclass(frozen=True)
class Coloured:
    """A class that occurs on a map."""

    name: str
    colour: str


def coloured(
    labels: Int64[np.ndarray, " images"] | None, class_names: Sequence[str] | None
) -> tuple[list[Coloured], Int64[np.ndarray, " images"]]:
    """Return the classes that occur, in the order of their numbers, and for each image its place among them.

    Colours repeat after 20 classes. Label -1 (none) is grey and comes last. Without labels there are no classes.
    """
    if labels is None:
        return [], np.zeros(0, dtype=np.int64)
    present, of_point = np.unique(np.asarray(labels), return_inverse=True)
    missing = len(present) > 0 and present[0] == -1
    if missing:
        present, of_point = present[1:], np.where(of_point == 0, len(present) - 1, of_point - 1)
    names = class_names or []
    classes = [
        Coloured(str(names[label]) if 0 <= label < len(names) else str(label), PALETTE[i % len(PALETTE)])
        for i, label in enumerate(present)
    ]
    return classes + [Coloured("no label", GREY)] * int(missing), of_point.astype(np.int64)
