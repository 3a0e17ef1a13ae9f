"""The prediction of experiment 6: deficits with few negatives beside their curve, and verdicts.

docs/papers/experiments/6-prediction.md derives the curve and says beforehand what would refute it;
the verdicts here are those of its table. Nothing is fitted.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import matplotlib
import matplotlib.axes
import matplotlib.figure
import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from nearfar_papers.claims import LEVEL, Judgement, Values
from nearfar_papers.paper import Law, Table

NORMALISING = ("simclr", "dcl", "sogclr", "saclr")
HALF = 0.71  # a correlation of ranks that explains half of their variance
WITHIN = 2.0  # points in which the losses may differ
SAMPLES = 10_000
MARKERS = "osD^v"
PANEL = 5.2, 4.0  # inches

Array = Float[np.ndarray, "..."]


def lost(x: Array) -> Array:
    """Return the share of the repulsion that misses the images that matter: 1 / (1 + x)."""
    return 1 / (1 + x)


@dataclass(frozen=True)
class Curve:
    """The deficits of one loss at one temperature, in the table's unit.

    negatives: images that a row is compared with, ascending from 1; whole: all of them. effective:
    the effective number of negatives at this temperature, among all of them.
    """

    method: str
    title: str
    temperature: float
    effective: float
    whole: int
    negatives: Int[np.ndarray, " sizes"]
    deficits: Float[np.ndarray, " sizes"]

    @property
    def x(self) -> Float[np.ndarray, " sizes"]:
        """The expected effective number of negatives in a group."""
        return self.negatives * self.effective / self.whole

    @property
    def share(self) -> Float[np.ndarray, " sizes"]:
        """The predicted deficit as a share of that of one negative: from 1 to 0 for all of N."""
        rest = lost(self.x) - lost(np.array(self.effective))
        return np.asarray(rest / rest[0])

    @property
    def doubling(self) -> Float[np.ndarray, " sizes"]:
        """The same share by the rule that each doubling of the negatives gains the same."""
        return np.asarray(1 - np.log(self.negatives) / np.log(self.whole))

    def residuals(self, share: Float[np.ndarray, " sizes"]) -> Float[np.ndarray, " inner"]:
        """Deficits above the deficit of one negative times a share, without that of one itself."""
        return np.asarray(self.deficits - self.deficits[0] * share)[1:]


def curves(table: Table, values: Values) -> list[Curve]:
    """Return the curves of a table whose effective numbers are known, each with the sizes of groups
    that all of them have.
    """
    by_curve: dict[tuple[str, float], dict[int, Mapping[str, float]]] = {}
    titles = {}
    for cell in table.cells():
        settings = cell.settings
        negatives = (settings.get("group_size") or settings["batch_size"]) - 1
        place = settings["method"], settings["pair_temperature"]
        by_curve.setdefault(place, {})[negatives] = values.get((cell.row, cell.column), {})
        titles[settings["method"]] = table.rows[cell.row].title.partition(",")[0]
    made = []
    for (method, temperature), by_size in by_curve.items():
        *few, whole = sorted(by_size)
        effective = table.effective_numbers.get(temperature)
        deficits = {m: _mean(_deficits(by_size[whole], by_size[m]).values()) for m in few}
        sizes = np.array([m for m in few if deficits[m] is not None], int)
        if effective is not None and len(sizes) and sizes[0] == 1:
            deficit = np.array([deficits[int(m)] for m in sizes], float)
            title = titles[method]
            made.append(Curve(method, title, temperature, effective, whole, sizes, deficit))
    common = set.intersection(*(set(map(int, curve.negatives)) for curve in made)) if made else ()
    kept = [np.isin(curve.negatives, list(common)) for curve in made]
    return [
        replace(curve, negatives=curve.negatives[some], deficits=curve.deficits[some])
        for curve, some in zip(made, kept, strict=True)
    ]


def _deficits(whole: Mapping[str, float], few: Mapping[str, float]) -> dict[str, float]:
    return {seed: whole[seed] - few[seed] for seed in whole if seed in few}


def _mean(numbers: Any) -> float | None:
    listed = list(numbers)
    return statistics.fmean(listed) if listed else None


class Estimate(NamedTuple):
    """A number and its bootstrap samples."""

    number: float
    samples: Float[np.ndarray, " samples"]

    def interval(self) -> tuple[float, float]:
        """Return the 95 per cent interval."""
        low, high = np.quantile(self.samples, [LEVEL / 2, 1 - LEVEL / 2])
        return float(low), float(high)

    def judged(self, words: str, bound: float = 0.0) -> Judgement:
        """Judge that the number is above a bound."""
        low, high = self.interval()
        holds: Literal["yes", "no", "not decided"] = (
            "yes" if low > bound else "no" if high < bound else "not decided"
        )
        below = min((self.samples <= bound).sum(), (self.samples >= bound).sum())
        p = min(1.0, 2 * (1 + float(below)) / (1 + len(self.samples)))
        words += f", 95 % interval {low:+.3g} to {high:+.3g}"
        return Judgement(holds, words, self.number, (low, high), p)


def judge_law(law: Law, table: Table, values: Values) -> Judgement:
    """Judge a claim of the prediction, by its name in the table of claims.

    order: x orders the deficits of the losses that normalise better than m. strength: x orders them
    well. shape: the curve is better than equal gains of each doubling. spread: the losses share it.
    departure: SigCLR does not follow it.
    """
    every = curves(table, values)
    four = [curve for curve in every if curve.method in NORMALISING]
    others = [curve for curve in every if curve.method not in NORMALISING]
    if len(four) < 2 or (law == "departure" and len(others) < 2) or len(four[0].negatives) < 2:
        return Judgement("not run", "not run here")
    return LAWS[law](four, others)


def _order(four: Sequence[Curve], others: Sequence[Curve]) -> Judgement:
    by_x, by_m = _correlations(four)
    words = f"correlation with x {by_x.number:+.2f} and with m {by_m.number:+.2f}"
    better = _stronger(four)
    return better.judged(f"{words}: stronger by {better.number:+.3f}")


def _strength(four: Sequence[Curve], others: Sequence[Curve]) -> Judgement:
    by_x, _ = _correlations(four)
    against = Estimate(-by_x.number, -by_x.samples)
    judgement = against.judged("", HALF)
    low, high = by_x.interval()
    words = f"correlation with x {by_x.number:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
    return judgement._replace(words=words, difference=by_x.number, interval=(low, high))


def _shape(four: Sequence[Curve], others: Sequence[Curve]) -> Judgement:
    squares = np.array(
        [
            [np.square(curve.residuals(share)).mean() for share in (curve.doubling, curve.share)]
            for curve in four
        ]
    )
    of_samples = np.sqrt(squares[_drawn(len(four))].mean(1))
    rule, ours = np.sqrt(squares.mean(0)).tolist()
    words = f"residuals of {rule:.2f} by the rule and {ours:.2f} by the curve: {rule - ours:+.2f}"
    return Estimate(rule - ours, of_samples[:, 0] - of_samples[:, 1]).judged(words)


def _spread(four: Sequence[Curve], others: Sequence[Curve]) -> Judgement:
    first = {(curve.method, curve.temperature): curve.deficits[0] for curve in four}
    gaps = [
        deficit - first["saclr", temperature]
        for (method, temperature), deficit in first.items()
        if method == "dcl" and ("saclr", temperature) in first
    ]
    if len(gaps) < 2:
        return Judgement("not run", "not run here")
    mean, error = statistics.fmean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5
    half = float(stats.t.ppf(1 - LEVEL / 2, len(gaps) - 1)) * error
    low, high = mean - half, mean + half
    holds: Literal["yes", "no", "not decided"] = (
        "yes"
        if low > -WITHIN and high < WITHIN
        else "no"
        if low > WITHIN or high < -WITHIN
        else "not decided"
    )
    p = float(2 * stats.t.sf(abs(WITHIN - abs(mean)) / error, len(gaps) - 1)) if error else 0.0
    words = f"DCL loses {mean:+.3g} more than SACLR, 95 % interval {low:+.3g} to {high:+.3g}"
    return Judgement(holds, words, mean, (low, high), min(1.0, p))


def _departure(four: Sequence[Curve], others: Sequence[Curve]) -> Judgement:
    ours, theirs = _stronger(four), _stronger(others, seed=1)
    by_x, by_m = _correlations(others)
    apart = Estimate(ours.number - theirs.number, ours.samples - theirs.samples)
    words = (
        f"SigCLR's correlation with x {by_x.number:+.2f} and with m {by_m.number:+.2f}; x is "
        f"stronger by {ours.number:+.3f} for the four and {theirs.number:+.3f} for SigCLR, apart "
        f"by {apart.number:+.3f}"
    )
    return apart.judged(words)


LAWS = {
    "order": _order,
    "strength": _strength,
    "shape": _shape,
    "spread": _spread,
    "departure": _departure,
}


def _drawn(count: int, seed: int = 0) -> Int[np.ndarray, "samples curves"]:
    """Bootstrap samples of so many curves."""
    return np.random.default_rng(seed).integers(count, size=(SAMPLES, count))


def _correlations(listed: Sequence[Curve], seed: int = 0) -> tuple[Estimate, Estimate]:
    """Spearman's correlations of the deficits of curves with x and with m."""
    deficits, x, m = (
        np.stack([np.asarray(getattr(curve, name), float) for curve in listed])
        for name in ("deficits", "x", "negatives")
    )
    whole, drawn = np.arange(len(listed))[None], _drawn(len(listed), seed)
    by_x, by_m = (
        Estimate(float(_spearman(deficits, other, whole)[0]), _spearman(deficits, other, drawn))
        for other in (x, m)
    )
    return by_x, by_m


