"""The images that a person asks with: names in the data, files, lists of either, or pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from nearfar.commands.run_features import Featured
from nearfar.data import open_images
from nearfar.data.columns import printable
from nearfar.data.value_range import EIGHT_BITS
from nearfar.data.wide import pixels_of
from nearfar.evaluation import extract
from nearfar.messages import did_you_mean, one_line

LISTS = (".txt", ".list")
COMPARED = 20_000  # names that a misspelt one is compared with


@dataclass(frozen=True)
class Queries:
    """Images to ask with. `own`: their positions in the data, -1 for others; `pixels`: as the encoder takes them."""

    names: list[str]
    features: Float[Tensor, "queries dim"]
    own: Int64[Tensor, " queries"]
    pixels: list[Shaped[Tensor, "channels side side"]]


def queries_of(given: Any, data: Featured) -> Queries:
    """Find images by what is given: words, or anything else that `nearfar.data.open_images` takes in memory.

    A word is the name of an image of the data; a file, which is looked up in the data first; or a text file of names
    and files, one a line or with a zero byte between them. ValueError for a word that is nothing of this, for files
    that are no images, and where nothing is given.
    """
    words = [given] if isinstance(given, (str, os.PathLike)) else given
    if not (isinstance(words, (list, tuple)) and all(isinstance(word, (str, os.PathLike)) for word in words)):
        size, channels, value_range = _form(data)
        others = open_images(given, image_size=size, channels=channels, value_range=value_range or EIGHT_BITS)
        pixels = list(others.gather(torch.arange(len(others))))
        return Queries(others.names, extract(data.encoder, torch.stack(pixels)), torch.full((len(others),), -1), pixels)
    names, rows, pixels = [], [], []
    for word, row in places_of(words, data):
        names.append(printable(word) if row < 0 else data.images.names[row])
        rows.append(row)
        pixels.append(_decoded(word, data) if row < 0 else data.images.gather(torch.tensor([row]))[0])
    if not names:
        raise ValueError("name the images to look for: their names in the data, files, or a text file of either")
    features = [
        extract(data.encoder, one[None])[0] if row < 0 else data.features[row]
        for row, one in zip(rows, pixels, strict=True)
    ]
    return Queries(names, torch.stack(features), torch.tensor(rows), pixels)


def places_of(words: Sequence[Any], data: Featured) -> list[tuple[str, int]]:
    """Names and files, those in text files too, each with its position in the data, or -1 where it is not of it."""
    place = {name: row for row, name in enumerate(data.images.names)}
    files = {path: row for row, path in enumerate(data.paths or [])}
    found = []
    for word in _words(words, place):
        folder, name = os.path.split(word)
        row = place[word] if word in place else files.get(os.path.join(os.path.realpath(folder), name), -1)
        found.append((word, row))
    return found


def _words(words: Sequence[Any], known: dict[str, int]) -> list[str]:
    """The words, with what text files hold in their places."""
    out = []
    for word in map(os.fspath, words):
        if word in known or Path(word).suffix.lower() not in LISTS or not Path(word).is_file():
            out.append(word)
            continue
        text = Path(word).read_bytes().decode("utf-8", "surrogateescape")
        out += [line for line in (text.split("\0") if "\0" in text else text.splitlines()) if line]
    return out


def _form(data: Featured) -> tuple[int, int, list[float] | None]:
    return data.encoder.image_size, data.encoder.channels, data.encoder.value_range


def _decoded(word: str, data: Featured) -> Shaped[Tensor, "channels side side"]:
    if not Path(word).is_file():
        near = did_you_mean(word, data.images.names[:COMPARED], "see `nearfar embed` for the names")
        raise ValueError(f"{printable(word)!r} is neither an image of the data nor a file: {near}")
    with one_line(f"cannot read {printable(word)!r} as an image"):
        return pixels_of(word, *_form(data))
