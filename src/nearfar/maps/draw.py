"""A map as a still picture."""

from __future__ import annotations

import os
from collections.abc import Sequence

import matplotlib.axes
import matplotlib.figure
import matplotlib.offsetbox
import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from nearfar.maps.colours import GREY, PALETTE
from nearfar.maps.thumbnails import thumbnails

INK, PAPER = "#1b1f24", "#ffffff"
MOST_THUMBNAILS, THUMBNAIL_GRID = 400, 24


def draw_map(
    points: Float[Tensor, "images 2"],
    path: str | os.PathLike[str],
    *,
    labels: Sequence[int] | np.ndarray | Tensor | None = None,
    class_names: Sequence[str] | None = None,
    images: UInt8[Tensor, "images channels side side"] | None = None,
    title: str | None = None,
) -> None:
    """Write a map to a picture file (the ending says which kind: .png, .svg, .pdf).

    labels: class numbers; up to 20 classes are coloured with a legend, more are drawn in grey, as without labels.
    images: where given, at most 400 of them are drawn over their points, at most one in each cell of a grid.
    Raises ValueError where labels or images are not one for each point.
    """
    places = np.asarray(points.detach().cpu(), dtype=float)
    classes = None if labels is None else np.asarray(labels, dtype=np.int64)
    for name, given in (("labels", classes), ("images", images)):
        if given is not None and len(given) != len(places):
            raise ValueError(f"{name} must be one for each of the {len(places)} points, not {len(given)}")

    figure = matplotlib.figure.Figure(figsize=(9, 7), dpi=150, facecolor=PAPER, layout="constrained")
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_axis_off()
    size = float(np.clip(4e4 / max(len(places), 1), 2, 24))
    present = np.unique(classes) if classes is not None else np.zeros(0, dtype=np.int64)
    if classes is not None and 0 < len(present) <= len(PALETTE):
        order = np.random.default_rng(0).permutation(len(places))  # no class lies on top of all others
        colours = np.array(PALETTE)[np.searchsorted(present, classes)]
        axes.scatter(*places[order].T, s=size, c=colours[order], linewidths=0)
        for i, label in enumerate(present):
            named = class_names is not None and 0 <= label < len(class_names)
            axes.scatter([], [], s=36, c=PALETTE[i], label=class_names[label] if named and class_names else str(label))
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, labelcolor=INK, fontsize=9)
    else:
        axes.scatter(*places.T, s=size, c=GREY, linewidths=0)
    if images is not None:
        _add_images(axes, places, images)
    if title is not None:
        axes.set_title(title, color=INK, fontsize=12, loc="left")
    figure.savefig(path)


def _add_images(axes: matplotlib.axes.Axes, places: np.ndarray, images: Tensor) -> None:
    low, span = places.min(0), np.ptp(places, axis=0).max() or 1.0
    cells = ((places - low) / span * THUMBNAIL_GRID).astype(int)
    _, firsts = np.unique(cells, axis=0, return_index=True)
    firsts = np.sort(firsts)[:MOST_THUMBNAILS]
    pictures = thumbnails(images[torch.as_tensor(firsts)].cpu(), 32).permute(0, 2, 3, 1).numpy()
    for place, picture in zip(places[firsts], pictures, strict=True):
        box = matplotlib.offsetbox.OffsetImage(picture, zoom=14 / picture.shape[0], interpolation="nearest")
        axes.add_artist(matplotlib.offsetbox.AnnotationBbox(box, tuple(place), frameon=False, pad=0))
