"""A paper's tables: rows, columns, the paper's numbers, its claims, and the runs behind them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Size = Literal["full", "small"]
SIZES: tuple[Size, ...] = ("full", "small")
MEASURES = (
    "run", "variables", "loss-memory", "loss-time", "step-memory", "step-time", "plane", "curve", "nuclear",
    "nuclear-norms", "detect", "none",
)  # fmt: skip
TRAINED = ("run", "plane", "curve", "nuclear", "nuclear-norms", "detect")
"""Measures on a pretrained run; the others need none."""
COSTS = ("seconds", "minutes", "hours", "days", "weeks")
Number = tuple[float, float | None]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its data, settings of its runs, and where they are not the table's, protocol, metric and measure.

    like: the column of the paper that it stands for at small scale.
    """

    name: str
    title: str = ""
    data: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    protocol: tuple[str, ...] | None = None
    metric: str | None = None
    measure: str | None = None
    unit: str | None = None
    evaluate: Mapping[str, Any] = field(default_factory=dict)
    like: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: settings of its runs (None: the paper's number alone), those at small scale, and the paper's numbers."""

    name: str
    title: str
    run: Mapping[str, Any] | None = None
    small: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Number] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says of a table, as a comparison of cells.

    better: the first is better than the second. not_worse: it is worse by at most the third, in the table's unit.
    within: the two differ by at most the third, either way.
    best: it is better than every other row. more: the first is better than the second by more than the third is better
    than the fourth. A cell is "row/column", or a row of the claim's column.
    """

    text: str
    section: str = ""
    column: str | None = None
    better: tuple[str, str] | None = None
    not_worse: tuple[str, str, float] | None = None
    within: tuple[str, str, float] | None = None
    best: str | None = None
    more: tuple[str, str, str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How a table is run at a size: common settings, columns, rows that are run, and seeds.

    evaluate: options of `nearfar evaluate`. says: how it differs from the paper.
    """

    common: Mapping[str, Any]
    columns: Mapping[str, Column]
    rows: tuple[str, ...]
    evaluate: Mapping[str, Any] = field(default_factory=dict)
    protocol: tuple[str, ...] = ()
    metric: str = ""
    seeds: int = 1
    first_seed: int = 0
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table: the settings of its run, with "data" a name, and what is read from it."""

    row: str
    column: str
    measure: str
    unit: str
    metric: str
    protocol: tuple[str, ...]
    evaluate: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def reading(self) -> str:
        """Name what is read from the run."""
        options = [f"{name}={value}" for name, value in sorted(self.evaluate.items())]
        task = self.protocol if self.measure == "detect" else ()
        of = ("of the projector",) if self.measure.startswith("nuclear") else ()
        return " ".join(word for word in (self.measure, *of, *task, self.metric, *options) if word)

    @property
    def key(self) -> str:
        """A short name of the run: cells with equal settings share it, whatever is measured on them."""
        words = json.dumps(["run" if self.measure in TRAINED else self.measure, dict(self.settings)], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:10]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure of a paper.

    needs, cost: of the full scale. small_not: why there is no small scale. own: by "ROW COLUMN", settings (`run`) and
    options of the evaluation of single cells at full scale.
    """

    paper: str
    name: str
    title: str
    source: str
    rows: Mapping[str, Row]
    full: Scale
    unit: str = ""
    small: Scale | None = None
    small_not: str = ""
    cost: str = "days"
    needs: str = ""
    measure: str = "run"
    better: str = "higher"
    claims: tuple[Claim, ...] = ()
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def at(self, size: Size) -> Scale:
        """Return the scale of a size; raises ValueError where the table has none."""
        scale = self.full if size == "full" else self.small
        if scale is None:
            raise ValueError(f"{self.paper}/{self.name} has no small scale: {self.small_not or 'none is written'}")
        return scale

    def cells(self, size: Size) -> list[Cell]:
        """Return the cells that are run at a size, row by row.

        Left out are those of the measure "none" and, at full scale, trainings that the paper left out of a row that has
        numbers.
        """
        scale, cells = self.at(size), []
        for row in (self.rows[name] for name in scale.rows):
            for column in scale.columns.values():
                measure = column.measure or self.measure
                left_empty = size == "full" and measure in TRAINED and row.paper and column.name not in row.paper
                if measure == "none" or left_empty:
                    continue
                own = dict(row.run or {}) | (dict(row.small) if size == "small" else {})
                cell = self.own.get(f"{row.name} {column.name}", {}) if size == "full" else {}
                data = {} if column.data is None else {"data": column.data}
                cells.append(
                    Cell(
                        row=row.name,
                        column=column.name,
                        measure=measure,
                        unit=self.unit if column.unit is None else column.unit,
                        metric=column.metric or scale.metric,
                        protocol=scale.protocol if column.protocol is None else column.protocol,
                        evaluate={**scale.evaluate, **column.evaluate, **cell.get("evaluate", {})},
                        settings={**scale.common, **data, **column.run, **own, **cell.get("run", {})},
                    )
                )
        return cells


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: its tables by name, and what its data is and how many training and test images it has, by its name."""

    name: str
    title: str
    tables: Mapping[str, Table]
    authors: str = ""
    year: int = 0
    data: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Sequence[int]] = field(default_factory=dict)


def cells_of(claim: Claim, columns: Iterable[str]) -> list[tuple[str, str | None]]:
    """Return the (row, column) of the cells that a claim names; column None where the claim leaves it open."""
    only = list(columns)
    usual = claim.column or (only[0] if len(only) == 1 else None)
    named = claim.more or (claim.better or claim.not_worse or claim.within or (claim.best,))[:2]
    cells = (str(one).split("/", 1) for one in named)
    return [(parts[0], parts[1] if len(parts) > 1 else usual) for parts in cells]
