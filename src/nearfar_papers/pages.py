"""Files written of tables: JSON, a Markdown page and a picture of each, and claims.md of all of
them.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.axes
import matplotlib.figure
import matplotlib.image
import numpy as np

from nearfar.atomic import replacing, write_file
from nearfar.methods import computation_of
from nearfar.pages import write_page
from nearfar.progress import duration
from nearfar.training.plan import default_validation
from nearfar.training.request import resolve_method
from nearfar.training.settings import Settings
from nearfar.training.view_choice import views_at
from nearfar.views import ViewPlan
from nearfar_papers.claims import Judgement, Place, Right, Values, holm, judge
from nearfar_papers.negatives import described, draw, judge_law
from nearfar_papers.paper import (
    TRAINED,
    Claim,
    Column,
    Paper,
    Row,
    Table,
    paper_names,
    read_paper,
)
from nearfar_papers.runs import (
    PLANE,
    VERDICTS,
    Known,
    Results,
    commands_of,
    folder_of,
    found_so_far,
    outcome_in,
    path_of,
    resolved,
    unpacked,
    written_in,
)

CLAIMS = "claims.md"
MOST_LINES = 12
PANEL = 4.5, 4.0  # inches
MOST_PANELS = 5  # in a line
BINS = 40
COLOURS = 10  # of the palette of most pictures; beyond, one of twenty
VERDICT_COLOURS = {"yes": "tab:green", "no": "tab:red", "not decided": "gray"}
UNTESTED = ("curve", "last", "effective")  # measures that need no test images
Lists = Mapping[Place, Sequence[Any]]
"""By row and column, the number or the list of each seed."""


def write_outcome(
    paper: Paper, table: Table, missing: Sequence[str], out: Path, known: Known | None = None
) -> Path:
    """Write a table as it stands, as Markdown, JSON and a picture; returns the path of the
    Markdown.

    missing: what must be put where for data that is not there. known: numbers of other tables.
    """
    table = resolved(table, out, known)
    path, results = path_of(table, out), found_so_far(table, out, known)
    seeds = {(cell.row, cell.column): results[cell.place]["seeds"] for cell in table.cells()}
    lists = {
        place: [number["value"] for number in each.values()]
        for place, each in seeds.items()
        if each
    }
    values = {} if table.measure == "curve" else _values(seeds)
    judged = values or _ends(seeds)
    claims = _claims(table, seeds, judged) if judged else []
    facts: dict[str, Any] = {
        "paper": paper.title,
        "table": table.name,
        "title": table.title,
        "scale": table.size,
        "unit": table.unit,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    facts |= {"cells": results, "claims": claims}
    write_file(path.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    picture = path.with_suffix(".png")
    if lists:
        draw_table(picture, table, lists, out, claims)
    metrics = {column.metric or table.metric for column in table.columns.values()}
    runs, spent = _runs_and_seconds(results)
    write_page(
        path,
        "paper_table.md",
        package="nearfar_papers",
        paper=paper,
        table=table,
        paired=any(row.paper for row in table.rows.values()),
        images=_images(paper, table),
        how=(metrics.pop() if len(metrics) == 1 else ", ".join(table.protocol)) or table.measure,
        seeds=_seeds(table, lists),
        lines=_laid_out(table, values, paper.tables[table.name]) if values else [],
        notes=_notes(table) if values else {},
        elsewhere=_elsewhere(paper, table),
        computation=_computation(table) if values else {},
        chosen=_chosen(table),
        predicted=described(table, values) if table.effective and values else {},
        picture=picture.name if lists and picture.is_file() else "",
        claims=claims,
        missing=missing,
        runs=list(runs.values()),
        commands=commands_of(table, results),
        spent=duration(spent),
        hardware=sorted(
            {number.get("hardware", "a machine that was not noted") for number in runs.values()}
        ),
    )
    return path


def _values(seeds: Mapping[Place, Mapping[str, Mapping[str, Any]]]) -> Values:
    """Return the number of each seed by cell, the mean where it has several."""
    return {
        place: {
            seed: statistics.fmean(value) if isinstance(value, list) else value
            for seed, value in ((seed, number["value"]) for seed, number in each.items())
        }
        for place, each in seeds.items()
    }


def _ends(seeds: Mapping[Place, Mapping[str, Mapping[str, Any]]]) -> Values:
    """Return the last number of the curve of each seed by cell, which claims on curves compare."""
    return {
        place: {seed: number["value"][-1] for seed, number in each.items()}
        for place, each in seeds.items()
    }


def _notes(table: Table) -> dict[str, list[str]]:
    """Return the titles of the rows that have a note, by the note; of rows with a line."""
    notes: dict[str, list[str]] = {}
    for row in table.rows.values():
        if row.note and (row.paper or row.name in table.run):
            notes.setdefault(row.note, []).append(row.title)
    return notes


def _elsewhere(paper: Paper, table: Table) -> list[tuple[str, str]]:
    """Return the data of the paper's numbers and that of ours beside them, where they differ."""
    full = paper.tables[table.name]
    beside = [
        (full.columns[column.like or column.name], column)
        for column in table.columns.values()
        if any((column.like or column.name) in row.paper for row in table.rows.values())
    ]
    pairs = {(_data_of(full, theirs), _data_of(table, ours)): None for theirs, ours in beside}
    return [(theirs, ours) for theirs, ours in pairs if theirs and ours and theirs != ours]


