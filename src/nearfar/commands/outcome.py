"""What is written of a table: the numbers so far as JSON, and "paper | ours" with the claims as Markdown."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.atomic import replacing
from nearfar.commands.cells import PLANE, PRETRAINED, folder_of, measured, measurements
from nearfar.messages import first_line
from nearfar.papers import (
    SIZES,
    Cell,
    Column,
    Paper,
    Place,
    Row,
    Size,
    Table,
    Values,
    draw_curves,
    draw_histograms,
    draw_lines,
    draw_pictures,
    judge,
)
from nearfar.training.progress import duration

MOST_LINES = 12
Found = dict[str, dict[str, Any]]
"""By "row/column": the key of the run, and by seed its value, seconds, commands and hardware."""


def path_of(table: Table, size: Size, out: Path) -> Path:
    """Return where a table is written, as Markdown; with .json and .png beside it."""
    return out / table.paper / f"{table.name}{'' if size == 'full' else '.small'}.md"


def found_so_far(table: Table, size: Size, out: Path) -> Found:
    """Return the numbers of a table: those written before, of runs with the same settings, and those of run folders."""
    path = path_of(table, size, out).with_suffix(".json")
    try:
        before = json.loads(path.read_text())["cells"] if path.is_file() else {}
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {first_line(error)}; remove it, its runs are kept") from error
    found: Found = {}
    for cell in table.cells(size):
        name = f"{cell.row}/{cell.column}"
        old = before.get(name, {})
        same = old.get("key") == cell.key and old.get("reading") == cell.reading
        found[name] = {"key": cell.key, "reading": cell.reading, "seeds": dict(old["seeds"]) if same else {}}
        pattern = folder_of(cell, "*", out)
        for folder in sorted(pattern.parent.glob(pattern.name)):
            if (number := measured(cell, folder)) is not None:
                found[name]["seeds"][folder.name.rpartition("-")[2]] = _with_training(number, folder)
    return found


def _with_training(number: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a measurement with the command and the seconds of the run that it was made on."""
    training = measurements(folder).get(PRETRAINED)
    if training is None:
        return number
    return number | {"commands": training["commands"] + number["commands"], "training_seconds": training["seconds"]}


def has(found: Found, cell: Cell, seed: int) -> bool:
    """Whether a cell has its number for a seed."""
    return str(seed) in found[f"{cell.row}/{cell.column}"]["seeds"]


def state_of(table: Table, out: Path) -> str:
    """Say in words whether a table was run, such as "small scale, begun" or "not run", and which claims hold."""
    words = []
    for size, word in zip(SIZES, ("run", "small scale"), strict=True):
        path = path_of(table, size, out).with_suffix(".json")
        if path.is_file():
            cells = found_so_far(table, size, out).values()
            held = Counter(claim["holds"] for claim in json.loads(path.read_text()).get("claims", ()))
            claims = ", ".join(f"{holds} {held[holds]}" for holds in ("yes", "no", "not decided") if held[holds])
            begun = "" if all(cell["seeds"] for cell in cells) else ", begun"
            words.append(word + begun + (f" (claims: {claims})" if claims else ""))
    return " and ".join(words) or "not run"


