"""The papers' tables as data: what they claim, which runs would show it, and their YAML files.

One YAML file a paper, in the form of docs/reproduce.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from nearfar.messages import (
    LARGEST_SEED,
    check_known,
    load_yaml,
    raise_as_value_error,
)

Size = Literal["full", "small"]
Measure = Literal[
    "run",
    "variables",
    "loss-memory",
    "loss-time",
    "step-share",
    "step-memory",
    "step-time",
    "plane",
    "curve",
    "last",
    "nuclear",
    "nuclear-norms",
    "short",
    "effective",
    "detect",
    "none",
]
TRAINED = ("run", "plane", "curve", "last", "nuclear", "nuclear-norms", "detect")
"""Measures on a pretrained run; the others need none."""
Law = Literal["order", "strength", "shape", "spread", "departure"]
"""What a claim says of a table whose deficits are predicted (negatives.py)."""
Number = tuple[float, float | None]
Settings = Mapping[str, Any]

LONGEST_NAME = 100  # characters of a name from a file
MOST_SEEDS = 1000
"""Of a cell."""
KINDS = ("better", "not_worse", "within", "best", "law", "more")
OF_SMALL = (
    "common",
    "columns",
    "rows",
    "evaluate",
    "protocol",
    "metric",
    "seeds",
    "first_seed",
    "says",
)
"""Keys of the small scale of a table, which takes over what it does not name, but for common
settings.
"""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its data, settings of its runs, and where they are not the table's, protocol,
    metric and measure.

    like: the column of the paper that it stands for at small scale. needs: what would measure it,
    where nothing here does.
    """

    name: str
    title: str = ""
    data: str | None = None
    run: Settings = field(default_factory=dict)
    protocol: tuple[str, ...] | None = None
    metric: str | None = None
    measure: Measure | None = None
    unit: str | None = None
    evaluate: Settings = field(default_factory=dict)
    like: str | None = None
    needs: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: settings of its runs (None: the paper's number alone), those at small scale, and the
    paper's numbers.

    trial_of, trial: the row that it is a trial of, and its own settings in words. among: the row
    whose trials, in the table that chooses, settle its settings; default: the row of the same name.
    without: columns in which it is not run. needs: what a row without run would take.
    """

    name: str
    title: str
    run: Settings | None = None
    small: Settings = field(default_factory=dict)
    paper: Mapping[str, Number] = field(default_factory=dict)
    note: str = ""
    trial_of: str = ""
    trial: str = ""
    among: str = ""
    without: tuple[str, ...] = ()
    needs: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A comparison of cells, or of all of a table, that a paper claims; one of its kinds is given.

    better: the first is better than the second. not_worse: it is worse by at most the third, in the
    table's unit. within: they differ by at most that. best: it is better than every other row.
    more: the first is better than the second by more than the third is better than the fourth. law:
    what a prediction says of all cells. A cell is "row/column", or a row of the claim's column.
    later: whether it was listed after the numbers existed that it was first judged by.
    """

    text: str
    section: str = ""
    later: bool = False
    column: str | None = None
    better: tuple[str, str] | None = None
    not_worse: tuple[str, str, float] | None = None
    within: tuple[str, str, float] | None = None
    best: str | None = None
    more: tuple[str, str, str, str] | None = None
    law: Law | None = None

    def cells(self, columns: Iterable[str]) -> list[tuple[str, str | None]]:
        """Return the (row, column) of the cells that are named; column None where the claim leaves
        it open.
        """
        if self.law is not None:
            return []
        only = list(columns)
        usual = self.column or (only[0] if len(only) == 1 else None)
        named = self.more or (self.better or self.not_worse or self.within or (self.best,))[:2]
        parts = (str(cell).split("/", 1) for cell in named)
        return [(part[0], part[1] if len(part) > 1 else usual) for part in parts]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table: the settings of its run, with "data" a name, and what is read from
    it.
    """

    row: str
    column: str
    measure: str
    unit: str
    metric: str
    protocol: tuple[str, ...]
    evaluate: Settings
    settings: Settings

    @property
    def place(self) -> str:
        """Name the cell in the JSON of its table."""
        return f"{self.row}/{self.column}"

    @property
    def reading(self) -> str:
        """Name what is read from the run."""
        options = [f"{name}={value}" for name, value in sorted(self.evaluate.items())]
        task = self.protocol if self.measure == "detect" else ()
        unit = self.unit if self.measure.endswith(("-memory", "-time")) else ""
        of = "of the projector" if self.measure.startswith("nuclear") else unit
        return " ".join(word for word in (self.measure, of, *task, self.metric, *options) if word)

    @property
    def key(self) -> str:
        """A short name of the run: cells with equal settings share it, whatever is measured on
        them.
        """
        words = json.dumps(
            ["run" if self.measure in TRAINED else self.measure, dict(self.settings)],
            sort_keys=True,
        )
        return hashlib.sha256(words.encode()).hexdigest()[:10]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure of a paper at a size; `small`: the same at small scale, or `small_not`: why
    there is none.

    run: rows that are run. common: settings of all runs. evaluate: options of `nearfar evaluate` or
    `transfer`. says: how it differs from the paper. needs, cost: of the full size. own: "run" and
    "evaluate" of single cells, by "ROW COLUMN".

    ratio: whether cells are compared by their ratio, and margins are per cent of it.
    paper_columns: at small scale, the columns of the full one.

    question, answer: what the table is for and what it shows, in words. related: work that asked
    the like before. chosen: the table, earlier
    in the file, whose trials settle the settings of every row, in its column of the same name or
    else its first. choices: the trials that were best, in words, by "ROW/COLUMN". effective: the
    table, earlier in the file, of the effective number of negatives at each `pair_temperature`, for
    claims with a law; effective_numbers: what it has.
    """

    paper: str
    name: str
    title: str
    source: str
    rows: Mapping[str, Row]
    columns: Mapping[str, Column]
    run: tuple[str, ...]
    common: Settings
    size: Size = "full"
    unit: str = ""
    evaluate: Settings = field(default_factory=dict)
    protocol: tuple[str, ...] = ()
    metric: str = ""
    seeds: int = 1
    first_seed: int = 0
    says: str = ""
    small: Table | None = None
    small_not: str = ""
    cost: Literal["seconds", "minutes", "hours", "days", "weeks"] = "days"
    needs: str = ""
    measure: Measure = "run"
    better: Literal["higher", "lower"] = "higher"
    ratio: bool = False
    claims: tuple[Claim, ...] = ()
    own: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    paper_columns: Mapping[str, Column] = field(default_factory=dict)
    question: str = ""
    answer: str = ""
    related: tuple[str, ...] = ()
    chosen: Table | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    effective: Table | None = None
    effective_numbers: Mapping[float, float] = field(default_factory=dict)

    def at(self, size: Size) -> Table:
        """Return the table at a size; raises ValueError where there is none."""
        if size == "full":
            return self
        if self.small is None:
            raise ValueError(
                f"{self.paper}/{self.name} has no small scale: "
                f"{self.small_not or 'none is written'}"
            )
        return self.small

    def unit_of(self, column: Column) -> str:
        """Return the unit of a column."""
        return self.unit if column.unit is None else column.unit

    def trials(self, name: str) -> list[Row]:
        """Return the trials, rows of `chosen`, of which the best settles the settings of a row."""
        row = self.rows[name]
        theirs = [self.chosen.rows[trial] for trial in self.chosen.run] if self.chosen else []
        return [trial for trial in theirs if trial.trial_of == (row.among or row.trial_of or name)]

    def cells(self) -> list[Cell]:
        """Return the cells that are run, row by row.

        Left out are those of the measure "none" and, at full scale, trainings that the paper left
        out of a row that has numbers.
        """
        cells = []
        for row in (self.rows[name] for name in self.run):
            for column in self.columns.values():
                measure = column.measure or self.measure
                left_empty = self.size == "full" and row.paper and column.name not in row.paper
                if measure == "none" or column.name in row.without:
                    continue
                if left_empty and measure in TRAINED:
                    continue
                data = {} if column.data is None else {"data": column.data}
                small = row.small if self.size == "small" else {}
                own = self.own.get(f"{row.name} {column.name}", {})
                run = {
                    **self.common,
                    **data,
                    **column.run,
                    **(row.run or {}),
                    **small,
                    **own.get("run", {}),
                }
                cells.append(
                    Cell(
                        row=row.name,
                        column=column.name,
                        measure=measure,
                        unit=self.unit_of(column),
                        metric=column.metric or self.metric,
                        protocol=self.protocol if column.protocol is None else column.protocol,
                        evaluate={**self.evaluate, **column.evaluate, **own.get("evaluate", {})},
                        settings=run,
                    )
                )
        return cells


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: its tables by name, and what its data is and how many training and test images it
    has, by its name.

    beforehand: whether its claims are our own, written before the runs.
    """

    name: str
    title: str
    tables: Mapping[str, Table]
    authors: str = ""
    year: int = 0
    data: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    beforehand: bool = False


OURS: Mapping[type, frozenset[str]] = {
    Table: frozenset({"paper", "name", "run", "size", "own", "paper_columns"})
    | {"choices", "effective_numbers"},
    Row: frozenset({"name", "trial_of", "trial"}),
    Column: frozenset({"name"}),
}
"""What a file does not set."""
Part = TypeVar("Part")


def paper_names() -> list[str]:
    """Return the names of the papers that come with nearfar."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.yaml"))


