"""The files of a map: page, picture, numbers and the map as a function, with what it was made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.commands.objects import lasting
from nearfar.commands.opening import shown
from nearfar.commands.run import Run
from nearfar.data import Images
from nearfar.maps import MapQuality, SavedMap, draw_map, save_map
from nearfar.networks.encoder import WEIGHTS
from nearfar.pages import write_map_page
from nearfar.training import Described

BESIDE = (".png", ".json", ".safetensors")


def write_map(
    page: Path,
    places: Tensor,
    images: Images,
    quality: MapQuality | None,
    numbers: Mapping[str, Any],
    note: str,
    saved: SavedMap | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
    near: Tensor | None = None,
    console: Console | None = None,
) -> None:
    """Write page, picture, numbers and, where given, the map as a function: all or none.

    columns: what the page can be coloured by, beside the share of neighbours kept. near: the nearest images of each.
    """
    kept = {} if quality is None else {"kept": quality.kept}
    endings = (*(BESIDE if saved is not None else BESIDE[:2]), page.suffix)
    with ExitStack() as stack:
        files = {ending: stack.enter_context(replacing(page.with_suffix(ending))) for ending in endings}
        if saved is not None:
            save_map(files[".safetensors"], saved)
        measured = {} if quality is None else quality.numbers()
        files[".json"].write_text(json.dumps({**numbers, **measured}, indent=2) + "\n")
        draw_map(files[".png"], places, images.labels, images.class_names, images=images)
        with shown(console, "thumbnails") as progress:
            drawn, nearest = {**(columns or {}), **kept}, None if near is None else near.cpu().numpy().astype(np.int32)
            write_map_page(
                files[page.suffix], places, images, note=note, columns=drawn, neighbours=nearest, progress=progress
            )


def origin(run: Run, source: Any, split: str | None, images: Images) -> dict[str, Any]:
    """What a map is made of, so that it can be found again; `data` is None for objects, which no file holds."""
    data = lasting(source)
    return {
        "data": None if isinstance(data, Described) else data,
        "split": split,
        "images": len(images),
        "names": _digest("\n".join(images.names).encode("utf-8", "surrogatepass")),
        "encoder": _digest((run.path / WEIGHTS).read_bytes()),
    }


def _digest(whole: bytes) -> str:
    return hashlib.sha256(whole).hexdigest()[:16]
