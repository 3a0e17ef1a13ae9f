"""Images at full size, as their files have them, and what two of them are to each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from nearfar.data import Images
from nearfar.data.pictures import is_lossless
from nearfar.data.readers import look
from nearfar.data.table import NO_DIGEST, digest
from nearfar.neighbours.copies import compare_pixels, differs, reduced
from nearfar.neighbours.links import KINDS, NEAR_DUPLICATE

CACHED = 4  # images of each set at full size in memory
REDUCTIONS = 512  # small versions in memory: of an image of 256 pixels a quarter of a megabyte


class Comparison:
    """Compares an image of each set at full size, unless small versions differ, or there is a
    verdict on the two files.

    Called with the positions of two images, each in its set: their relation, a position in KINDS.
    verdicts: by the digests of two files; those that are made are added.
    """

    def __init__(
        self, first: Images, second: Images, verdicts: dict[tuple[str, str], int] | None = None
    ) -> None:
        self.first = _AtFullSize(first)
        self.second = self.first if first is second else _AtFullSize(second)
        self.verdicts = verdicts

    def __call__(self, row: int, other: int) -> int:
        files = None if self.verdicts is None else self._files(row, other)
        if self.verdicts is None or files is None:
            return self._compare(row, other)
        if files not in self.verdicts:
            self.verdicts[files] = self._compare(row, other)
        return self.verdicts[files]

    def kinds(self, pairs: Sequence[Sequence[Any]]) -> dict[str, np.ndarray]:
        """Return the relations of pairs, as a piece of work of an engine."""
        return {"kinds": np.array([self(pair[0], pair[1]) for pair in pairs])}

    def key(self, pairs: Sequence[Sequence[Any]]) -> str | None:
        """Return a digest of all that `kinds` of these pairs depends on: their files; None where
        one of them has no digest.
        """
        files = [self._files(pair[0], pair[1]) for pair in pairs]
        known = [mark.encode() for pair in files if pair is not None for mark in pair]
        return digest([b"kinds of pairs", *known]) if None not in files else None

    def _files(self, row: int, other: int) -> tuple[str, str] | None:
        """The digests of two files, the smaller first; None without one."""
        mark = self.first.marks[row].tobytes().hex()
        other_mark = self.second.marks[other].tobytes().hex()
        if NO_DIGEST in (mark, other_mark):
            return None
        return min(mark, other_mark), max(mark, other_mark)

    def _compare(self, row: int, other: int) -> int:
        own, others = self.first, self.second
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

    @cached_property
    def marks(self) -> UInt8[np.ndarray, "images 16"]:
        """Digests of the files."""
        return self.images.marks

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