def _stronger(listed: Sequence[Curve], seed: int = 0) -> Estimate:
    """By how much the correlation with x is stronger than that with m."""
    by_x, by_m = _correlations(listed, seed)
    return Estimate(
        abs(by_x.number) - abs(by_m.number), np.abs(by_x.samples) - np.abs(by_m.samples)
    )


def _spearman(
    first: Float[np.ndarray, "curves sizes"],
    second: Float[np.ndarray, "curves sizes"],
    picks: Int[np.ndarray, "samples picked"],
) -> Float[np.ndarray, " samples"]:
    """Spearman's correlation over the points of the picked curves, of each sample."""
    ranks = [
        stats.rankdata(each[picks].reshape(len(picks), -1), axis=1) for each in (first, second)
    ]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    return np.asarray((a * b).sum(1) / np.sqrt(np.square(a).sum(1) * np.square(b).sum(1)))


def described(table: Table, values: Values) -> dict[str, Any]:
    """Return the lines of a table of deficits and predictions, and the noise of a deficit."""
    listed = curves(table, values)
    if not listed:
        return {}
    header = ["loss", "t", "ESS", *(f"m = {m}" for m in listed[0].negatives)]
    lines = [header, ["---"] * len(header)]
    for curve in listed:
        predicted = curve.deficits[0] * curve.share
        cells = [f"{curve.deficits[0]:.2f}"]
        pairs = zip(curve.deficits[1:], predicted[1:], strict=True)
        cells += [f"{deficit:.2f} ({ours:.2f})" for deficit, ours in pairs]
        lines.append([curve.title, f"{curve.temperature:g}", f"{curve.effective:.1f}", *cells])
    four = [curve for curve in listed if curve.method in NORMALISING]
    residuals = {
        name: f"{_size([curve.residuals(share(curve)) for curve in four]):.2f}"
        for name, share in (
            ("curve", lambda curve: curve.share),
            ("rule", lambda curve: curve.doubling),
            ("nothing", lambda curve: 0 * curve.share),
        )
    }
    return {"lines": lines, "residuals": residuals, **_noise(table, values)}