def _data_of(table: Table, column: Column) -> str:
    """Name the data of a column: what was trained on, and what was tested on where that differs."""
    tested = {**table.evaluate, **column.evaluate}.get("data")
    names = [str(name).removeprefix("torchvision:") for name in (column.data, tested) if name]
    return " to ".join(names)


def _computation(table: Table) -> dict[str, list[str]]:
    """Return the titles of the rows that are trained by the computation of an image in a step;
    none where all have the same.
    """
    passes: dict[str, set[float]] = {}
    for cell in table.cells():
        if cell.measure in TRAINED and cell.row in table.run:
            settings = Settings.of(**cell.settings)
            method, _ = resolve_method(settings)
            size = settings.crop_size or settings.image_size or 224
            views = views_at(settings, method, size, size, channels=3)
            assert isinstance(views, ViewPlan)  # a file names its views
            own = passes.setdefault(table.rows[cell.row].title, set())
            own.add(round(computation_of(method, views, size), 1))
    titles: dict[str, list[str]] = {}
    for title, own in sorted(passes.items(), key=lambda item: min(item[1])):
        several = f" to {max(own):.1f}" if len(own) > 1 else ""
        titles.setdefault(f"{min(own):.1f}{several}", []).append(title)
    return titles if len(titles) > 1 else {}


def _runs_and_seconds(results: Results) -> tuple[dict[tuple[str, str], dict[str, Any]], float]:
    """Return the runs of a table by key and seed, and the seconds that all of it took."""
    numbers = [
        (cell, seed, number) for cell in results.values() for seed, number in cell["seeds"].items()
    ]
    runs = {(cell["key"], seed): number for cell, seed, number in numbers}
    measured = {
        (cell["key"], cell["reading"], seed): number["seconds"] for cell, seed, number in numbers
    }
    trained = sum(number.get("training_seconds", 0.0) for number in runs.values())
    return runs, sum(measured.values()) + trained


def _claims(
    table: Table,
    seeds: Mapping[Place, Mapping[str, Mapping[str, Any]]],
    values: Values,
) -> list[dict[str, Any]]:
    """Judge the claims of a table. seeds: what was measured, by cell and seed; values: the numbers
    of it.
    """
    right = {
        place: {
            seed: unpacked(number["right"]) for seed, number in each.items() if "right" in number
        }
        for place, each in seeds.items()
    }
    return [_judged(claim, _verdict(claim, table, values, right)) for claim in table.claims]


def _verdict(claim: Claim, table: Table, values: Values, right: Right | None = None) -> Judgement:
    if claim.law is not None:
        return judge_law(claim.law, table, values)
    return judge(claim, table, values, right)


