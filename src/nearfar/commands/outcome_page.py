"""The Markdown of a table: its head, "paper | ours", the claims, and what it cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearfar.commands.fitting import MOST_HELD_OUT, SHARE_HELD_OUT
from nearfar.papers import TRAINED, Column, Paper, Row, Size, Table, Values
from nearfar.training.progress import duration

Found = dict[str, dict[str, Any]]
"""By "row/column": the key of the run, and by seed its value, seconds, commands and hardware."""


def head(paper: Paper, table: Table, size: Size) -> str:
    """Say what the table is, from where, at which scale and in what."""
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
    lines += _images(paper, table, size)
    lines.append(f"In {table.unit or 'numbers'}; {how}; {table.better} is better; mean ± deviation over the seeds.")
    return "\n\n".join(lines)


def _images(paper: Paper, table: Table, size: Size) -> list[str]:
    """Say how many images each data set of the table has, and how many are used."""
    found: dict[str, None] = {}
    for cell in table.cells(size):
        name, other = str(cell.settings.get("data")), str(cell.evaluate.get("data", ""))
        if cell.measure in TRAINED and name in paper.images:
            train, test = paper.images[name]
            used = min(cell.settings.get("limit") or train, train)
            held = cell.settings.get("held_out", min(MOST_HELD_OUT, used // SHARE_HELD_OUT))
            whole = "" if used == train else f" of {train}"
            words = f"{name}, {used}{whole} training images ({held} held out of pretraining for its health)"
            if cell.evaluate.get("held_out"):
                words += f", tested on {cell.evaluate['held_out']} further training images"
            elif other in paper.images:
                words += ", evaluated on {}, {} training and {} test images".format(other, *paper.images[other])
            elif not other:
                words += f", {test} test images"
            found[words] = None
    return [f"Images: {'; '.join(found)}."] if found else []


def laid_out(table: Table, size: Size, values: Values) -> str:
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


def judged(claims: Sequence[Mapping[str, str]]) -> str:
    """Lay the claims out as a table; an empty text where there are none."""
    if not claims:
        return ""
    lines = ["| what the paper says | where | holds here | |", "|---|---|---|---|"]
    for one in claims:
        lines.append(f"| {one['text']} | {one['section']} | **{one['holds']}** | {one['numbers']} |")
    return "\n".join(lines)


def cost(found: Found) -> str:
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
    where = "; ".join(sorted({one.get("hardware", "a machine that was not noted") for one in runs.values()}))
    command = next(iter(runs.values()))["commands"]
    return (
        f"{len(runs)} runs, {duration(spent)} in sum, on {where}. The first of them:\n\n```\n"
        + "\n".join(command)
        + "\n```"
    )
