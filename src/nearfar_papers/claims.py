"""Verdicts on whether a claim of a paper holds in our numbers: yes, no, not decided, not run or not
here, by 95 per cent intervals.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from nearfar_papers.paper import Claim, Table

Place = tuple[str, str]
"""The row and column of a cell."""
Values = Mapping[Place, Mapping[str, float]]
"""By row and column: the number of each seed."""
Right = Mapping[Place, Mapping[str, np.ndarray]]
"""By row and column and seed: for each test image whether it was classified correctly."""

EQUAL = 0.01  # share up to which counts and memory of single runs are equal
MOST_SEEDS = 100
LEVEL = 0.05
ORDER = ("no", "not decided", "yes")


class Judgement(NamedTuple):
    """Verdict on a claim, and the numbers that say so.

    difference, interval: of the two cells, in the table's unit. p: of the two-sided test that
    decides; below 0.05 the claim is decided. None without a test: counts and memory of single runs,
    numbers of one seed, and what was not run. "not here": nothing that nearfar has could judge it.
    met, missed: titles of the rivals of a claim to be best that ran and that did not.
    """

    holds: Literal["yes", "no", "not decided", "not run", "not here"]
    words: str
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    met: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Difference of one cell from another, its standard error and that error's degrees of
    freedom.

    variance: of one number about its cell and seed. cells: that it was estimated from.
    """

    mean: float
    error: float
    freedom: float
    variance: float
    cells: int

    def half(self, level: float = LEVEL) -> float:
        """Half of the interval that misses the truth in a share `level` of all cases."""
        return float(stats.t.ppf(1 - level / 2, self.freedom)) * self.error

    def p(self, distance: float) -> float:
        """Two-sided p of a distance between the mean and what it is compared with."""
        if self.error == 0:
            return 0.0 if distance else 1.0
        return float(2 * stats.t.sf(abs(distance) / self.error, self.freedom))


def judge(claim: Claim, table: Table, values: Values, right: Right | None = None) -> Judgement:
    """Compare the cells that a claim names.

    Numbers of a single run, but for measurements of memory and of what is counted, decide nothing.
    right: where both cells have it, the interval includes the error of the test images.
    """
    if lacking := lacks(claim, table):
        return Judgement("not here", f"needs {'; '.join(lacking)}")
    columns = table.columns
    stands = {column.like: column for column in columns.values()}
    wanted = claim.cells(columns)
    cells = [
        (row, stands[where].name if where not in columns and where in stands else where)
        for row, where in wanted
    ]
    column = cells[0][1]
    absent = [where or "" for _, where in cells if where not in columns]
    if column is None or absent:
        needs = _data_of(absent, table)
        return Judgement("not run", "not run at this scale" + (f"; needs {needs}" if needs else ""))
    first, second = ((row, where or column) for row, where in (cells[0], cells[-1]))
    empty = [row for row, where in cells if not values.get((row, where or column))]
    if empty:
        return Judgement("not run", f"not run here; needs {_runs_of(empty, table)}")
    kinds = {
        (cell.row, cell.column): (
            cell.settings.get("data"),
            cell.settings.get("limit"),
            cell.reading,
        )
        for cell in table.cells()
    }
    if table.ratio:
        values = {
            place: {seed: math.log(number) for seed, number in each.items()}
            for place, each in values.items()
        }
    pairs = _Pairs(table, values, right or {}, kinds)
    if claim.more is not None:
        judgement = pairs.more(*((row, where or column) for row, where in cells))
    elif claim.best is not None:
        judgement = pairs.best(first)
    elif claim.within is not None:
        judgement = pairs.better(first, second, claim.within[2], both=True)
    else:
        judgement = pairs.better(first, second, claim.not_worse and claim.not_worse[2])
    if column == wanted[0][1]:
        return judgement
    return judgement._replace(words=f"on {stands[wanted[0][1]].title}: {judgement.words}")


def lacks(claim: Claim, table: Table) -> list[str]:
    """Return what no run of ours can give a claim: rows that are numbers of the paper alone, and
    columns that nothing measures.
    """
    paper = table.paper_columns or table.columns
    lacking: dict[str, None] = {}
    for name, where in claim.cells(paper):
        row, column = table.rows[name], paper.get(where or "")
        if row.run is None:
            lacking[row.needs or f"runs of {row.title}"] = None
        if column is not None and (column.measure or table.measure) == "none":
            lacking[column.needs or f"a measure of {column.title}"] = None
    return list(lacking)