def _judged(claim: Claim, judgement: Judgement) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "text": claim.text,
        "section": claim.section,
        "holds": judgement.holds,
        "numbers": judgement.words,
    }
    numbers: dict[str, Any] = {"difference": judgement.difference, "p": judgement.p}
    facts |= {
        name: float(f"{number:.6g}") for name, number in numbers.items() if number is not None
    }
    if judgement.interval:
        facts["interval"] = [float(f"{end:.6g}") for end in judgement.interval]
    if judgement.missed and judgement.met:
        facts |= {"met": list(judgement.met), "missed": list(judgement.missed)}
    if claim.later:
        facts["later"] = True
    return facts


def _chosen(table: Table) -> dict[str, str]:
    """Say what was chosen for each row, by its title; of each column where they differ. Three rows
    or more of the same trials stand under what their titles begin with.
    """
    choices = {}
    sharing = Counter(row.among for row in table.rows.values() if row.among)
    for row in (table.rows[name] for name in table.run if table.choices):
        titles = {
            column.title: table.choices[f"{row.name}/{column.name}"]
            for column in table.columns.values()
        }
        same = len(set(titles.values())) == 1
        title = row.title.partition(",")[0] if sharing[row.among] > 2 else row.title
        choices[title] = (
            next(iter(titles.values())) if same else "; ".join(map(": ".join, titles.items()))
        )
    return choices


def _images(paper: Paper, table: Table) -> list[str]:
    """Say how many images each data set of the table has, and how many are used."""
    lines: dict[str, None] = {}
    for cell in table.cells():
        name, other = str(cell.settings.get("data")), str(cell.evaluate.get("data", ""))
        if cell.measure in (*TRAINED, "short", "effective") and name in paper.images:
            train, test = paper.images[name]
            used = min(cell.settings.get("limit") or train, train)
            held = cell.settings.get("held_out", default_validation(used))
            whole = "" if used == train else f" of {train}"
            words = (
                f"{name}, {used}{whole} training images ({held} held out of "
                f"pretraining for its health)"
            )
            if cell.evaluate.get("held_out"):
                words += f", tested on {cell.evaluate['held_out']} further training images"
            elif other in paper.images:
                part = f"{cell.evaluate['limit']} of " if "limit" in cell.evaluate else ""
                words += ", evaluated on {}, {}{} training and {} test images".format(
                    other, part, *paper.images[other]
                )
            elif not other and cell.measure not in UNTESTED:
                words += f", {test} test images"
            lines[words] = None
    return list(lines)


def _seeds(table: Table, lists: Lists) -> str:
    """Say over how many seeds the means are, and how differences are taken where some cells have
    more than others; empty where nothing was run.
    """
    counts = [len(numbers) for numbers in lists.values()]
    least, most = min(counts, default=0), max(counts, default=0)
    if table.measure == "curve" and most:
        return f"a line for each of {most} seeds"
    if most < 2:
        return "one run of each cell" if most else ""
    if least == most:
        return f"mean ± deviation over {most} seeds"
    return (
        f"mean ± deviation over {least} to {most} seeds; a difference is estimated within seeds, "
        "and is not that of the means where the seeds are others"
    )


