"""Images that a user names: by their names in the data, by files, by lists of either, as pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from nearfar.data import open_images
from nearfar.data.bits import NEARLY_BLACK, are_gray
from nearfar.data.decoding import header, pixels_of
from nearfar.data.names import file_identity, match, plain_name, spellings
from nearfar.data.table import printable
from nearfar.data.text import encoding_of, lines_of, text_of
from nearfar.data.value_range import EIGHT_BITS, PixelFormat
from nearfar.embeddings.embeddings import Embeddings
from nearfar.evaluation import extract
from nearfar.messages import did_you_mean, raise_as_value_error
from nearfar.neighbours.full_size import file_at_full_size, full_size
from nearfar.networks import Encoder
from nearfar.progress import log
from nearfar.views import eight_bits

LISTS = (".txt", ".list")
SMALL = 64  # pixels of a side that show whether there are colours
COMPARED = 20_000  # names that a misspelt one is compared with


@dataclass(frozen=True)
class Queries:
    """Query images. `own`: their positions in the data, -1 for others; `pixels`: as the encoder
    takes them; `at_full_size`: the pixels of one of them, by its place, as its file has them.
    """

    names: list[str]
    features: Float[Tensor, "queries dim"]
    own: Int64[Tensor, " queries"]
    pixels: list[Shaped[Tensor, "channels side side"]]
    at_full_size: Callable[[int], np.ndarray]


def resolve_queries(given: Any, photos: Embeddings) -> Queries:
    """Find images by what is given: words, or anything else that `nearfar.data.open_images` takes
    in memory.

    A word is the name of an image of the data; a file, which is looked up in the data first; or a
    text file of names and files, one a line or with a zero byte between them. ValueError for a word
    that is nothing of this, for files that are no images, and where nothing is given.
    """
    words = [given] if isinstance(given, (str, os.PathLike)) else given
    if not (
        isinstance(words, (list, tuple))
        and all(isinstance(word, (str, os.PathLike)) for word in words)
    ):
        net = _encoder_of(photos)
        size, channels, value_range = net.image_size, net.channels, net.value_range or EIGHT_BITS
        _check_not_one_image(given, channels)
        others = open_images(given, image_size=size, channels=channels, value_range=value_range)
        pixels = list(others.gather(torch.arange(len(others))))
        return Queries(
            others.names,
            extract(net, torch.stack(pixels)),
            torch.full((len(others),), -1),
            pixels,
            partial(full_size, others),
        )
    names, rows, pixels = [], [], []
    resolved = resolve_names(words, photos)
    for word, row in resolved:
        names.append(printable(word) if row < 0 else photos.images.names[row])
        rows.append(row)
        pixels.append(
            _decoded(word, photos) if row < 0 else photos.images.gather(torch.tensor([row]))[0]
        )
    if not names:
        raise ValueError(
            "name the images to look for: their names in the data, files, or a text file of "
            "either; folders are data to search"
        )
    _say_lost([word for word, row in resolved if row < 0], photos)
    features = [
        photos.features[row] if row >= 0 else extract(_encoder_of(photos), x[None])[0]
        for row, x in zip(rows, pixels, strict=True)
    ]

    def at_full_size(place: int) -> np.ndarray:
        word, row = resolved[place]
        return file_at_full_size(word) if row < 0 else full_size(photos.images, row)

    return Queries(names, torch.stack(features), torch.tensor(rows), pixels, at_full_size)


def _check_not_one_image(given: Any, channels: int) -> None:
    """Raise ValueError for an array of one colour image, [channels, height, width]: it would be
    taken for so many grayscale ones.
    """
    shape = tuple(getattr(given, "shape", ()))
    if len(shape) == 3 and channels == shape[0] == 3 and min(shape[1:]) > 4:
        raise ValueError(
            f"an array {list(shape)} is one image of 3 channels, or 3 grayscale ones: give "
            "images[None], or images[:, None]"
        )


def _say_lost(files: Sequence[str], photos: Embeddings) -> None:
    """Say how many files, which can be read, lose bits or colours before the encoder."""
    net = photos.encoder
    if net is None or not files:
        return
    known = [header(file) for file in files]
    wide = sum(each.bits > 8 for each in known) if net.value_range is None else 0
    if wide:
        log.info(
            "%d of %d query images hold more than 8 bits, and become 8 bits, 16 %s",
            wide,
            len(files),
            NEARLY_BLACK,
        )
    if net.channels == 1:
        small = PixelFormat(SMALL, 3, net.value_range and 3 * list(net.value_range))
        coloured = [file for file, each in zip(files, known, strict=True) if each.bands == 3]
        seen = [eight_bits(pixels_of(file, small)[None]) for file in coloured]
        if lost := sum(not bool(are_gray(pixels)) for pixels in seen):
            log.info("%d of %d query images are in colour, and become gray", lost, len(files))


def _encoder_of(photos: Embeddings) -> Encoder:
    if photos.encoder is None:
        raise ValueError(
            "other images need the encoder that made these vectors: name images of the data"
        )
    return photos.encoder


def resolve_names(words: Sequence[Any], photos: Embeddings) -> list[tuple[str, int]]:
    """Names and files, those in text files too, each with its position in the data, or -1 where it
    is not of it.

    A file is found by whatever path leads to it, through links too. A word that is no file is a
    name, or the end of one path (`nearfar.data.names.match`).
    """
    names, paths = photos.images.names, photos.paths
    place = {plain_name(name): row for row, name in reversed(list(enumerate(names)))}
    place |= {name: row for row, name in enumerate(names)}
    real = cache(os.path.realpath)  # of folders
    files = {
        (real(folder), name): row
        for row, (folder, name) in enumerate(map(os.path.split, paths or []))
    }
    resolved = _words(words, place)
    rows = []
    for word in resolved:
        row = place.get(word, -1)
        for written in spellings(word):
            folder, name = os.path.split(written)
            row = files.get((real(folder), name), -1) if row < 0 else row
        rows.append(row)
    rows = _by_links(resolved, rows, paths or [])
    left = [n for n, row in enumerate(rows) if row < 0 and not os.path.exists(resolved[n])]
    meant, _ = match([resolved[n] for n in left], names, paths) if left else ({}, "")
    for row, n in meant.items():
        rows[left[n]] = row
    return list(zip(resolved, rows, strict=True))


def _by_links(words: Sequence[str], rows: list[int], paths: Sequence[str]) -> list[int]:
    """The rows, with those of words that are the same file by a link where none is known."""
    left = [n for n, row in enumerate(rows) if row < 0 and os.path.isfile(words[n])]
    if not left or not paths:
        return rows
    known: dict[tuple[int, int] | str, int] = {}
    for row, path in enumerate(paths):
        known.setdefault(file_identity(path), row)
    linked = list(rows)
    for place in left:
        linked[place] = known.get(file_identity(words[place]), -1)
    return linked


def _words(words: Sequence[Any], known: dict[str, int]) -> list[str]:
    """The words, with what text files hold in their places."""
    out = []
    for given in words:
        if not isinstance(given, (str, os.PathLike)):
            raise ValueError(f"images are named by texts and paths, not by {given!r:.60}")
        word = os.fspath(given)
        if word in known or Path(word).suffix.lower() not in LISTS or not Path(word).is_file():
            out.append(word)
            continue
        content = Path(word).read_bytes()
        if encoding_of(content) == "cp1252":  # or names of files in whatever bytes they have
            escaped = content.decode("utf-8", "surrogateescape")
            lines = lines_of(escaped)
            are_names = any(
                line in known or os.path.exists(line) for line in lines if not _is_text(line)
            )
            out += lines if are_names else lines_of(text_of(content))
        else:
            out += lines_of(text_of(content))
    return out


def _is_text(name: str) -> bool:
    """Return whether a name is UTF-8."""
    return not any("\udc80" <= char <= "\udcff" for char in name)


def _decoded(word: str, photos: Embeddings) -> Shaped[Tensor, "channels side side"]:
    if not Path(word).is_file():
        near = did_you_mean(
            word, photos.images.names[:COMPARED], "see `nearfar embed` for the names"
        )
        raise ValueError(f"{printable(word)!r} is neither an image of the data nor a file: {near}")
    with raise_as_value_error(f"cannot read {printable(word)!r} as an image"):
        net = _encoder_of(photos)
        return pixels_of(word, PixelFormat(net.image_size, net.channels, net.value_range))