def read_paper(name: str | Path) -> Paper:
    """Read a paper that comes with nearfar by name, or a file of one's own (its name ends in
    .yaml).

    Raises ValueError, one line that names the place, for an unknown paper and for what is not in
    the form of docs/reproduce.md.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        check_known("paper", str(name), paper_names())
        path = Path(__file__).parent / f"{name}.yaml"
    with raise_as_value_error(
        path.name, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError
    ):
        whole = _named("paper", load_yaml(path)) | {"name": check_plain_name("paper", path.stem)}
        common = _named("common", whole.pop("common", {}))
        tables: dict[str, Table] = {}
        for key, content in _named("tables", whole.get("tables")).items():
            tables[key] = _table(path.stem, key, content, common, tables)
        return _part(Paper, path.stem, whole | {"tables": tables})


def check_plain_name(kind: str, name: Any) -> str:
    """Return a name from a file that is to become a part of a path; ValueError for one that could
    lead elsewhere.

    Plain names are texts of 1 to 100 printable characters, without separators, and neither "." nor
    "..".
    """
    plain = isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()
    if not plain or set(name) & set("/\\") or name.strip(". ") == "":
        raise ValueError(
            f"the {kind} {name!r:.60} is no plain name: it must have 1 to {LONGEST_NAME} printable "
            "characters, no separators, and more than dots"
        )
    return str(name)


def check_count(kind: str, value: Any, least: int, most: int) -> int:
    """Return a whole number from a file; ValueError for anything else, and for one that is not in
    least..most.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{kind} must be a whole number from {least} to {most}, not {value!r:.60}")
    return value