def _laid_out(table: Table, values: Values, full: Table) -> list[list[str]]:
    """The lines of the table: three cells for a column, or where there are many columns three lines
    for a row. full: the table at the paper's size, whose columns the paper's numbers are of.
    """
    columns, rows = list(table.columns.values()), table.rows.values()

    def shown(row: Row, column: Column) -> list[str]:
        theirs = row.paper.get(column.like or column.name)
        ours = list(values.get((row.name, column.name), {}).values())
        cells = [_spread(theirs)] if paired else []
        cells.append(_spread(_mean_and_deviation(ours)))
        if paired and table.size == "full":
            cells.append(f"{statistics.mean(ours) - theirs[0]:+.2f}" if theirs and ours else "")
        return cells

    paired = any(row.paper for row in rows)
    parts = ["paper", "ours", "difference"][: 2 + (table.size == "full")] if paired else ["ours"]
    if len(columns) > 3:
        lines = [["", "", *(column.title for column in columns)]]
        for row in rows:
            by_part = zip(*(shown(row, column) for column in columns), strict=True)
            lines += [
                [row.title, part, *cells]
                for part, cells in zip(parts, by_part, strict=True)
                if any(cells)
            ]
    else:
        theirs = {c.name: full.columns.get(c.like or c.name, c).title for c in columns}
        titles = [
            f"{theirs[column.name] if part == 'paper' else column.title}, {part}"
            for column in columns
            for part in parts
        ]
        lines = [["", *titles]]
        for row in rows:
            if any(cells := [cell for column in columns for cell in shown(row, column)]):
                lines.append([row.title, *cells])
    return [lines[0], ["---"] * len(lines[0]), *lines[1:]]


def _mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float | None] | None:
    if not numbers:
        return None
    return statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None


def _spread(number: tuple[float, float | None] | None) -> str:
    if number is None:
        return ""
    mean, deviation = number
    digits = 0 if mean == int(mean) and deviation is None else 2 if abs(mean) >= 0.1 else 3
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def write_claims(out: Path) -> Path:
    """Write claims.md into a folder of tables, and return its path."""
    papers = claims_in(out)
    every = [claim for claims in papers.values() for claim in claims]
    tested = [claim for claim in every if "p" in claim]
    sums = {name: Counter(claim["holds"] for claim in claims) for name, claims in papers.items()}
    write_page(
        out / CLAIMS,
        "paper_claims.md",
        package="nearfar_papers",
        papers=papers,
        sums=sums | {"all": sum(sums.values(), Counter())},
        verdicts=VERDICTS,
        tested=len(tested),
        decided=sum(bool(claim["holm"]) for claim in tested),
        survive=sum(claim["holm"] == "survives" for claim in tested),
        later=sum("later" in claim for claim in tested),
        part=Counter(claim["holds"] for claim in every if claim.get("missed")),
    )
    return out / CLAIMS


