"""Curves over epochs as SVG that takes its colours from the page it stands in."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

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
        return LEFT + (WIDTH - LEFT - RIGHT) * ((x - left) / (right - left) if right > left else 0.5)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((y - low) / (high - low) if high > low else 0.5)

    parts = []
    for tick in y_ticks:
        y = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    parts += [
        f'<text x="{across(t):.1f}" y="{HEIGHT - 7}" text-anchor="middle">{number(t)}</text>'
        for t in x_ticks
        if t <= right
    ]
    for name, points, style in lines:
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts.append(f'<polyline class="line {style}" style="fill:none" points="{path}"/>')
        for i, (x, y) in enumerate(points):
            place = f'cx="{across(x):.1f}" cy="{up(y):.1f}"'
            if len(points) <= 40 or i == len(points) - 1:
                parts.append(f'<circle class="dot {style}" {place} r="2.4"/>')
            said = html.escape(f"{name}: {number(y)} at epoch {number(x)}")
            parts.append(f'<circle class="hit" {place} r="4"><title>{said}</title></circle>')
    summary = "; ".join(f"{name} from {number(p[0][1])} to {number(p[-1][1])}" for name, p, _ in lines)
    keys = ""
    if len(lines) > 1:
        keys = " ".join(f'<span class="key {style}">{html.escape(name)}</span>' for name, _, style in lines) + ". "
    return (
        f"<figure><figcaption><h3>{html.escape(title)}</h3><p>{keys}{html.escape(note)}</p></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)} over epochs: '
        f'{html.escape(summary)}">{"".join(parts)}</svg></figure>'
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