def _table(
    paper: str, name: str, content: Any, common: Settings, tables: Mapping[str, Table]
) -> Table:
    check_plain_name("table", name)
    given = _given(Table, name, content)
    for key in ("chosen", "effective"):
        if (other := given.pop(key, None)) is not None:
            if str(other) not in tables:
                raise ValueError(f"{name}: {key} names {other}, which is no table above it")
            given[key] = tables[str(other)]
    trials, rows = given.pop("trials", None), dict[str, Row]()
    for key, row in _named(f"{name}, rows", given.pop("rows", None)).items():
        more = _rows(key, {"trials": trials, **_given(Row, f"{name}, row {key}", row)}, name)
        if both := more.keys() & rows.keys():
            raise ValueError(f"{name}: two rows have the name {min(both)}")
        rows |= more
    small, cells = given.pop("small", None), _named(f"{name}, cells", given.pop("cells", {}))
    scale = {"columns": {"value": {}}, **{key: given.pop(key) for key in OF_SMALL if key in given}}
    scale["common"] = {**common, **_named(f"{name}, common", scale.get("common", {}))}
    claims = _list(f"{name}, claims", given.get("claims", []))
    given["claims"] = tuple(_claim(_named(f"{name}, claims", claim), name) for claim in claims)
    own = {"run": Settings, "evaluate": Settings}
    given["own"] = {
        cell: _checked(own, place := f"{name}, cell {cell}", _named(place, each))
        for cell, each in cells.items()
    }
    whole = {**given, "paper": paper, "name": name, "rows": rows, **_scale(scale, rows, name)}
    table = _part(Table, name, whole)
    if small is not None:
        place = f"{name}, small"
        hints = {key: get_type_hints(Table)[key] for key in OF_SMALL} | {"rows": tuple[str, ...]}
        small_scale = {"common": {}, **_checked(hints, place, _named(place, small))}
        table = replace(
            table,
            small=replace(
                table,
                own={},
                paper_columns=table.columns,
                **_scale(small_scale, rows, place),
                size="small",
            ),
        )
    _check_names(table)
    for each in (table, table.small):
        for cell in each.cells() if each else ():
            _check_paths(cell, name)
    return table


def _check_paths(cell: Cell, place: str) -> None:
    """Check what of a cell becomes a part of a path; ValueError, which names the cell, for what is
    no plain name.
    """
    with raise_as_value_error(f"{place}, row {cell.row}, column {cell.column}", ValueError):
        for name in (cell.row, cell.column):
            check_plain_name("row or column", name)
        for settings in (cell.settings, cell.evaluate):
            if settings.get("data") is not None:
                check_plain_name("data set", settings["data"])
        if "method" in cell.settings:
            check_plain_name("method", cell.settings["method"])
        if "out" in cell.settings:
            raise ValueError("nearfar reproduce chooses the run folders, so a table sets no out")
        if "seed" in cell.settings:
            raise ValueError("`seeds` and `first_seed` set the seeds, so a table sets no seed")