def claims_in(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the claims of all tables in a folder by the title of their paper, each with its table,
    its page and, where it is decided, whether it survives Holm's correction for all of them.

    Of a paper that comes with nearfar, also the claims of tables that were not run.
    """
    papers: dict[str, list[dict[str, Any]]] = {}
    written = tables_in(out)
    for path, table in sorted({**_not_run(written), **written}.items(), key=_in_order):
        title = path.stem.split(".")[0].replace("-", " ").capitalize()
        page = path.with_suffix(".md").as_posix() if path in written else ""
        papers.setdefault(table["paper"], []).extend(
            {**claim, "table": title, "page": page, "holm": ""} for claim in table["claims"]
        )
    tested = [claim for claims in papers.values() for claim in claims if "p" in claim]
    for claim, survives in zip(tested, holm([claim["p"] for claim in tested]), strict=True):
        if claim["holds"] in ("yes", "no"):
            claim["holm"] = "survives" if survives else "does not"
    return {name: claims for name, claims in papers.items() if claims}


def _not_run(written: Iterable[Path]) -> dict[Path, dict[str, Any]]:
    """Return the tables without any JSON, as they would be written, of papers that have some."""
    has = {(path.parent.name, path.stem.split(".")[0]) for path in written}
    lacking: dict[Path, dict[str, Any]] = {}
    for name in sorted({paper for paper, _ in has} & {*paper_names()}):
        paper = read_paper(name)
        for table in (table for table in paper.tables.values() if (name, table.name) not in has):
            claims = [_judged(claim, _verdict(claim, table, {})) for claim in table.claims]
            data = ", ".join(dict.fromkeys(c.data for c in table.columns.values() if c.data))
            for claim in claims:
                if claim["holds"] == "not run":
                    needs = "; ".join(filter(None, (data, table.needs)))
                    claim["numbers"] = f"not run here; the table needs {needs}"
            where = Path(name, f"{table.name}.json")
            lacking[where] = {"paper": paper.title, "claims": claims}
    return lacking


def _in_order(item: tuple[Path, Any]) -> list[tuple[str, int]]:
    """A key that puts Table 9 before Table 10."""
    return [
        (word, int(digits or 0)) for word, digits in re.findall(r"(\D+)(\d*)", item[0].as_posix())
    ]


def tables_in(out: Path) -> dict[Path, dict[str, Any]]:
    """Return what was written of each table, by the path of its JSON in the folder."""
    tables = {path.relative_to(out): outcome_in(path) for path in written_in(out)}
    return dict(sorted(((path, table) for path, table in tables.items() if table), key=_in_order))


def draw_table(
    path: Path,
    table: Table,
    values: Lists,
    out: Path,
    claims: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a PNG of a figure, of a table with a question, or whose columns are steps of one
    quantity; else none.

    out: folder of the runs, some of which have pictures of their own. claims: the table's, with
    their verdicts; those of a table with a question are drawn as differences with intervals.
    """
    columns = table.columns.values()
    kinds = {
        (column.data, column.run.get("encoder"), column.metric, column.measure, column.unit)
        for column in columns
    }
    cells = [cell for cell in table.cells() if cell.measure == PLANE]
    # of the first seed, those that are in run folders, by row and kNN accuracy in the plane
    maps = {
        f"{table.rows[cell.row].title}: {values[cell.row, cell.column][0]:.1f} "
        f"{table.unit}": picture
        for cell in cells
        if (cell.row, cell.column) in values
        and (picture := folder_of(cell, 0, out) / f"{PLANE}.png").is_file()
    }
    tested = [claim for claim in claims if "interval" in claim]
    if table.effective is not None:
        by_place = {
            place: {str(seed): number for seed, number in enumerate(numbers)}
            for place, numbers in values.items()
        }
        figure = draw(table, by_place)
    elif table.measure in ("curve", "nuclear-norms"):
        figure = _by_column(table, values)
    elif table.question and tested:
        steps = len(columns) > 2 and len(kinds) == 1 and _places(table) is not None
        figure = _differences(table, tested, values if steps else {})
    elif len(columns) > 2 and len(kinds) == 1 and len(table.rows) <= MOST_LINES:
        figure = _over_columns(table, values)
    elif maps:
        figure = side_by_side(maps)
    elif (table.question or table.name.startswith("figure")) and not cells:
        figure = _over_rows(table, values)
    else:
        return
    with replacing(path) as unfinished:
        figure.savefig(unfinished)


def _panels(
    count: int, most: int = MOST_PANELS
) -> tuple[matplotlib.figure.Figure, list[matplotlib.axes.Axes]]:
    """A figure with so many panels, at most `most` in a line."""
    lines = -(-count // most)
    across = -(-count // lines)
    figure = matplotlib.figure.Figure(
        (1 + PANEL[0] * across, PANEL[1] * lines), 120, layout="constrained"
    )
    panels = list(figure.subplots(lines, across, squeeze=False).flat)
    for unused in panels[count:]:
        unused.set_axis_off()
    return figure, panels[:count]


def _means_and_spread(lists: Iterable[Sequence[float]]) -> tuple[list[float], list[float]]:
    pairs = [_mean_and_deviation(seeds) or (0.0, None) for seeds in lists]
    return [mean for mean, _ in pairs], [deviation or 0.0 for _, deviation in pairs]


def _over_columns(table: Table, values: Lists) -> matplotlib.figure.Figure:
    """The means over the columns with their deviations; the paper's full-scale numbers dashed."""
    figure, (axes,) = _panels(1)
    paper = table.size == "full" and any(row.paper for row in table.rows.values())
    _draw_lines(axes, table, values, deviations=True)
    axes.set_title(table.title + " (dashed: the paper)" * paper, size="medium", wrap=True)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))  # beside the lines
    return figure


def _places(table: Table) -> list[float] | None:
    """Return the one setting of the columns that rises from each to the next, to fourfold or more;
    None without one.
    """
    columns = list(table.columns.values())
    names = {name for column in columns for name in column.run}
    settings = {name: [column.run.get(name) for column in columns] for name in sorted(names)}
    varied = [each for each in settings.values() if any(value != each[0] for value in each)]
    if len(varied) != 1 or not all(isinstance(value, (int, float)) for value in varied[0]):
        return None
    numbers = [float(value) for value in varied[0] if value is not None]
    rises = all(x < y for x, y in itertools.pairwise(numbers))
    return numbers if rises and 0 < 4 * numbers[0] <= numbers[-1] else None


def _draw_lines(
    axes: matplotlib.axes.Axes, table: Table, values: Lists, deviations: bool = False
) -> None:
    """Draw a line of its own colour for each row over the columns, on logarithms where the columns
    rise to fourfold; memory and time on logarithms too.
    """
    columns = list(table.columns.values())
    places = _places(table) or list(range(len(columns)))
    rows = list(table.rows.values())
    paper = table.size == "full"
    colours = matplotlib.colormaps["tab10" if len(rows) <= COLOURS else "tab20"]
    for number, row in enumerate(rows):
        style: dict[str, Any] = {"color": colours(number), "label": row.title}
        ours = {
            place: _mean_and_deviation(values[row.name, column.name])
            for place, column in zip(places, columns, strict=True)
            if values.get((row.name, column.name))
        }
        means = [mean for mean, _ in filter(None, ours.values())]
        spread = [deviation or 0.0 for _, deviation in filter(None, ours.values())]
        if means:
            marker = "osD^v"[number % 5]
            axes.errorbar(
                list(ours), means, spread if deviations else None, marker=marker, capsize=3, **style
            )
        theirs = {
            place: row.paper[column.name][0]
            for place, column in zip(places, columns, strict=True)
            if column.name in row.paper
        }
        if theirs and paper:
            axes.plot(
                list(theirs), list(theirs.values()), color=style["color"], linestyle="--", alpha=0.6
            )
    if _places(table):
        axes.set_xscale("log", base=2)
    axes.set_xticks(places, [column.title for column in columns], fontsize=8)
    axes.minorticks_off()
    if table.measure.endswith(("-memory", "-time")):
        axes.set_yscale("log")
    axes.set(ylabel=", ".join(filter(None, (table.metric or table.measure, table.unit))))


def _differences(
    table: Table, tested: Sequence[Mapping[str, Any]], values: Lists
) -> matplotlib.figure.Figure:
    """The difference of each tested claim with its 95 per cent interval, coloured by its verdict,
    and the bound that it is compared with; before it the means of `values`, if any.
    """
    bounds = {claim.text: _bound(claim, table) for claim in table.claims}
    height = max(PANEL[1], 0.8 + 0.32 * len(tested))
    figure = matplotlib.figure.Figure((11.5 if values else 8.5, height), 120, layout="constrained")
    ratios = [1.0, 1.3] if values else [1.0]
    panels = list(figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios).flat)
    if values:
        _draw_lines(panels[0], table, values)
        panels[0].legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    axes = panels[-1]
    for place, claim in enumerate(tested):
        low, high = claim["interval"]
        colour = VERDICT_COLOURS[claim["holds"]]
        axes.plot([low, high], [place, place], color=colour, linewidth=2)
        axes.plot(claim["difference"], place, "o", color=colour)
        for bound in bounds[claim["text"]]:
            axes.plot([bound, bound], [place - 0.35, place + 0.35], color="black", linewidth=1.5)
    axes.axvline(0, color="lightgray", zorder=0)
    axes.set_yticks(
        range(len(tested)),
        ["\n".join(textwrap.wrap(claim["text"], 66)) for claim in tested],
        fontsize=7,
    )
    axes.invert_yaxis()
    units = dict.fromkeys(table.unit_of(column) for column in table.columns.values())
    axes.set_xlabel(
        f"{'ratio' if table.ratio else 'difference'}, {' or '.join(filter(None, units))}; "
        "black: the claim's bound",
        fontsize=8,
    )
    for verdict, colour in VERDICT_COLOURS.items():
        axes.plot([], [], "o-", color=colour, label=verdict)
    axes.legend(fontsize=7, title="the claim holds", title_fontsize=7)
    return figure


