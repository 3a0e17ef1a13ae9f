"""A table as a picture: a line a row over the columns, or over the epochs of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.figure

from nearfar.papers.paper import Size, Table

Values = Mapping[tuple[str, str], Sequence[float | Sequence[float]]]


def draw_lines(path: Path, table: Table, size: Size, values: Values) -> None:
    """Write a PNG with the mean of each cell and its deviation; lists, as of the measure "curve", over their places.

    values: by row and column, the number or list of each seed. The paper's numbers are dashed.
    """
    columns, lists = (
        table.at(size).columns,
        any(isinstance(one, Sequence) for seeds in values.values() for one in seeds),
    )
    panels = list(columns) if lists else [""]
    figure = matplotlib.figure.Figure(figsize=(1 + 4.5 * len(panels), 4), dpi=120, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, row in enumerate(table.rows.values()):
            colour = f"C{number % 10}"
            if lists:
                for seed in values.get((row.name, panel), ()):
                    axes.plot(range(1, len(seed) + 1), seed, color=colour, label=row.title)  # type: ignore[arg-type]
                continue
            means = {c: statistics.mean(v) for c in columns if (v := values.get((row.name, c), ()))}  # type: ignore[type-var]
            spreads = [statistics.stdev(values[row.name, c]) if len(values[row.name, c]) > 1 else 0.0 for c in means]  # type: ignore[type-var]
            if means:
                titles = [columns[c].title for c in means]
                axes.errorbar(
                    titles, list(means.values()), spreads, color=colour, marker="o", capsize=3, label=row.title
                )  # type: ignore[arg-type]
            paper = {
                columns[c].title: row.paper[columns[c].like or c][0]
                for c in columns
                if (columns[c].like or c) in row.paper
            }
            if paper and size == "full":
                axes.plot(list(paper), list(paper.values()), color=colour, linestyle="--", alpha=0.6)
        axes.set(ylabel=table.unit, title=columns[panel].title if lists else "", xlabel="measurement" if lists else "")
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        axes.legend(once.values(), once.keys(), fontsize=8)
    figure.savefig(path)