def write_outcome(paper: Paper, table: Table, size: Size, missing: Mapping[str, str], out: Path) -> Path:
    """Write a table as it stands, as Markdown, JSON and a picture; returns the path of the Markdown.

    missing: what must be put where for data that is not there.
    """
    path, found = path_of(table, size, out), found_so_far(table, size, out)
    raw = {
        (cell.row, cell.column): {
            seed: one["value"] for seed, one in found[f"{cell.row}/{cell.column}"]["seeds"].items()
        }
        for cell in table.cells(size)
    }
    numbers: Values = {} if table.measure == "curve" else {place: _means(seeds) for place, seeds in raw.items()}
    judgements = [(claim, judge(claim, table, size, numbers)) for claim in table.claims] if numbers else []
    claims = [
        {"text": claim.text, "section": claim.section, "holds": judgement.holds, "numbers": judgement.words}
        for claim, judgement in judgements
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = dict(
        paper=paper.title,
        table=table.name,
        scale=size,
        unit=table.unit,
        cells=found,
        claims=claims,
    )
    with replacing(path.with_suffix(".json")) as unfinished:
        unfinished.write_text(json.dumps(facts, indent=1) + "\n")
    picture = path.with_suffix(".png")
    if draw := _drawing(table, size, raw, out):
        with replacing(picture) as unfinished:
            draw(unfinished)
    parts = [
        _head(paper, table, size),
        _numbers(table, size, numbers) if numbers else "",
        f"![{table.title}]({picture.name})" if any(raw.values()) and picture.is_file() else "",
        _claims(claims),
        "\n".join(f"Not here: {where}" for where in missing.values()),
        _cost(found),
    ]
    with replacing(path) as unfinished:
        unfinished.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return path


def _means(seeds: Mapping[str, float | list[float]]) -> dict[str, float]:
    """By seed, a number or the mean of a list."""
    return {seed: statistics.mean(value) if isinstance(value, list) else value for seed, value in seeds.items()}


def _drawing(
    table: Table, size: Size, raw: Mapping[Place, Mapping[str, Any]], out: Path
) -> Callable[[Path], None] | None:
    """Return what draws a table, or None where it has no picture or no number."""
    values = {place: list(seeds.values()) for place, seeds in raw.items() if seeds}
    if not values:
        return None
    if table.measure == "curve":
        return lambda path: draw_curves(path, table, size, values)
    if table.measure == "nuclear-norms":
        return lambda path: draw_histograms(path, table, size, values)
    if _makes_lines(table, size):
        return lambda path: draw_lines(path, table, size, values)
    maps = {  # of the first seed, those that are in run folders, by row and kNN accuracy in the plane
        f"{table.rows[cell.row].title}: {values[cell.row, cell.column][0]:.1f} {table.unit}": place
        for cell in table.cells(size)
        if cell.measure == PLANE
        and (cell.row, cell.column) in values
        and (place := folder_of(cell, 0, out) / f"{PLANE}.png").is_file()
    }
    return (lambda path: draw_pictures(path, maps)) if maps else None


def _makes_lines(table: Table, size: Size) -> bool:
    """Whether the columns are steps of one quantity, such as batch sizes, and the rows few enough to tell apart."""
    columns = table.at(size).columns.values()
    quantities = {(column.metric, column.measure, column.unit) for column in columns}
    return len(columns) > 2 and len(quantities) == 1 and len(table.rows) <= MOST_LINES


def _head(paper: Paper, table: Table, size: Size) -> str:
    scale = table.at(size)
    place = f"{paper.title} ({paper.authors} {paper.year})" if paper.authors else paper.title
    lines = [f"# {table.title}", f"{place}, {table.source}."]
    if size == "small":
        order = (
            " The paper's numbers are there for their order." if any(row.paper for row in table.rows.values()) else ""
        )
        lines.append(f"**Small scale**, not the paper's size: {scale.says}.{order}")
    metrics = {column.metric or scale.metric for column in scale.columns.values()}
    how = (metrics.pop() if len(metrics) == 1 else ", ".join(scale.protocol)) or table.measure
    lines.append(f"In {table.unit or 'numbers'}; {how}; {table.better} is better; mean ± deviation over the seeds.")
    return "\n\n".join(lines)


def _numbers(table: Table, size: Size, values: Values) -> str:
    """Lay the table out: three cells for a column, or where there are many columns three lines for a row."""
    columns = table.at(size).columns.values()
    parts: dict[str, Callable[[Row, Column], str]] = {
        "paper": lambda row, column: _spread(row.paper.get(column.like or column.name)),
        "ours": lambda row, column: _ours(values.get((row.name, column.name), {})),
    }
    if not any(row.paper for row in table.rows.values()):
        del parts["paper"]
    elif size == "full":
        parts["difference"] = lambda row, column: _difference(row, column, values.get((row.name, column.name), {}))
    lines: list[list[str]] = []
    if len(columns) <= 3:
        lines.append(["", *(f"{column.title}, {part}" for column in columns for part in parts)])
        for row in table.rows.values():
            lines.append([row.title, *(show(row, column) for column in columns for show in parts.values())])
    else:
        lines.append(["", "", *(column.title for column in columns)])
        for row in table.rows.values():
            lines += [[row.title, part, *(show(row, column) for column in columns)] for part, show in parts.items()]
    lines = [line for line in lines if any(line[2 if len(columns) > 3 else 1 :])]
    noted: dict[str, list[str]] = {}
    for row in table.rows.values():
        noted.setdefault(row.note, []).append(row.title)
    notes = [f"{'; '.join(titles)}: {note}." for note, titles in noted.items() if note]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "".join(f"\n\n{note}" for note in notes)


def _ours(seeds: Mapping[str, float]) -> str:
    if not seeds:
        return ""
    numbers = list(seeds.values())
    return _spread((statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None))


def _difference(row: Row, column: Column, seeds: Mapping[str, float]) -> str:
    theirs = row.paper.get(column.like or column.name)
    return "" if theirs is None or not seeds else f"{statistics.mean(seeds.values()) - theirs[0]:+.2f}"


def _spread(number: tuple[float, float | None] | None) -> str:
    if number is None:
        return ""
    mean, deviation = number
    digits = 0 if mean == int(mean) and deviation is None else 2
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _claims(claims: Sequence[Mapping[str, str]]) -> str:
    if not claims:
        return ""
    lines = ["| what the paper says | where | holds here | |", "|---|---|---|---|"]
    for one in claims:
        lines.append(f"| {one['text']} | {one['section']} | **{one['holds']}** | {one['numbers']} |")
    return "\n".join(lines)


def _cost(found: Found) -> str:
    """Say how many runs the table took, on what, and one of its commands."""
    runs = {(cell["key"], seed): one for cell in found.values() for seed, one in cell["seeds"].items()}
    if not runs:
        return "Nothing was run."
    measured_in = {
        (cell["key"], cell["reading"], seed): one["seconds"]
        for cell in found.values()
        for seed, one in cell["seeds"].items()
    }
    spent = sum(measured_in.values()) + sum(one.get("training_seconds", 0.0) for one in runs.values())
    where = "; ".join(sorted({one["hardware"] for one in runs.values()}))
    command = next(iter(runs.values()))["commands"]
    return (
        f"{len(runs)} runs, {duration(spent)} in sum, on {where}. The first of them:\n\n```\n"
        + "\n".join(command)
        + "\n```"
    )