def _bound(claim: Claim, table: Table) -> tuple[float, ...]:
    """Return what the difference of a claim is compared with."""
    if claim.within is not None:
        return (-claim.within[2], claim.within[2])
    margin = claim.not_worse[2] if claim.not_worse is not None else 0.0
    return (-margin if table.better == "higher" else margin,)


def _over_rows(table: Table, values: Lists) -> matplotlib.figure.Figure:
    """A panel for each column, with a row's mean and deviation on a line; of two columns, also one
    over the other.
    """
    columns = [
        column for column in table.columns.values() if column.name in {name for _, name in values}
    ]
    rows = [
        row
        for row in table.rows.values()
        if all(values.get((row.name, column.name)) for column in columns)
    ]
    names, colours = [row.title for row in rows], [f"C{number}" for number in range(len(rows))]
    summaries = [
        _means_and_spread(values[row.name, column.name] for row in rows) for column in columns
    ]
    figure, panels = _panels(len(columns) + (len(columns) == 2))
    for axes, column, (means, spread) in zip(panels, columns, summaries, strict=False):
        axes.errorbar(means, names, xerr=spread, fmt="none", ecolor="gray", capsize=3)
        axes.scatter(means, names, color=colours, zorder=3)
        place = axes.get_subplotspec()
        axes.tick_params(axis="y", left=False, labelleft=place is None or place.is_first_col())
        axes.set(title=column.title, xlabel=table.unit_of(column))
        axes.invert_yaxis()
    if len(columns) == 2:
        panels[2].scatter(summaries[0][0], summaries[1][0], color=colours)
        panels[2].set(xlabel=columns[0].title, ylabel=columns[1].title)
    return figure


