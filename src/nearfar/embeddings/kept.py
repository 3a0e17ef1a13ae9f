"""Tensors that files keep from one time to the next: with what they depend on, with a digest of
their content, and by the digests of the images that their rows belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data.table import as_bytes
from nearfar.messages import first_line
from nearfar.progress import log
from nearfar.training.run_folder import content_of


def save_kept(file: Path, key: str, tensors: dict[str, Tensor]) -> None:
    """Write tensors, whole or not at all. key: what they depend on."""
    about = {"key": key, "content": _content(tensors)}
    with replacing(file) as unfinished:
        save_file(tensors, unfinished, metadata=about)


def read_kept(file: Path, key: str) -> dict[str, Tensor] | None:
    """Read tensors; None where there are none, where they depend on something else, and, with a
    warning, where they are damaged.
    """
    if not file.exists():
        return None
    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            if about.get("key") != key:
                return None
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if about.get("content") != _content(tensors):
            raise ValueError("its content has changed")
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        log.warning("%s is damaged, and made anew: %s", file, first_line(error)[:200])
        return None
    return tensors


def _content(tensors: dict[str, Tensor]) -> str:
    return content_of(*(tensors[name] for name in sorted(tensors)))


def as_marks(digests: Sequence[str | None]) -> UInt8[Tensor, "images 16"]:
    """Digests of images as bytes: zeros where one is not known."""
    return torch.from_numpy(as_bytes(digests))


class Marks:
    """Digests of images as bytes, in an order in which others are found among them."""

    def __init__(self, marks: UInt8[np.ndarray, "images 16"]) -> None:
        self.words = marks.view(np.uint64)
        self.order = self.words[:, 0].argsort(kind="stable")
        self.first = self.words[self.order, 0]

    def rows_of(
        self, others: UInt8[np.ndarray, "others 16"]
    ) -> tuple[Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"]]:
        """Return the positions of the images that have one of the other digests, and of that one
        among the others; digests that are not known are none.
        """
        words = np.ascontiguousarray(others).view(np.uint64)
        start, stop = (self.first.searchsorted(words[:, 0], side) for side in ("left", "right"))
        counts = stop - start
        at = np.arange(len(words)).repeat(counts)
        within = np.arange(len(at)) - (counts.cumsum() - counts)[at]
        rows = self.order[start[at] + within]
        same = (self.words[rows] == words[at]).all(1) & words[at].any(1)
        return rows[same], at[same]


def places_among(
    marks: UInt8[Tensor, "images 16"], known: UInt8[Tensor, "known 16"]
) -> Int64[Tensor, " images"]:
    """The position of each image among known ones by its digest, -1 for none; of several with one
    digest the first takes the first.
    """
    words = torch.cat([known, marks]).numpy().view(np.uint64)
    order = np.lexsort((words[:, 1], words[:, 0]))  # known ones before the images of equal digest
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (words[order[1:]] != words[order[:-1]]).any(1)
    group = begins.cumsum() - 1
    start = np.flatnonzero(begins)
    of_known = np.bincount(group[order < len(known)], minlength=len(start))
    (image,) = np.where(order >= len(known))
    before = image - start[group[image]] - of_known[group[image]]  # images of this digest
    has_place = (before < of_known[group[image]]) & words[order[image]].any(1)
    places = np.full(len(marks), -1)
    taken = start[group[image]] + before
    places[order[image[has_place]] - len(known)] = order[taken[has_place]]
    return torch.from_numpy(places)