def _scale(given: dict[str, Any], rows: Mapping[str, Row], place: str) -> dict[str, Any]:
    names = given.pop("rows", None) or tuple(
        row.name for row in rows.values() if row.run is not None
    )
    if len(set(names)) < len(names):
        raise ValueError(f"{place}: a row stands twice in rows, {', '.join(names)}")
    for row in names:
        if row not in rows or rows[row].run is None:
            raise ValueError(f"{place}: the row {row} that is to be run is not there or has no run")
    check_count(f"{place}: seeds", given.get("seeds", 1), 1, MOST_SEEDS)
    check_count(
        f"{place}: first_seed", given.get("first_seed", 0), 0, LARGEST_SEED + 1 - MOST_SEEDS
    )
    if "columns" in given:
        given["columns"] = {
            name: _part(
                Column,
                f"{place}, column {name}",
                {
                    "title": name,
                    **_given(Column, f"{place}, column {name}", values or {}),
                    "name": name,
                },
            )
            for name, values in _named(f"{place}, columns", given["columns"]).items()
        }
    return {**given, "run": tuple(names)}


def _rows(name: str, given: dict[str, Any], place: str) -> dict[str, Row]:
    """The row of a name, or one for each of its trials: NAME-1 and so on, with their settings on
    top of its own.
    """
    if (trials := given.pop("trials")) is None:
        return {name: _row(name, given, place)}
    rows, place_of_trials = {}, f"{place}, row {name}, trials"
    for number, settings in enumerate(_list(place_of_trials, trials), 1):
        trial = _named(place_of_trials, settings)
        words = (
            ", ".join(f"{setting} {value}" for setting, value in trial.items())
            .lower()
            .replace("_", " ")
        )
        values = {
            **given,
            "title": f"{given.get('title', name)}, {words}",
            "trial_of": name,
            "trial": words,
        }
        values["run"] = {**_named(f"{place}, row {name}, run", given.get("run", {})), **trial}
        rows[f"{name}-{number}"] = _row(f"{name}-{number}", values, place)
    return rows


def _row(name: str, given: dict[str, Any], place: str) -> Row:
    place, numbers = f"{place}, row {name}", dict[str, Number]()
    for column, number in _named(f"{place}, paper", given.pop("paper", {})).items():
        mean, *deviation = number if isinstance(number, list) and number else [number]
        of = f"{place}, paper, {column}"
        if len(deviation) > 1:
            raise ValueError(f"{of} takes a number, or a mean and a deviation, not {number!r:.60}")
        numbers[column] = (_number(of, mean), _number(of, deviation[0]) if deviation else None)
    return _part(Row, place, {"title": name, **given, "name": name, "paper": numbers})


def _claim(given: dict[str, Any], place: str) -> Claim:
    if sum(kind in given for kind in KINDS) != 1:
        raise ValueError(
            f"{place}: the claim {given.get('text')!r} needs one of "
            f"{', '.join(KINDS[:-1])} and more"
        )
    return _part(Claim, f"{place}, claims", {**given, "section": str(given.get("section", ""))})


def _check_names(table: Table) -> None:
    columns, small = set(table.columns), set() if table.small is None else set(table.small.columns)
    for row in table.rows.values():
        if strange := {*row.paper, *row.without} - columns:
            raise ValueError(f"{table.name}, row {row.name}: there is no column {min(strange)}")
    counts = {name: len(table.trials(name)) for name in table.run}
    if not table.chosen and (lost := [name for name in table.run if table.rows[name].among]):
        raise ValueError(f"{table.name}, row {lost[0]}: `among` needs a table in `chosen`")
    if table.chosen and (0 in counts.values() or len({*counts.values()}) > 1):
        raise ValueError(
            f"{table.name}: every row needs as many trials in {table.chosen.name}; there "
            f"are {counts}"
        )
    for cell in table.own:
        if tuple(cell.split(" ")) not in {
            (row, column) for row in table.rows for column in columns
        }:
            raise ValueError(f"{table.name}: there is no cell {cell}")
    for claim in table.claims:
        _check_claim(claim, table, columns | small)
    for column in () if table.small is None else table.small.columns.values():
        if column.like is not None and column.like not in columns:
            raise ValueError(
                f"{table.name}, small: there is no column {column.like} for {column.name} "
                f"to stand for"
            )
    _check_twice(table)