def _data_of(columns: Sequence[str], table: Table) -> str:
    """Name the data of columns of the paper, or what their table needs where they have none."""
    theirs = table.paper_columns or table.columns
    data = dict.fromkeys(theirs[name].data for name in columns if name in theirs)
    return ", ".join(filter(None, data)) or table.needs


def _runs_of(rows: Sequence[str], table: Table) -> str:
    """Name the data of rows that have their own, and the runs of the others."""
    named = [table.rows[row] for row in dict.fromkeys(rows)]
    own = [str((row.run or {}).get("data") or f"runs of '{row.title}'") for row in named]
    return ", ".join(dict.fromkeys(own))


def holm(p_values: Sequence[float]) -> list[bool]:
    """Say of each p whether it stays below 0.05 by Holm's correction for all of them (Holm
    1979).
    """
    kept = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] >= LEVEL / (len(p_values) - rank):
            break
        kept[place] = True
    return kept


def compare(values: Values, first: Place, second: Place) -> Difference:
    """Return the difference of two cells, which must have two seeds in common; see `contrast`."""
    return contrast(values, {first: 1, second: -1})


def contrast(values: Values, weights: Mapping[Place, int]) -> Difference:
    """Return a weighted sum of cells by least squares of an effect of each cell and one of each
    seed.

    Randomised blocks: what a seed does to all cells alike drops out, and all cells estimate one
    variance. Where their spreads differ (Bartlett's test of the residuals, 5 per cent) the weighted
    cells alone are compared, seed by seed. values: of cells that measure the same. weights: their
    sum is 0.
    """
    cells, seeds = list(values), sorted({seed for numbers in values.values() for seed in numbers})
    points = [
        (cell, seed, number) for cell, numbers in values.items() for seed, number in numbers.items()
    ]
    design = np.zeros((len(points), len(cells) + len(seeds)))
    for line, (cell, seed, _) in zip(design, points, strict=True):
        line[[cells.index(cell), len(cells) + seeds.index(seed)]] = 1
    numbers = np.array([number for *_, number in points])
    effects, _, rank, _ = np.linalg.lstsq(design, numbers)
    residuals = numbers - design @ effects
    several = [each for i in range(len(cells)) if len(each := residuals[design[:, i] == 1]) > 1]
    least = min((float(each.var()) for each in several), default=0.0)
    if (
        len(cells) > len(weights)
        and len(several) > 1
        and least > 0
        and stats.bartlett(*several).pvalue < LEVEL
    ):
        return contrast({place: values[place] for place in weights}, weights)
    freedom = len(points) - int(rank)
    variance = float(np.square(residuals).sum() / freedom)
    weight = np.zeros(len(effects))
    weight[[cells.index(cell) for cell in weights]] = list(weights.values())
    error = math.sqrt(variance * weight @ np.linalg.pinv(design.T @ design) @ weight)
    mean = round(float(weight @ effects), 9) + 0.0  # equal numbers have no sign
    return Difference(mean, error, freedom, variance * float(weight @ weight) / 2, len(cells))


def with_test_images(
    difference: Difference, first: Sequence[np.ndarray], second: Sequence[np.ndarray]
) -> Difference:
    """Add the error of the test images to a difference in per cent: of the mean over seeds, image
    by image.

    first, second: for each seed, whether each test image was classified correctly. The two errors
    are added as independent ones, with the degrees of freedom of Welch and Satterthwaite.
    """
    gain = 100 * (np.mean(np.stack(first), 0) - np.mean(np.stack(second), 0))
    of_images, images = float(gain.var(ddof=1)) / len(gain), len(gain) - 1
    squared = difference.error**2 + of_images
    if squared == 0:
        return difference
    freedom = squared**2 / (difference.error**4 / difference.freedom + of_images**2 / images)
    return replace(difference, error=math.sqrt(squared), freedom=freedom)