def _by_column(table: Table, values: Lists) -> matplotlib.figure.Figure:
    """A panel for each column: for each row a line for each seed, or a histogram of the lists of
    all seeds together.
    """
    epochs = {cell.settings.get("epochs") for cell in table.cells()}
    length = epochs.pop() if len(epochs) == 1 else None
    figure, panels = _panels(len(table.columns))
    for axes, column in zip(panels, table.columns.values(), strict=True):
        rows = {
            row.title: seeds
            for row in table.rows.values()
            if (seeds := values.get((row.name, column.name)))
        }
        edges = np.histogram_bin_edges(
            np.concatenate([of_seed for seeds in rows.values() for of_seed in seeds]), BINS
        ).tolist()
        for number, (title, seeds) in enumerate(rows.items()):
            if table.measure == "curve":
                for place, curve in enumerate(seeds):  # measured at equal distances
                    x = np.arange(1, len(curve) + 1) * (length / len(curve) if length else 1)
                    axes.plot(x, curve, color=f"C{number % 10}", label=None if place else title)
            else:
                numbers = np.concatenate(seeds)
                share = np.full(len(numbers), 100 / len(numbers))
                axes.hist(numbers, edges, weights=share, histtype="step", label=title)
        axes.set(title=column.title, xlabel=table.unit_of(column), ylabel="% of the images")
        if table.measure == "curve":
            axes.set(xlabel="epoch" if length else "measurement", ylabel=table.unit_of(column))
        axes.legend(fontsize=8)
    return figure


def side_by_side(pictures: Mapping[str, Path]) -> matplotlib.figure.Figure:
    """Pictures two in a line, each under its title."""
    figure, panels = _panels(len(pictures), 2)
    for axes, (title, picture) in zip(panels, pictures.items(), strict=True):
        axes.set_axis_off()
        axes.imshow(matplotlib.image.imread(picture))
        axes.set_title(title)
    return figure
