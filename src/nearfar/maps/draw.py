"""A map as a figure."""

from __future__ import annotations

import os
from collections.abc import Sequence

import matplotlib.axes
import matplotlib.figure
import matplotlib.offsetbox
import matplotlib.style
import numpy as np
import torch
from jaxtyping import Float, Int64
from matplotlib.colors import to_rgba_array
from torch import Tensor

from nearfar.data import Images
from nearfar.data.thumbnails import thumbnails
from nearfar.maps.columns import GREY, PALETTE, label_column
from nearfar.progress import log

INK, PAPER = "#1b1f24", "#ffffff"
MOST_POINTS = 200_000  # more hide each other
MOST_THUMBNAILS, ACROSS, TRIED = 400, 30, 20_000


@matplotlib.style.context("default")  # the caller may have set another for figures of their own
def draw_map(
    path: str | os.PathLike[str],
    points: Float[Tensor, "images 2"],
    labels: Int64[np.ndarray, " images"] | None = None,
    class_names: Sequence[str] | None = None,
    *,
    images: Images | None = None,
) -> None:
    """Write a map to an image file, whose format follows its ending: .png, .svg, .pdf.

    labels: class numbers, -1 for none; up to 20 classes are coloured with a legend, more are drawn
    in gray, as without labels. images: at most 400 of them are drawn over their points, without
    overlap. Of more than 200 000 points a random 200 000 are drawn, which a line of the log says.
    """
    coordinates = np.asarray(points.detach().cpu(), dtype=float)
    figure = matplotlib.figure.Figure(
        figsize=(9, 7), dpi=150, facecolor=PAPER, layout="constrained"
    )
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_axis_off()
    drawn = np.random.default_rng(0).permutation(len(coordinates))  # no class covers the others
    if len(drawn) > MOST_POINTS:
        log.info("the figure shows a random %d of %d images", MOST_POINTS, len(drawn))
        drawn = drawn[:MOST_POINTS]
    x, y = coordinates[drawn].T
    size = float(np.clip(2.5e4 / max(len(coordinates), 1), 2, 24))
    column = None if labels is None else label_column(labels, class_names)
    classes = (column and column.classes) or []
    colours = np.full(len(coordinates), GREY)
    if column is not None and 0 < sum(entry.colour != GREY for entry in classes) <= len(PALETTE):
        colours = np.array([entry.colour for entry in classes])[column.values]
        of_points = to_rgba_array([entry.colour for entry in classes])[column.values]
        axes.scatter(x, y, s=size, c=of_points[drawn], linewidths=0)
        marks = [axes.scatter([], [], s=36, c=entry.colour) for entry in classes]
        names = [entry.name for entry in classes]
        legend = axes.legend(
            marks, names, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, labelcolor=INK
        )
        for text in legend.get_texts():
            text.set(parse_math=False, fontsize=9)  # "$" is a letter of a name
    else:
        axes.scatter(x, y, s=size, c=GREY, linewidths=0)
    if images is not None:
        _add_images(axes, coordinates, images, colours)
    figure.savefig(path)


def _add_images(
    axes: matplotlib.axes.Axes, coordinates: np.ndarray, images: Images, colours: np.ndarray
) -> None:
    """Draw framed images over some of their points, in random order, without overlap."""
    apart = (np.ptp(coordinates, axis=0).max() or 1.0) / ACROSS
    chosen: list[int] = []
    for i in np.random.default_rng(0).permutation(len(coordinates))[:TRIED]:
        far = np.abs(coordinates[chosen] - coordinates[i]).max(axis=1, initial=0) > apart
        if len(chosen) < MOST_THUMBNAILS and far.all():
            chosen.append(int(i))
    tiles = thumbnails(images.pictures(torch.tensor(chosen), 32), 32).permute(0, 2, 3, 1).numpy()
    for point, tile, colour in zip(coordinates[chosen], tiles, colours[chosen], strict=True):
        box = matplotlib.offsetbox.OffsetImage(
            tile, zoom=13 / tile.shape[0], interpolation="nearest"
        )
        axes.add_artist(
            matplotlib.offsetbox.AnnotationBbox(
                box, tuple(point), pad=0, bboxprops={"edgecolor": colour}
            )
        )