def _check_twice(table: Table) -> None:
    """Check that titles of rows and of columns differ, by which pages and figures name them, and
    that no two columns at small scale stand for one.
    """
    stand = [column.like for column in table.small.columns.values()] if table.small else []
    kinds = {
        "rows have the title": [row.title for row in table.rows.values()],
        "columns have the title": [column.title for column in table.columns.values()],
        "columns at small scale stand for": [like for like in stand if like is not None],
    }
    for words, names in kinds.items():
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"{table.name}: two {words} {twice[0]!r}")


def _check_claim(claim: Claim, table: Table, columns: Collection[str]) -> None:
    """Check that the cells of a claim are there, and are as many as it names, at each scale.

    columns: those of both scales.
    """
    place = f"{table.name}: the claim {claim.text!r}"
    if claim.law is not None and table.effective is None:
        raise ValueError(f"{place} is a law, and the table names no `effective`")
    if (margin := (claim.not_worse or claim.within or (0,))[-1]) < 0:
        raise ValueError(f"{place} has a margin below 0: {margin}")
    for scale in filter(None, (table, table.small)):
        cells = claim.cells(scale.columns)
        if len(set(cells)) < len(cells):
            raise ValueError(f"{place} names a cell twice")
        for name, where in cells:
            if name not in table.rows:
                raise ValueError(f"{place} names a row {name} that is not there")
            if where is None:
                raise ValueError(f"{place} names no column, and there are {len(scale.columns)}")
            if where not in columns:
                raise ValueError(f"{place} names a column {where} that is not there")


def _given(cls: type[Part], place: str, value: Any) -> dict[str, Any]:
    """Return the keys of a part of a file with their values; ValueError for those that only
    `reproduce` sets.
    """
    given = _named(place, value)
    if ours := given.keys() & OURS[cls]:
        raise ValueError(f"{place}: a file sets no {min(ours)!r} here; see docs/reproduce.md")
    return given


def _named(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected names with values, got {value!r:.60}")
    named = {str(key): each for key, each in value.items()}
    if len(named) < len(value):
        raise ValueError(f"{place}: a name stands twice among {', '.join(map(str, value))}")
    return named


def _list(place: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{place}: expected a list, got {value!r:.60}")
    return value


def _part(cls: type[Part], place: str, given: dict[str, Any]) -> Part:
    with raise_as_value_error(place, TypeError):  # for a key that is missing
        return cls(**_checked(get_type_hints(cls), place, given))


def _checked(hints: Mapping[str, Any], place: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a file as the types of their keys say; ValueError, which names the place
    and the key, for others.
    """
    checked = {}
    for name, value in given.items():
        with raise_as_value_error(place, ValueError):
            check_known("key", name, hints, "see docs/reproduce.md")
            checked[name] = _value(name, value, hints[name])
    return checked


def _value(name: str, value: Any, hint: Any) -> Any:
    """Return a value as its type says: a number in place of a text is one, and a text in place of a
    list of texts a list of one.
    """
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if NoneType in get_args(hint):  # may be left empty
        return None if value is None else _value(name, value, kinds[0])
    if get_origin(hint) is Literal:
        check_known(name, value, kinds)
    elif get_origin(hint) is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{name} takes names with values, not {value!r:.60}")
        return {key: _value(f"{name}, {key}", each, kinds[1]) for key, each in value.items()}
    elif hint is bool and not isinstance(value, bool):
        raise ValueError(f"{name} takes true or false, not {value!r:.60}")
    elif hint is int:
        return check_count(name, value, 0, LARGEST_SEED)
    elif hint is float:
        return _number(name, value)
    elif hint is str:
        return _text(name, value)
    elif kinds == [str, ...]:
        return tuple(_text(name, word) for word in (value if _is_list(value) else [value]))
    elif kinds and set(kinds) <= {str, int, float}:
        if not _is_list(value) or len(value) != len(kinds):
            wanted = ", ".join({str: "text"}.get(kind, "number") for kind in kinds)
            raise ValueError(f"{name} takes [{wanted}], not {value!r:.60}")
        return tuple(_value(name, each, kind) for each, kind in zip(value, kinds, strict=True))
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _text(name: str, value: Any) -> str:
    """Return a text from a file, as which numbers count too; ValueError for anything else."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"{name} takes a text, not {value!r:.60}")
    return str(value)


def _number(name: str, value: Any) -> float:
    """Return a number from a file; ValueError for anything else."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name} takes a number, not {value!r:.60}")
    return float(value)
