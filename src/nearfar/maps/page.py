"""A map as an interactive page: one file that opens from disk and asks for nothing else."""

from __future__ import annotations

import html
import json
import os
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.data import Images
from nearfar.maps.colours import GREY, coloured
from nearfar.maps.thumbnails import pack_sheets, thumbnails

# Pixels of a thumbnail for at most so many images. A full page stays below about 30 MB.
THUMBNAIL_SIZES = ((5_000, 64), (20_000, 32))
MOST_IMAGES = THUMBNAIL_SIZES[-1][0]


def write_map_page(
    path: str | os.PathLike[str],
    points: Float[Tensor, "images 2"],
    images: Images,
    *,
    title: str = "Map of the images",
    note: str = "",
) -> None:
    """Write a self-contained HTML page with one point for each image: pan, zoom, hover for the image and its name.

    note: a line below the number of images.
    Names are shown as they are, whatever characters they hold; labels, where there are any, give colours and a legend.
    Thumbnails are at most 64 px for up to 5000 images and at most 32 px for up to 20 000; of more images a fixed
    random 20 000 are shown and the page says so. Raises ValueError where images are not one for each point, or
    without any.
    """
    count = len(points)
    if count == 0 or len(images) != count:
        raise ValueError(f"a map page needs one image for each point, not {len(images)} for {count}")
    shown: np.ndarray = np.arange(count)
    if count > MOST_IMAGES:
        shown = np.sort(np.random.default_rng(0).choice(count, MOST_IMAGES, replace=False))
    size = next(size for most, size in THUMBNAIL_SIZES if len(shown) <= most)
    rows = torch.from_numpy(shown).split(512)  # a few at a time: the images themselves may be large
    sheets = pack_sheets(torch.cat([thumbnails(images.gather(some), size) for some in rows]))
    places = np.asarray(points.detach().cpu(), dtype=float)[shown]
    classes, of_point = coloured(None if images.labels is None else images.labels[shown], images.class_names)
    data: dict[str, Any] = {
        "points": [[float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in places],
        "names": [images.names[i] for i in shown],
        "total": count,
        "grey": GREY,
        "labels": None if images.labels is None else of_point.tolist(),
        "classes": [asdict(one) for one in classes],
        "sheets": {"size": sheets.size, "cell": sheets.cell, "perRow": sheets.per_row, "urls": sheets.urls},
    }
    Path(path).write_text(_page(title, note, data), encoding="utf-8")


def _page(title: str, note: str, data: dict[str, Any]) -> str:
    page = _asset("page.html")
    for part, name in (("style", "page.css"), ("script", "page.js"), ("controls", "controls.js")):
        page = page.replace("{{" + part + "}}", _asset(name))
    before, after = page.split("{{data}}")
    return (
        before.replace("{{title}}", html.escape(title)).replace("{{note}}", html.escape(note))
        + _json_in_script(data)
        + after
    )


def _asset(name: str) -> str:
    return (resources.files("nearfar.maps") / name).read_text(encoding="utf-8")


def _json_in_script(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
