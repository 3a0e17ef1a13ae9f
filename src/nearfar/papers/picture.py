"""A table as a picture: lines over columns, rows or a run, histograms, or the pictures of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.axes
import matplotlib.figure
import matplotlib.image
import numpy as np

from nearfar.papers.paper import Size, Table

PANEL, HEIGHT = 4.5, 4.0  # inches
BINS = 40


def draw_lines(path: Path, table: Table, size: Size, values: Mapping[tuple[str, str], Sequence[float]]) -> None:
    """Write a PNG of the mean of each cell, and its deviation, over the columns; the paper's full-scale numbers dashed.

    values: by row and column, the number of each seed.
    """
    columns = table.at(size).columns.values()
    figure, (axes,) = _panels(1)
    paper = size == "full" and any(row.paper for row in table.rows.values())
    for number, row in enumerate(table.rows.values()):
        colour = f"C{number % 10}"
        ours = {column.title: seeds for column in columns if (seeds := values.get((row.name, column.name)))}
        if ours:
            means = [statistics.mean(seeds) for seeds in ours.values()]
            spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in ours.values()]
            axes.errorbar(list(ours), means, spread, color=colour, marker="o", capsize=3, label=row.title)
        theirs = {column.title: row.paper[column.name][0] for column in columns if column.name in row.paper}
        if theirs and paper:
            axes.plot(list(theirs), list(theirs.values()), color=colour, linestyle="--", alpha=0.6)
    measured = table.at(size).metric or table.measure
    axes.set(ylabel=", ".join(filter(None, (measured, table.unit))))
    axes.set_title(table.title + " (dashed: the paper)" * paper, size="medium", wrap=True)
    axes.legend(fontsize=8)
    figure.savefig(path)


def draw_rows(path: Path, table: Table, size: Size, values: Mapping[tuple[str, str], Sequence[float]]) -> None:
    """Write a PNG with a panel for each column, of means and deviations over the rows; of two, also one over the other.

    values: by row and column, the number of each seed.
    """
    measured = {column for _, column in values}
    columns = [column for column in table.at(size).columns.values() if column.name in measured]
    rows = [row for row in table.rows.values() if all(values.get((row.name, column.name)) for column in columns)]
    names = [row.title for row in rows]
    means = [[statistics.mean(values[row.name, column.name]) for row in rows] for column in columns]
    figure, panels = _panels(len(columns) + (len(columns) == 2))
    for axes, column, heights in zip(panels, columns, means, strict=False):
        found = [values[row.name, column.name] for row in rows]
        spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in found]
        axes.errorbar(names, heights, spread, marker="o", capsize=3)
        axes.tick_params(axis="x", rotation=45)
        axes.set(title=column.title, ylabel=column.unit or table.unit)
    if len(columns) == 2:
        panels[2].scatter(*means)
        for x, y, name in zip(*means, names, strict=True):
            panels[2].annotate(name, (x, y), (4, 4), textcoords="offset points", fontsize=7)
        panels[2].set(xlabel=columns[0].title, ylabel=columns[1].title)
    figure.savefig(path)


def draw_curves(
    path: Path, table: Table, size: Size, values: Mapping[tuple[str, str], Sequence[Sequence[float]]]
) -> None:
    """Write a PNG with a panel for each column and a line for each seed of a row.

    values: by row and column, the list of each seed, as the measure "curve" gives it.
    """
    columns = table.at(size).columns.values()
    epochs = {cell.settings.get("epochs") for cell in table.cells(size)}
    length = epochs.pop() if len(epochs) == 1 else None
    figure, panels = _panels(len(columns))
    for axes, column in zip(panels, columns, strict=True):
        for number, row in enumerate(table.rows.values()):
            for place, curve in enumerate(values.get((row.name, column.name), ())):
                title = None if place else row.title
                x = np.arange(1, len(curve) + 1) * (length / len(curve) if length else 1)  # measured at equal distances
                axes.plot(x, curve, color=f"C{number % 10}", label=title)
        axes.set(title=column.title, xlabel="epoch" if length else "measurement", ylabel=column.unit or table.unit)
        axes.legend(fontsize=8)
    figure.savefig(path)


def draw_histograms(
    path: Path, table: Table, size: Size, values: Mapping[tuple[str, str], Sequence[Sequence[float]]]
) -> None:
    """Write a PNG with a panel for each column and a histogram for each row, of the lists of all seeds together."""
    columns = table.at(size).columns.values()
    figure, panels = _panels(len(columns))
    for axes, column in zip(panels, columns, strict=True):
        rows = {
            row.title: np.concatenate(found)
            for row in table.rows.values()
            if (found := values.get((row.name, column.name)))
        }
        edges = np.histogram_bin_edges(np.concatenate(list(rows.values())), BINS)
        for title, numbers in rows.items():
            axes.hist(
                numbers, edges.tolist(), weights=np.full(len(numbers), 100 / len(numbers)), histtype="step", label=title
            )
        axes.set(title=column.title, xlabel=column.unit or table.unit, ylabel="% of the images")
        axes.legend(fontsize=8)
    figure.savefig(path)


def draw_pictures(path: Path, pictures: Mapping[str, Path]) -> None:
    """Write a PNG of pictures two side by side, each under its title."""
    lines = -(-len(pictures) // 2)
    figure = matplotlib.figure.Figure(figsize=(13, 5 * lines), dpi=100, layout="constrained")
    panels = list(figure.subplots(lines, 2, squeeze=False).flat)
    for axes in panels:
        axes.set_axis_off()
    for axes, (title, picture) in zip(panels, pictures.items(), strict=False):
        axes.imshow(matplotlib.image.imread(picture))
        axes.set_title(title)
    figure.savefig(path)


def _panels(count: int) -> tuple[matplotlib.figure.Figure, list[matplotlib.axes.Axes]]:
    figure = matplotlib.figure.Figure(figsize=(1 + PANEL * count, HEIGHT), dpi=120, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])
