"""What is written of a table: the numbers so far and the claims as JSON and Markdown, and a picture."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nearfar.atomic import replacing
from nearfar.commands.cells import PLANE, PRETRAINED, folder_of, measured, measurements, unpacked
from nearfar.commands.claims_page import VERDICTS
from nearfar.commands.outcome_page import Found, cost, head, judged, laid_out
from nearfar.messages import first_line
from nearfar.papers import (
    SIZES,
    Cell,
    Claim,
    Judgement,
    Paper,
    Place,
    Size,
    Table,
    Values,
    draw_curves,
    draw_histograms,
    draw_lines,
    draw_pictures,
    draw_rows,
    judge,
)

MOST_LINES = 12
COMMITTED = Path(__file__).parents[3] / "docs" / "papers"
"""The numbers that come with the source; not there where only the package is installed."""


def path_of(table: Table, size: Size, out: Path) -> Path:
    """Return where a table is written, as Markdown; with .json and .png beside it."""
    return out / table.paper / f"{table.name}{'' if size == 'full' else '.small'}.md"


Known = Mapping[tuple[str, str], Mapping[str, Any]]
"""By the key of a run and what was read from it: the number of each seed."""


def known_in(out: Path) -> Known:
    """Return the numbers of all tables in a folder: what one table has, others with the same runs need not run."""
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(out.glob("*/*.json")):
        for cell in _cells_in(path).values():
            same = known.setdefault((cell["key"], cell["reading"]), {})
            # where two tables have one, that with its versions is newer
            same.update({seed: one for seed, one in cell["seeds"].items() if "versions" in one or seed not in same})
    return known


def _cells_in(path: Path) -> dict[str, Any]:
    try:
        cells: dict[str, Any] = json.loads(path.read_text())["cells"] if path.is_file() else {}
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {first_line(error)}; remove it, its runs are kept") from error
    return cells


def found_so_far(table: Table, size: Size, out: Path, known: Known | None = None) -> Found:
    """Return the numbers of a table: those written before, of runs with the same settings, and those of run folders.

    known: numbers of other tables; their own come first.
    """
    before = _cells_in(path_of(table, size, out).with_suffix(".json"))
    found: Found = {}
    for cell in table.cells(size):
        name = f"{cell.row}/{cell.column}"
        old = before.get(name, {})
        same = old.get("key") == cell.key and old.get("reading") == cell.reading
        seeds = dict((known or {}).get((cell.key, cell.reading), {})) | (old["seeds"] if same else {})
        found[name] = {"key": cell.key, "reading": cell.reading, "seeds": seeds}
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
    """Whether a cell has its number for a seed; one without versions is older than the random samples of `limit`."""
    number = found[f"{cell.row}/{cell.column}"]["seeds"].get(str(seed))
    return number is not None and ("versions" in number or "limit" not in cell.settings)


def state_of(table: Table, out: Path) -> str:
    """Say in words whether a table was run, such as "small scale, begun" or "not run", and which claims hold.

    Of a table that was not run into `out`, the numbers that come with the source of nearfar are described.
    """
    own = _state_in(table, out)
    came = "" if own else _state_in(table, COMMITTED)
    return own or (f"{came}, in {'/'.join(COMMITTED.parts[-2:])}" if came else "not run")


def _state_in(table: Table, out: Path) -> str:
    words = []
    for size, word in zip(SIZES, ("run", "small scale"), strict=True):
        path = path_of(table, size, out).with_suffix(".json")
        if path.is_file():
            cells = found_so_far(table, size, out).values()
            held = Counter(claim["holds"] for claim in json.loads(path.read_text()).get("claims", ()))
            claims = ", ".join(f"{holds} {held[holds]}" for holds in VERDICTS if held[holds])
            begun = "" if all(cell["seeds"] for cell in cells) else ", begun"
            words.append(word + begun + (f" (claims: {claims})" if claims else ""))
    return " and ".join(words)


def write_outcome(
    paper: Paper, table: Table, size: Size, missing: Mapping[str, str], out: Path, known: Known | None = None
) -> Path:
    """Write a table as it stands, as Markdown, JSON and a picture; returns the path of the Markdown.

    missing: what must be put where for data that is not there. known: numbers of other tables.
    """
    path, found = path_of(table, size, out), found_so_far(table, size, out, known)
    raw = {
        (cell.row, cell.column): {
            seed: one["value"] for seed, one in found[f"{cell.row}/{cell.column}"]["seeds"].items()
        }
        for cell in table.cells(size)
    }
    numbers: Values = {} if table.measure == "curve" else {place: _means(seeds) for place, seeds in raw.items()}
    right = {
        (cell.row, cell.column): {
            seed: unpacked(one["right"])
            for seed, one in found[f"{cell.row}/{cell.column}"]["seeds"].items()
            if "right" in one
        }
        for cell in table.cells(size)
    }
    claims = [_judged(claim, judge(claim, table, size, numbers, right)) for claim in table.claims] if numbers else []
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = dict(
        paper=paper.title,
        table=table.name,
        title=table.title,
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
        head(paper, table, size),
        laid_out(table, size, numbers) if numbers else "",
        f"![{table.title}]({picture.name})" if any(raw.values()) and picture.is_file() else "",
        judged(claims),
        "\n".join(f"Not here: {where}" for where in missing.values()),
        cost(found),
    ]
    with replacing(path) as unfinished:
        unfinished.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return path


def _judged(claim: Claim, judgement: Judgement) -> dict[str, Any]:
    told: dict[str, Any] = {"text": claim.text, "section": claim.section}
    told |= {"holds": judgement.holds, "numbers": judgement.words}
    numbers: dict[str, Any] = {"difference": judgement.difference, "p": judgement.p}
    told |= {name: float(f"{number:.6g}") for name, number in numbers.items() if number is not None}
    return told | ({"interval": [float(f"{end:.6g}") for end in judgement.interval]} if judgement.interval else {})


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
    if maps:
        return lambda path: draw_pictures(path, maps)
    if table.name.startswith("figure") and PLANE not in {cell.measure for cell in table.cells(size)}:
        return lambda path: draw_rows(path, table, size, values)
    return None


def _makes_lines(table: Table, size: Size) -> bool:
    """Whether the columns are steps of one quantity, such as batch sizes, and the rows few enough to tell apart."""
    columns = table.at(size).columns.values()
    kinds = {(one.data, one.run.get("encoder"), one.metric, one.measure, one.unit) for one in columns}
    return len(columns) > 2 and len(kinds) == 1 and len(table.rows) <= MOST_LINES