def _size(residuals: Sequence[Array]) -> float:
    """The root mean square of residuals."""
    return float(np.sqrt(np.square(np.concatenate(residuals)).mean()))


def _noise(table: Table, values: Values) -> dict[str, Any]:
    """Return the standard deviation of a deficit of one seed, over the cells with several."""
    wholes = {
        (cell.settings["method"], cell.column): values.get((cell.row, cell.column), {})
        for cell in table.cells()
        if not cell.settings.get("group_size")
    }
    squares, freedom = 0.0, 0
    for cell in table.cells():
        if cell.settings.get("group_size"):
            whole = wholes[cell.settings["method"], cell.column]
            own = list(_deficits(whole, values.get((cell.row, cell.column), {})).values())
            if len(own) > 1:
                squares += statistics.variance(own) * (len(own) - 1)
                freedom += len(own) - 1
    return {"noise": f"{(squares / freedom) ** 0.5:.2f}", "cells": freedom} if freedom else {}


def draw(table: Table, values: Values) -> matplotlib.figure.Figure:
    """Deficits over m and over x, those of SigCLR apart, and the shares with their curve."""
    listed = curves(table, values)
    figure = matplotlib.figure.Figure((2 * PANEL[0], 2 * PANEL[1]), dpi=120, layout="constrained")
    panels = list(figure.subplots(2, 2).flat)
    four = [curve for curve in listed if curve.method in NORMALISING]
    others = [curve for curve in listed if curve.method not in NORMALISING]
    temperatures = sorted({curve.temperature for curve in listed})
    methods = list(dict.fromkeys(curve.method for curve in listed))
    colours = matplotlib.colormaps["plasma"](np.linspace(0, 0.88, len(temperatures)))
    style = partial(_style, temperatures, methods, colours)
    for axes, some, by in (
        (panels[0], four, "negatives"),
        (panels[1], four, "x"),
        (panels[3], others, "x"),
    ):
        for curve in some:
            axes.plot(getattr(curve, by), curve.deficits, **style(curve))
        axes.set(xscale="log", ylabel=f"deficit in {table.metric}, {table.unit}")
        axes.axhline(0, color="lightgray", zorder=0)
    panels[0].set(title="deficits over the negatives", xlabel="m, images")
    panels[1].set(title="the same over x", xlabel="x = m ESS / N")
    panels[3].set(title=f"{' and '.join({c.title for c in others})} over x", xlabel="x = m ESS / N")
    _draw_shares(panels[2], four, style)
    for method in methods:
        title = next(curve.title for curve in listed if curve.method == method)
        panels[0].plot([], [], MARKERS[methods.index(method) % 5], color="gray", label=title)
    for temperature, colour in zip(temperatures, colours, strict=True):
        panels[1].plot([], [], color=colour, label=f"t {temperature:g}")
    for axes in panels[:3]:
        axes.legend(fontsize=7)
    return figure


def _style(
    temperatures: Sequence[float], methods: Sequence[str], colours: Array, curve: Curve
) -> dict[str, Any]:
    colour = colours[temperatures.index(curve.temperature)]
    marker = MARKERS[methods.index(curve.method) % len(MARKERS)]
    return {"color": colour, "marker": marker, "linewidth": 0.6, "markersize": 4}


def _draw_shares(axes: matplotlib.axes.Axes, four: Sequence[Curve], style: Any) -> None:
    """The share that each deficit stands for, where that of one negative is as predicted."""
    for curve in four:
        first, last = lost(curve.x[0]), lost(np.array(curve.effective))
        shares = last + curve.deficits / curve.deficits[0] * (first - last)
        axes.plot(curve.x[1:], shares[1:], **style(curve) | {"linestyle": "none"})
    every = np.concatenate([curve.x for curve in four])
    x = np.geomspace(every.min(), every.max(), 100)
    axes.plot(x, lost(x), color="black", label="predicted: 1 / (1 + x)")
    axes.set(
        title="share lost, m > 1; that of m = 1 as predicted",
        xscale="log",
        xlabel="x = m ESS / N",
        ylabel="share lost",
        ylim=(-0.5, 1.5),
    )
