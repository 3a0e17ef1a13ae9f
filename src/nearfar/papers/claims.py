"""Whether a claim of a paper holds in our numbers: yes, no, or not decided, by 95 per cent intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from nearfar.papers.paper import Claim, Size, Table, cells_of

Place = tuple[str, str]
"""The row and column of a cell."""
Values = Mapping[Place, Mapping[str, float]]
"""By row and column: the number of each seed."""

EQUAL = 0.01  # share up to which counts and memory of single runs are equal
MOST_SEEDS = 100
ORDER = ("no", "not decided", "yes")


class Judgement(NamedTuple):
    """Whether a claim holds, and the numbers that say so."""

    holds: Literal["yes", "no", "not decided"]
    words: str


class Difference(NamedTuple):
    """How much higher one cell is than another, and half of the 95 per cent interval.

    variance: of one number about its cell and seed. cells: that it was estimated from.
    """

    mean: float
    half: float
    variance: float
    cells: int


def judge(claim: Claim, table: Table, size: Size, values: Values) -> Judgement:
    """Compare the cells that a claim names, at a scale.

    Numbers of a single run, but for measurements of memory and of what is counted, decide nothing.
    """
    columns = table.at(size).columns
    stands = {one.like: one for one in columns.values()}
    wanted = cells_of(claim, columns)
    cells = [(row, stands[where].name if where not in columns and where in stands else where) for row, where in wanted]
    column = cells[0][1]
    if column is None or column not in columns:
        return Judgement("not decided", "not run at this scale")
    first, second = ((row, where or column) for row, where in (cells[0], cells[-1]))
    if claim.best is not None:
        judgement = _best(table, size, values, first)
    elif claim.within is not None:
        judgement = _better(table, size, values, first, second, claim.within[2], both=True)
    else:
        judgement = _better(table, size, values, first, second, claim.not_worse and claim.not_worse[2])
    if column == wanted[0][1]:
        return judgement
    return Judgement(judgement.holds, f"on {stands[wanted[0][1]].title}: {judgement.words}")


def compare(values: Values, first: Place, second: Place) -> Difference:
    """Return the difference of two cells by least squares of an effect of each cell and one of each seed.

    Randomised blocks: what a seed does to all cells alike drops out, and all cells estimate one variance. values: of
    cells that measure the same; the two must have two seeds in common.
    """
    cells, seeds = list(values), sorted({seed for numbers in values.values() for seed in numbers})
    points = [(cell, seed, number) for cell, numbers in values.items() for seed, number in numbers.items()]
    design = np.zeros((len(points), len(cells) + len(seeds)))
    for line, (cell, seed, _) in zip(design, points, strict=True):
        line[[cells.index(cell), len(cells) + seeds.index(seed)]] = 1
    numbers = np.array([number for *_, number in points])
    effects, _, rank, _ = np.linalg.lstsq(design, numbers)
    freedom = len(points) - int(rank)
    variance = float(np.square(numbers - design @ effects).sum() / freedom)
    contrast = np.zeros(len(effects))
    contrast[cells.index(first)], contrast[cells.index(second)] = 1, -1
    error = math.sqrt(variance * contrast @ np.linalg.pinv(design.T @ design) @ contrast)
    return Difference(float(contrast @ effects), float(stats.t.ppf(0.975, freedom)) * error, variance, len(cells))


def _best(table: Table, size: Size, values: Values, best: Place) -> Judgement:
    """Judge that a cell is better than every other of its column, by the one that speaks most against it."""
    others = [place for place in values if place[1] == best[1] and place != best]
    found = [(_better(table, size, values, best, other), other) for other in others]
    if not found:
        return Judgement("not decided", "nothing to compare with was run")
    sign = 1 if table.better == "higher" else -1
    worst, other = min(found, key=lambda one: (ORDER.index(one[0].holds), sign * _gap(values, best, one[1])))
    return Judgement(worst.holds, f"against {table.rows[other[0]].title}: {worst.words}")


def _gap(values: Values, first: Place, second: Place) -> float:
    a, b = values.get(first), values.get(second)
    return _mean(a) - _mean(b) if a and b else -math.inf


def _mean(numbers: Mapping[str, float]) -> float:
    return statistics.mean(numbers.values())


def _better(
    table: Table,
    size: Size,
    values: Values,
    first: Place,
    second: Place,
    margin: float | None = None,
    both: bool = False,
) -> Judgement:
    """Judge that the first cell is better than the second, or by at most the margin worse, or better, where `both`."""
    a, b = values.get(first, {}), values.get(second, {})
    if not a or not b:
        return Judgement("not decided", "not run here")
    column = table.at(size).columns[first[1]]
    unit = table.unit if column.unit is None else column.unit
    single = len(a) == len(b) == 1 and table.measure in ("variables", "loss-memory", "step-memory")
    decides = len(a.keys() & b.keys()) > 1
    if decides:
        found = compare(_alike(table, size, values, first, second), first, second)
    else:
        found = Difference(_mean(a) - _mean(b), 0.0, 0.0, 2)
    told = f"difference {found.mean:+.3g} {unit}".rstrip()
    if decides:
        told += f", 95 % interval {found.mean - found.half:+.3g} to {found.mean + found.half:+.3g}"
    elif not single:
        return Judgement("not decided", f"{told}, of one seed")
    elif margin is None and abs(found.mean) <= EQUAL * max(_mean(a), _mean(b)):
        return Judgement("no", f"{told}: equal within {100 * EQUAL:g} %")
    advantage = found.mean if table.better == "higher" else -found.mean
    least, most = advantage - found.half, advantage + found.half
    if margin is None:
        yes, no = least > 0, most < 0
    else:
        yes, no = least >= -margin and not (both and most > margin), most < -margin or (both and least > margin)
    if yes or no:
        return Judgement("yes" if yes else "no", told)
    distance = abs((-abs(advantage) if both else advantage) + (margin or 0.0))
    return Judgement("not decided", f"{told}; {_what_would_decide(found, distance)}")


def _alike(table: Table, size: Size, values: Values, first: Place, second: Place) -> Values:
    """The cells in which the same is read as in the two, on the same data."""
    kinds = {(cell.row, cell.column): (cell.settings.get("data"), cell.reading) for cell in table.cells(size)}
    wanted = {kinds[first], kinds[second]}
    return {place: numbers for place, numbers in values.items() if numbers and kinds[place] in wanted}


def _what_would_decide(found: Difference, distance: float) -> str:
    """Say how many seeds would decide, if a difference stays as far from what it is compared with."""
    for seeds in range(2, MOST_SEEDS + 1):
        freedom = (found.cells - 1) * (seeds - 1)
        if stats.t.ppf(0.975, freedom) * math.sqrt(2 * found.variance / seeds) < distance:
            return f"about {seeds} seeds would decide it"
    return "no affordable number of seeds would decide it"