@dataclass(frozen=True)
class _Pairs:
    """The numbers of a table, compared two by two. kinds: the data and what is read, of each
    cell.
    """

    table: Table
    values: Values
    right: Right
    kinds: Mapping[Place, tuple[Any, Any, str]]

    def more(self, first: Place, second: Place, third: Place, fourth: Place) -> Judgement:
        """Judge that the first is better than the second by more than the third is better than the
        fourth.

        By one model where all four measure the same, else of two differences whose errors are
        independent (Welch).
        """
        pairs = (first, second), (third, fourth)
        shared = [
            sorted(self.values.get(a, {}).keys() & self.values.get(b, {}).keys()) for a, b in pairs
        ]
        if min(map(len, shared)) < 2:
            return Judgement("not run", "not run here")
        x, y = (self._difference(a, b, seeds) for (a, b), seeds in zip(pairs, shared, strict=True))
        if {self.kinds[place] for place in pairs[0]} == {self.kinds[place] for place in pairs[1]}:
            difference = self._interaction(pairs, shared)
        else:
            difference = _independent(x, y)
        mean = difference.mean
        words = (
            f"differences {x.mean:+.3g} and {y.mean:+.3g} {self.table.unit}".rstrip()
            + f", apart by {mean:+.3g}"
        )
        return _decided(difference, mean if self.table.better == "higher" else -mean, words)

    def best(self, best: Place) -> Judgement:
        """Judge that a cell is better than every other of its column, by the one that speaks most
        against it; rivals that the paper has and this table does not run are named.
        """
        others = [place for place in self.values if place[1] == best[1] and place != best]
        run = [other for other in others if self.values[other]]
        column = self.table.columns[best[1]]
        met = tuple(self.table.rows[other[0]].title for other in run)
        missed = tuple(
            row.title
            for row in self.table.rows.values()
            if row.name != best[0]
            and (row.name, best[1]) not in run
            and ((row.name, best[1]) in others or (column.like or column.name) in row.paper)
        )
        if not run or not self.values.get(best):
            return Judgement("not run", "not run here", met=met, missed=missed)
        judgements = {other: self.better(best, other, among=len(others)) for other in run}
        sign = 1 if self.table.better == "higher" else -1
        worst = min(
            run,
            key=lambda rival: (
                ORDER.index(judgements[rival].holds),
                sign * (judgements[rival].difference or 0.0),
            ),
        )
        judgement, p_values = (
            judgements[worst],
            [
                other_judgement.p
                for other_judgement in judgements.values()
                if other_judgement.p is not None
            ],
        )
        words = f"against {self.table.rows[worst[0]].title}: {judgement.words}"
        if judgement.holds == "yes" and p_values:  # against each of them
            judgement = judgement._replace(p=max(p_values))
        if judgement.holds != "no" and len(run) < len(others):
            missing = ", ".join(
                self.table.rows[other[0]].title for other in others if other not in run
            )
            return judgement._replace(
                holds="not run", words=f"{words}; not run here: {missing}", p=None, met=met
            )
        if missed:
            words += f"; met {', '.join(met)}; did not run: {', '.join(missed)}"
        return judgement._replace(words=words, met=met, missed=missed)

    def better(
        self,
        first: Place,
        second: Place,
        margin: float | None = None,
        both: bool = False,
        among: int = 1,
    ) -> Judgement:
        """Judge that the first cell is better than the second, or at most the margin worse, or
        better, where `both`.

        among: rows of which the second is the one that speaks against the first (Bonferroni).
        """
        a, b = self.values.get(first, {}), self.values.get(second, {})
        if not a or not b:
            return Judgement("not run", "not run here")
        column = self.table.columns[first[1]]
        unit = self.table.unit_of(column)
        shared = sorted(a.keys() & b.keys())
        difference = self._difference(first, second, shared) if len(shared) > 1 else None
        ours, theirs = statistics.mean(a.values()), statistics.mean(b.values())
        mean = ours - theirs if difference is None else difference.mean
        words = f"difference {mean:+.3g} {unit}".rstrip()
        advantage = mean if self.table.better == "higher" else -mean
        distance = (-abs(advantage) if both else advantage) + (margin or 0.0)
        if self.table.ratio and difference is not None:
            logs = math.log1p((margin or 0.0) / 100)
            sign = 1 if self.table.better == "higher" else -1
            return _in_per_cent(_decided(difference, sign * difference.mean + logs, "", among))
        if difference is None:
            if (
                len(a) != 1
                or len(b) != 1
                or self.table.measure not in ("variables", "loss-memory", "step-memory")
            ):
                return Judgement("not decided", f"{words}, of one seed", mean)
            if margin is None and abs(mean) <= EQUAL * max(ours, theirs):
                return Judgement("no", f"{words}: equal within {100 * EQUAL:g} %", mean)
            return Judgement(
                "yes" if distance > 0 or (margin is not None and distance == 0) else "no",
                words,
                mean,
            )
        return _decided(difference, distance, words, among)

    def _difference(self, first: Place, second: Place, shared: Sequence[str]) -> Difference:
        """Compare two cells beside those in which the same is read as in the two, on the same
        data.
        """
        alike, kinds = self._alike((first, second))
        difference = compare(alike, first, second)
        x, y = (self.right.get(place, {}) for place in (first, second))
        if kinds == 1 and all(seed in x and seed in y for seed in shared):
            return with_test_images(
                difference, [x[seed] for seed in shared], [y[seed] for seed in shared]
            )
        return difference

    def _interaction(
        self, pairs: Sequence[tuple[Place, Place]], shared: Sequence[Sequence[str]]
    ) -> Difference:
        """The difference of two differences of cells in which the same is read."""
        weights = Counter[Place]()
        for (plus, minus), sign in zip(pairs, (1, -1), strict=True):
            weights[plus] += sign
            weights[minus] -= sign
        alike, kinds = self._alike([place for pair in pairs for place in pair])
        difference = contrast(alike, {place: n for place, n in weights.items() if n})
        gains: list[list[np.ndarray]] = []
        for (plus, minus), seeds in zip(pairs, shared, strict=True):
            x, y = self.right.get(plus, {}), self.right.get(minus, {})
            if kinds > 1 or any(seed not in x or seed not in y for seed in seeds):
                return difference
            gains.append([x[seed].astype(int) - y[seed] for seed in seeds])
        return with_test_images(difference, *gains)

    def _alike(self, places: Sequence[Place]) -> tuple[Values, int]:
        """The numbers of all cells in which the same is read as in these, and the number of
        kinds.
        """
        wanted = {self.kinds[place] for place in places}
        numbers = {
            place: numbers
            for place, numbers in self.values.items()
            if numbers and self.kinds[place] in wanted
        }
        return numbers, len(wanted)


