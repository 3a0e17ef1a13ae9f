"""What a map can be coloured by: named arrays with one value for each image."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import ArrayLike

from nearfar.maps.colours import GREY, PALETTE, Coloured

KEPT = "kept"  # of this name: the share of an image's true neighbours that the map keeps, drawn as opacity
FEW = 20  # whole numbers with at most so many different values are classes
MOST_CLASSES = 500
NONE, OTHERS = "none", "all others"


@dataclass(frozen=True)
class Column:
    """A column as the page draws it.

    Classes: `values` are their numbers and `classes` their names and colours. A scale: `classes` is None, `values` are
    float32 with NaN where there is none, and colours run from `low` to `high`, the 1st and the 99th percentile.
    """

    name: str
    values: Shaped[np.ndarray, " images"]
    classes: list[Coloured] | None = None
    low: float = 0.0
    high: float = 1.0

    def description(self) -> dict[str, Any]:
        """All but the values, as the page reads it."""
        classes = None if self.classes is None else [asdict(one) for one in self.classes]
        return {"name": self.name, "classes": classes, "low": self.low, "high": self.high}


def described(columns: Mapping[str, ArrayLike] | None, count: int) -> list[Column]:
    """Return the columns as they are drawn, in their order.

    Text, booleans and whole numbers with at most 20 different values are classes (missing: None, "" or NaN), the most
    frequent first, at most 500 and the rest together; other numbers are a scale. Raises ValueError for a column that
    does not have one value for each of `count` images, or has values of another kind.
    """
    return [_described(name, np.asarray(values), count) for name, values in (columns or {}).items()]


def _described(name: str, values: np.ndarray, count: int) -> Column:
    if values.shape != (count,):
        raise ValueError(f"column '{name}' must have one value for each of the {count} images, not {values.shape}")
    if values.dtype.kind == "b":
        return _classes(name, np.where(values, "yes", "no"))
    if values.dtype.kind in "iu" and len(np.unique(values)) <= FEW:
        return _classes(name, values.astype(str))
    if values.dtype.kind in "iuf":
        return _scale(name, values.astype(np.float32))
    if values.dtype.kind in "OUS":
        return _classes(name, np.array(["" if one is None or one != one else str(one) for one in values.tolist()]))
    raise ValueError(f"column '{name}' must hold numbers or text, not {values.dtype}")


def _scale(name: str, values: np.ndarray) -> Column:
    values = np.where(np.isfinite(values), values, np.float32(np.nan))
    low, high = (0.0, 1.0) if np.isnan(values).all() else map(float, np.nanpercentile(values, (1, 99)))
    return Column(name, values, None, low, high if high > low else low + 1)


def _classes(name: str, text: np.ndarray) -> Column:
    found, codes, counts = np.unique(text, return_inverse=True, return_counts=True)
    missing = found == ""
    ranked = np.lexsort((np.arange(len(found)), -counts, missing))  # frequent first, missing last
    shown = [i for i in ranked if not missing[i]][:MOST_CLASSES]
    classes = [Coloured(str(found[i]), PALETTE[place % len(PALETTE)]) for place, i in enumerate(shown)]
    number = np.full(len(found), len(classes))
    number[shown] = np.arange(len(shown))
    if len(shown) < (~missing).sum():
        classes.append(Coloured(OTHERS, GREY))
    if missing.any():
        number[missing] = len(classes)
        classes.append(Coloured(NONE, GREY))
    return Column(name, number[codes].astype(np.uint16), classes)


def packed(values: np.ndarray) -> dict[str, str]:
    """Return numbers as the page reads them: their type, and little-endian bytes in base64."""
    values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return {"type": values.dtype.str[1:], "bytes": base64.b64encode(values.tobytes()).decode()}
