"""Curves over epochs as SVG that takes its colours from the page it stands in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nearfar.pages.template import section

WIDTH, HEIGHT = 330, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 24
MOST_POINTS = 240
STYLES = ("first", "second")


@dataclass(frozen=True)
class Curve:
    """One line of a chart: epochs and values, in order; values that are not finite are left out."""

    name: str
    epochs: Sequence[float]
    values: Sequence[float]

    def points(self) -> list[tuple[float, float]]:
        """Return at most 240 points: means of equally many neighbours where there are more."""
        pairs = [(x, y) for x, y in zip(self.epochs, self.values, strict=True) if math.isfinite(y)]
        block = -(-len(pairs) // MOST_POINTS) or 1
        blocks = [pairs[i : i + block] for i in range(0, len(pairs), block)]
        return [(sum(x for x, _ in some) / len(some), sum(y for _, y in some) / len(some)) for some in blocks]


def chart(title: str, note: str, curves: Sequence[Curve]) -> str:
    """Return a <figure> of one or two curves with axes, or an empty string where no curve has a point.

    title, note: plain text, shown above. Each point tells its numbers on hover.
    """
    lines = [(curve.name, curve.points(), style) for curve, style in zip(curves, STYLES, strict=False)]
    lines = [line for line in lines if line[1]]
    if not lines:
        return ""
    xs, ys = zip(*[point for _, points, _ in lines for point in points], strict=True)
    x_ticks, y_ticks = ticks(min(0.0, *xs), max(xs)), ticks(min(ys), max(ys))
    left, right, low, high = min(0.0, *xs), max(xs), min(y_ticks[0], *ys), max(y_ticks[-1], *ys)

    def across(x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * ((x - left) / (right - left) if right > left else 0.5), 1)

    def up(y: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((y - low) / (high - low) if high > low else 0.5), 1)

    return section(
        "chart",
        title=title,
        note=note,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        above=[(up(tick), number(tick)) for tick in y_ticks],
        below=[(across(tick), number(tick)) for tick in x_ticks if tick <= right],
        lines=[
            {
                "name": name,
                "style": style,
                "first": number(points[0][1]),
                "last": number(points[-1][1]),
                "points": [
                    {"x": across(x), "y": up(y), "said": f"{number(y)} at epoch {number(x)}"} for x, y in points
                ],
            }
            for name, points, style in lines
        ],
    )


def ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers that lie around or in low..high."""
    span = high - low
    if span <= 1e-12 * max(abs(low), abs(high)):
        return [low]
    rough = span / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """Return a short decimal form with at most four digits that count."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}".replace("-", "\u2212")