def _independent(first: Difference, second: Difference) -> Difference:
    """The difference of two differences whose errors are independent (Welch)."""
    squared = first.error**2 + second.error**2
    parts = first.error**4 / first.freedom + second.error**4 / second.freedom
    return Difference(
        first.mean - second.mean,
        math.sqrt(squared),
        squared**2 / parts if squared else first.freedom,
        first.variance + second.variance,
        min(first.cells, second.cells),
    )


def _in_per_cent(judgement: Judgement) -> Judgement:
    """Write a judgement of logarithms as one of a ratio: by how many per cent it differs from 1."""

    def per_cent(log: float) -> float:
        return 100 * math.expm1(log)

    assert judgement.difference is not None and judgement.interval is not None  # of _decided
    mean = per_cent(judgement.difference)
    low, high = map(per_cent, judgement.interval)
    words = f"ratio {mean:+.3g} %, 95 % interval {low:+.3g} to {high:+.3g}"
    words += judgement.words[judgement.words.index(";") :] if ";" in judgement.words else ""
    return judgement._replace(words=words, difference=mean, interval=(low, high))


def _decided(difference: Difference, distance: float, words: str, among: int = 1) -> Judgement:
    """Judge by the p of a distance, above zero where the claim would hold; words about the
    difference come first.
    """
    against = among if distance < 0 else 1
    p, half = min(1.0, against * difference.p(distance)), difference.half(LEVEL / against)
    interval = difference.mean - half, difference.mean + half
    words += (
        f", 95 % interval {interval[0]:+.3g} to {interval[1]:+.3g}"
        + f" as one of {against} rows" * (against > 1)
    )
    if p < LEVEL:
        return Judgement("yes" if distance > 0 else "no", words, difference.mean, interval, p)
    # how many seeds would decide, if the difference stays as far from what it is compared with
    seeds = np.arange(2, MOST_SEEDS + 1)
    halves = stats.t.ppf(1 - LEVEL / against / 2, (difference.cells - 1) * (seeds - 1)) * np.sqrt(
        2 * difference.variance / seeds
    )
    enough = seeds[halves < abs(distance)]
    needed = f"about {enough[0]} seeds" if enough.size else "no affordable number of seeds"
    return Judgement(
        "not decided", f"{words}; {needed} would decide it", difference.mean, interval, p
    )
