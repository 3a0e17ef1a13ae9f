"""A map as an interactive page: one file that opens from disk and asks for nothing else."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from nearfar.maps.colours import GREY, class_colours
from nearfar.maps.thumbnails import pack_sheets

# Pixels of a thumbnail for at most so many images. A full page stays below about 30 MB.
THUMBNAIL_SIZES = ((5_000, 64), (20_000, 32))
MOST_IMAGES = THUMBNAIL_SIZES[-1][0]


def write_map_page(
    points: Float[Tensor, "images 2"],
    images: UInt8[Tensor, "images channels side side"],
    names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    labels: Sequence[int] | np.ndarray | Tensor | None = None,
    class_names: Sequence[str] | None = None,
    title: str = "Map of the images",
) -> None:
    """Write a self-contained HTML page with one point for each image: pan, zoom, hover for the image and its name.

    names: shown as they are, whatever characters they hold. labels: class numbers, for colour and the legend.
    Thumbnails are at most 64 px for up to 5000 images and at most 32 px for up to 20 000; of more images a fixed
    random 20 000 are shown and the page says so. Raises ValueError where names, images or labels are not one for
    each point, or without any point.
    """
    count = len(points)
    if count == 0:
        raise ValueError("a map needs at least one image")
    classes = None if labels is None else np.asarray(labels, dtype=np.int64)
    for name, given in (("images", images), ("names", names), ("labels", classes)):
        if given is not None and len(given) != count:
            raise ValueError(f"{name} must be one for each of the {count} points, not {len(given)}")

    shown = np.arange(count)
    if count > MOST_IMAGES:
        shown = np.sort(np.random.default_rng(0).choice(count, MOST_IMAGES, replace=False))
    size = next(size for most, size in THUMBNAIL_SIZES if len(shown) <= most)
    sheets = pack_sheets(images[torch.from_numpy(shown)].cpu(), size)
    places = np.asarray(points.detach().cpu(), dtype=float)[shown]
    data: dict[str, Any] = {
        "points": [[float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in places],
        "names": [str(names[i]) for i in shown],
        "total": count,
        "grey": GREY,
        "labels": None,
        "classes": [],
        "sheets": {"size": sheets.size, "cell": sheets.cell, "perRow": sheets.per_row, "urls": sheets.urls},
    }
    if classes is not None:
        present, of_point = np.unique(classes[shown], return_inverse=True)
        named = class_names or []
        labelled = [named[c] if 0 <= c < len(named) else str(c) for c in present]
        colours = class_colours(len(present))
        data["labels"] = of_point.tolist()
        data["classes"] = [{"name": str(n), "colour": c} for n, c in zip(labelled, colours, strict=True)]
    Path(path).write_text(_page(title, data), encoding="utf-8")


def _page(title: str, data: dict[str, Any]) -> str:
    page = _asset("page.html")
    for part, name in (("style", "page.css"), ("script", "page.js"), ("controls", "controls.js")):
        page = page.replace("{{" + part + "}}", _asset(name))
    before, after = page.split("{{data}}")
    return before.replace("{{title}}", html.escape(title)) + _json_in_script(data) + after


def _asset(name: str) -> str:
    return (resources.files("nearfar.maps") / name).read_text(encoding="utf-8")


def _json_in_script(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
