"""Papers read from YAML files, with one line for what is not in the form of docs/reproduce.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nearfar.messages import did_you_mean, one_line
from nearfar.papers.paper import COSTS, MEASURES, Claim, Column, Paper, Row, Scale, Table, cells_of
from nearfar.yaml_files import load_yaml

Part = TypeVar("Part")
OF_SCALES = ("protocol", "metric", "seeds", "first_seed", "evaluate")
"""Keys of a table that its small scale takes over."""
SETTINGS = ("common", "run", "small", "evaluate")
"""Keys with settings of runs or options of their evaluation."""


def paper_names() -> list[str]:
    """Return the names of the papers that come with nearfar."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.yaml"))


def read_paper(name: str | Path) -> Paper:
    """Read a paper that comes with nearfar by name, or a file of one's own (its name ends in .yaml).

    Raises ValueError, one line that names the place, for an unknown paper and for what is not in the form of
    docs/reproduce.md.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if str(name) not in paper_names():
            raise ValueError(f"there is no paper {name}: {did_you_mean(str(name), paper_names(), 'see reproduce')}")
        path = Path(__file__).parent / f"{name}.yaml"
    with one_line(path.name, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError):
        return _paper(path.stem, _mapping(load_yaml(path)))


def _paper(name: str, whole: dict[str, Any]) -> Paper:
    common = _mapping(whole.pop("common", {}))
    tables = {key: _table(name, key, _mapping(one), common) for key, one in _mapping(whole.pop("tables")).items()}
    whole.pop("name", None)
    return _part(Paper, name, dict(whole, name=name, tables=tables))


def _table(paper: str, name: str, given: dict[str, Any], paper_common: dict[str, Any]) -> Table:
    place, small = name, given.pop("small", None)
    columns = _columns(given.pop("columns", {"value": {}}), place)
    rows = {key: _row(key, _mapping(one), place) for key, one in _mapping(given.pop("rows")).items()}
    scale = {key: given.pop(key) for key in OF_SCALES if key in given}
    common = paper_common | _mapping(given.pop("common", {}))
    full = _scale({**scale, "common": common}, columns, rows, place)
    claims = tuple(_claim(_mapping(one), place) for one in given.pop("claims", []))
    sizes = dict(full=full, small=None if small is None else _small(_mapping(small), scale, columns, rows, place))
    own = {cell: _mapping(one) for cell, one in _mapping(given.pop("cells", {})).items()}
    for cell, one in own.items():
        _mappings(one, f"{place}, cell {cell}", all_of=True)
    known = dict(given, paper=paper, name=name, rows=rows, claims=claims, own=own, **sizes)
    table = _part(Table, place, known, also=("common", "columns", *OF_SCALES))
    _one_of(MEASURES, table.measure, place, "measure")
    _one_of(COSTS, table.cost, place, "cost")
    _one_of(("higher", "lower"), table.better, place, "better")
    _check_names(table, place)
    return table


def _scale(given: dict[str, Any], columns: dict[str, Column], rows: dict[str, Row], place: str) -> Scale:
    chosen = given.pop("rows", None)
    names = tuple(row.name for row in rows.values() if row.run is not None) if chosen is None else tuple(chosen)
    for row in names:
        if row not in rows or rows[row].run is None:
            raise ValueError(f"{place}: the row {row} that is to be run is not there or has no run")
    protocol = _words(given.pop("protocol", ()))
    _mappings(given, place)
    if not isinstance(seeds := given.get("seeds", 1), int) or seeds < 1:
        raise ValueError(f"{place}: seeds must be 1 or more, not {seeds!r}")
    return _part(Scale, place, dict(given, columns=columns, rows=names, protocol=protocol))


def _small(
    given: dict[str, Any], full: dict[str, Any], columns: dict[str, Column], rows: dict[str, Row], place: str
) -> Scale:
    place = f"{place}, small"
    own = _columns(given.pop("columns"), place) if "columns" in given else columns
    return _scale({"common": {}, **full, **given}, own, rows, place)


def _columns(given: Any, place: str) -> dict[str, Column]:
    found = {}
    for name, one in _mapping(given).items():
        one = _mapping({} if one is None else one)
        if "protocol" in one:
            one["protocol"] = _words(one["protocol"])
        _mappings(one, f"{place}, column {name}")
        found[name] = _part(Column, f"{place}, column {name}", {"title": str(name), **one, "name": str(name)})
        _one_of((*MEASURES, None), found[name].measure, place, "measure")
    return found


def _row(name: str, given: dict[str, Any], place: str) -> Row:
    numbers = {}
    _mappings(given, f"{place}, row {name}")
    for column, number in _mapping(given.pop("paper", {})).items():
        mean, deviation = number if isinstance(number, list) else (number, None)
        numbers[str(column)] = (float(mean), None if deviation is None else float(deviation))
    return _part(Row, f"{place}, row {name}", {"title": str(name), **given, "name": str(name), "paper": numbers})


def _claim(given: dict[str, Any], place: str) -> Claim:
    for kind in ("better", "not_worse", "within", "more"):
        if kind in given:
            given[kind] = tuple(given[kind])
    if sum(kind in given for kind in ("better", "not_worse", "within", "best", "more")) != 1:
        raise ValueError(
            f"{place}: the claim {given.get('text')!r} needs one of better, not_worse, within, best and more"
        )
    return _part(Claim, f"{place}, claims", {**given, "section": str(given.get("section", ""))})


def _check_names(table: Table, place: str) -> None:
    """Raise ValueError for rows and columns that are named but not there."""
    columns = set(table.full.columns)
    small = set() if table.small is None else set(table.small.columns)
    for row in table.rows.values():
        if strange := set(row.paper) - columns:
            raise ValueError(f"{place}, row {row.name}: there is no column {min(strange)}")
    for cell in table.own:
        if tuple(cell.split(" ")) not in {(row, column) for row in table.rows for column in columns}:
            raise ValueError(f"{place}: there is no cell {cell}")
    for claim in table.claims:
        for name, where in cells_of(claim, columns):
            if name not in table.rows:
                raise ValueError(f"{place}: the claim {claim.text!r} names a row {name} that is not there")
            if where is not None and where not in columns | small:
                raise ValueError(f"{place}: the claim {claim.text!r} names a column {where} that is not there")
    if table.small is not None:
        for column in table.small.columns.values():
            if column.like is not None and column.like not in columns:
                raise ValueError(f"{place}, small: there is no column {column.like} for {column.name} to stand for")


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected names with values, got {value!r:.60}")
    return {str(key): each for key, each in value.items()}


def _mappings(given: dict[str, Any], place: str, all_of: bool = False) -> None:
    """Raise ValueError for settings and options that are no names with values; all_of: and for any other key."""
    for key, value in given.items():
        if key in SETTINGS and value is not None and not isinstance(value, dict):
            raise ValueError(f"{place}: {key} takes names with values, not {value!r:.60}")
        if all_of and key not in ("run", "evaluate"):
            raise ValueError(f"{place}: there is no key {key}: {did_you_mean(key, ('run', 'evaluate'), 'use run')}")


def _words(given: Any) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _one_of(known: Iterable[Any], word: Any, place: str, what: str) -> None:
    if word not in (known := list(known)):
        near = did_you_mean(str(word), map(str, known), cutoff=0.6)
        words = f"{place}: {what} must be one of {', '.join(map(str, known))}, not {word}"
        raise ValueError(f"{words}: {near}" if near else words)


def _part(cls: type[Part], place: str, given: dict[str, Any], also: Iterable[str] = ()) -> Part:
    """Build a part, with an error that names the place and the key; also: further keys that it could have had."""
    known = fields(cls)  # type: ignore[arg-type]
    names = [one.name for one in known]
    needed = [one.name for one in known if one.default is MISSING and one.default_factory is MISSING]
    if lacking := [name for name in needed if name not in given]:
        raise ValueError(f"{place}: {lacking[0]} is missing")
    if strange := sorted(set(given) - set(names)):
        near = did_you_mean(strange[0], [*names, *also], "see docs/reproduce.md")
        raise ValueError(f"{place}: there is no key {strange[0]}: {near}")
    return cls(**given)
