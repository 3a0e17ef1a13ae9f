"""Images at full size, as their files have them, and what two of them are to each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from nearfar.data import Images
from nearfar.data.pictures import is_lossless
from nearfar.data.readers import look
from nearfar.data.table import NO_DIGEST
from nearfar.neighbours.copies import compare_pixels, differs, reduced
from nearfar.neighbours.links import KINDS, NEAR_DUPLICATE

CACHED = 4  # images of each set at full size in memory
REDUCTIONS = 512  # small versions in memory: of an image of 256 pixels a quarter of a megabyte
Comparison = Callable[[int, int], int]
"""Of the positions of two images, each in its set: their relation, a position in KINDS."""


def comparison(
    first: Images, second: Images, verdicts: dict[tuple[str, str], int] | None = None
) -> Comparison:
    """Compares an image of each set at full size, unless small versions differ, or there is a
    verdict on the two files.
    """
    own = _AtFullSize(first)
    compare = partial(_compare, own, own if first is second else _AtFullSize(second))
    if verdicts is None:
        return compare
    marks = first.marks
    other_marks = marks if first is second else second.marks

    def compare_once(row: int, other: int) -> int:
        mark, other_mark = marks[row].tobytes().hex(), other_marks[other].tobytes().hex()
        if NO_DIGEST in (mark, other_mark):
            return compare(row, other)
        pair = min(mark, other_mark), max(mark, other_mark)
        if pair not in verdicts:
            verdicts[pair] = compare(row, other)
        return verdicts[pair]

    return compare_once


def _compare(own: _AtFullSize, others: _AtFullSize, row: int, other: int) -> int:
    if differs(own.reduced(row), others.reduced(other)):
        return NEAR_DUPLICATE
    lossless = own.is_lossless(row) and others.is_lossless(other)
    return KINDS.index(compare_pixels(own.pixels(row), others.pixels(other), lossless))


class _AtFullSize:
    """Images of a set as they are compared at full size; the last ones read stay in memory."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.pixels = lru_cache(CACHED)(partial(full_size, images))
        self.reduced = lru_cache(REDUCTIONS)(lambda row: reduced(self.pixels(row)))
        self.is_lossless = lru_cache(None)(partial(is_file_lossless, images))

    def __reduce__(self) -> tuple[Any, ...]:  # in another process nothing is read yet
        return type(self), (self.images,)


def full_size(images: Images, row: int) -> np.ndarray:
    """An image as its file has it, [channels, height, width]; see-through ones on white and then on
    black.
    """
    originals = images.originals
    if originals is None:
        return images.gather(torch.tensor([row]))[0].numpy()
    return file_at_full_size(originals[row])


def file_at_full_size(data: bytes | str) -> np.ndarray:
    """The pixels of an encoded image, as `full_size` has them."""
    grounds = look(data).grounds()
    is_same = np.array_equal(grounds[0], grounds[-1])
    return grounds[0] if is_same else np.concatenate(grounds)


def is_file_lossless(images: Images, row: int) -> bool:
    """Return whether the file of an image holds its pixels exactly; pixels alone may come from JPEG
    files.
    """
    return images.originals is not None and is_lossless(images.originals[row])
