"""Whether a claim of a paper holds in our numbers: yes, no, or not decided, by 95 per cent intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from scipy import stats

from nearfar.papers.paper import Claim, Table, cells_of

Values = Mapping[tuple[str, str], Sequence[float]]
"""By row and column: the number of each seed."""


EQUAL = 0.01  # share up to which counts and memory of single runs are equal
ORDER = ("no", "not decided", "yes")


class Judgement(NamedTuple):
    """Whether a claim holds, and the numbers that say so."""

    holds: Literal["yes", "no", "not decided"]
    words: str


def judge(claim: Claim, table: Table, columns: Sequence[str], values: Values) -> Judgement:
    """Compare the cells that a claim names; columns: those of the scale that the values come from.

    The interval is Welch's for the difference of two means. Numbers of a single run, but for measurements of memory and
    of what is counted, decide nothing.
    """
    stands = {} if table.small is None else {one.like: one for one in table.small.columns.values()}
    wanted = cells_of(claim, columns)
    cells = [(row, stands[where].name if where not in columns and where in stands else where) for row, where in wanted]
    column = cells[0][1]
    if column is None or column not in columns:
        return Judgement("not decided", "its data is not here")
    judgement = _judge(claim, table, values, cells, column)
    if column == wanted[0][1]:
        return judgement
    return Judgement(judgement.holds, f"on {stands[wanted[0][1]].title}: {judgement.words}")


def _judge(
    claim: Claim, table: Table, values: Values, cells: Sequence[tuple[str, str | None]], column: str
) -> Judgement:
    if claim.best is not None:
        others = [row for row, where in values if where == column and row != claim.best]
        found = [(_better(table, values, (claim.best, column), (row, column)), row) for row in others]
        if not found:
            return Judgement("not decided", "nothing to compare with was run")
        worst = min(found, key=lambda one: (ORDER.index(one[0].holds), _gap(values, one[1], str(claim.best), column)))
        return Judgement(worst[0].holds, f"against {table.rows[worst[1]].title}: {worst[0].words}")
    first, second = ((row, where or column) for row, where in cells)
    if claim.within is not None:
        return _better(table, values, first, second, claim.within[2], both=True)
    return _better(table, values, first, second, claim.not_worse and claim.not_worse[2])


def _gap(values: Values, first: str, second: str, column: str) -> float:
    a, b = values.get((first, column)), values.get((second, column))
    return abs(statistics.mean(a) - statistics.mean(b)) if a and b else math.inf


def _better(
    table: Table,
    values: Values,
    first: tuple[str, str],
    second: tuple[str, str],
    margin: float | None = None,
    both: bool = False,
) -> Judgement:
    """Judge that the first cell is better than the second, or by at most the margin worse, or better, where `both`."""
    a, b = values.get(first, ()), values.get(second, ())
    if not a or not b:
        return Judgement("not decided", "not run here")
    difference = statistics.mean(a) - statistics.mean(b)
    sign = 1 if table.better == "higher" else -1
    columns = [size.columns.get(first[1]) for size in (table.small, table.full) if size is not None]
    unit = next((column.unit for column in columns if column and column.unit), table.unit)
    told = f"difference {difference:+.3g} {unit}".rstrip()
    if len(a) == 1 and len(b) == 1 and table.measure in ("variables", "loss-memory", "step-memory"):
        if margin is None and abs(difference) <= EQUAL * max(map(abs, (*a, *b))):
            return Judgement("no", f"{told}: equal within {100 * EQUAL:g} %")
        low = high = difference
    elif min(len(a), len(b)) < 2:
        return Judgement("not decided", f"{told}, of one seed")
    elif statistics.pvariance(a) + statistics.pvariance(b) == 0:
        low = high = difference
    else:
        interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
        low, high = float(interval.low), float(interval.high)
        told += f", 95 % interval {low:+.3g} to {high:+.3g}"
    least, most = (low, high) if sign > 0 else (-high, -low)  # by which the first is better
    if margin is None:
        yes, no = least > 0, most < 0
    else:
        yes, no = least >= -margin and not (both and most > margin), most < -margin or (both and least > margin)
    if yes or no:
        return Judgement("yes" if yes else "no", told)
    return Judgement("not decided", f"{told}; {_what_would_decide(a, b, sign * difference, margin, both)}")


def _what_would_decide(
    a: Sequence[float], b: Sequence[float], advantage: float, margin: float | None, both: bool
) -> str:
    """Say how many seeds would decide, if the first stays as much better as it is."""
    distance = abs((-abs(advantage) if both else advantage) + (margin or 0.0))
    deviation = math.sqrt(statistics.variance(a) + statistics.variance(b))
    seeds = math.inf if distance == 0 else math.ceil((1.96 * deviation / distance) ** 2) + 2
    return f"about {seeds} seeds would decide it" if seeds <= 100 else "no affordable number of seeds would decide it"
