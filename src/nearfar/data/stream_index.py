"""Where the images of tars begin, so that a stream reads them in pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Int64

from nearfar.atomic import replacing
from nearfar.data import cache
from nearfar.data.building import Progress
from nearfar.data.columns import printable
from nearfar.data.shard_files import opened
from nearfar.data.tars import examples

CHUNK = 64  # images that are read one after the other
FORMAT = 1  # raise it when chunks mean something else


@dataclass(frozen=True)
class Chunks:
    """Pieces of tars: `count` images from the byte `place` of the tar number `shard` on, after `skip` others.

    `first`: the number of the first image of each, counted over all tars.
    """

    shard: Int64[np.ndarray, " chunks"]
    place: Int64[np.ndarray, " chunks"]
    skip: Int64[np.ndarray, " chunks"]
    count: Int64[np.ndarray, " chunks"]
    first: Int64[np.ndarray, " chunks"]

    def without(self, images: int) -> Chunks:
        """All but so many of the first images."""
        gone = np.clip(images - (self.first - self.first[:1]), 0, self.count)
        left = gone < self.count
        moved = self.skip + gone, self.count - gone, self.first + gone
        return Chunks(self.shard[left], self.place[left], *(one[left] for one in moved))


def indexed(
    home: Path, files: list[str], names: list[str], progress: Progress | None
) -> tuple[Chunks, list[tuple[str, str]]]:
    """Where the images of the tars are, from the cache, or from their headers; and what is damaged."""
    path = home.with_suffix(".npz")
    with cache.building(home):
        known = _kept(path)
        if known is None:
            known = chunks, problems = _scanned(files, names, progress)
            with replacing(path) as unfinished:
                np.savez(unfinished, problems=np.array(json.dumps(problems)), **vars(chunks))
    return known


def _kept(path: Path) -> tuple[Chunks, list[tuple[str, str]]] | None:
    """What an earlier reading of the headers found; None where there is none, or a damaged one."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            problems = [(one, why) for one, why in json.loads(str(kept["problems"]))]
            return Chunks(*(kept[name] for name in Chunks.__dataclass_fields__)), problems
    except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile):
        return None


def _scanned(files: list[str], names: list[str], progress: Progress | None) -> tuple[Chunks, list[tuple[str, str]]]:
    problems: list[tuple[str, str]] = []
    shards, places, counts = list[int](), list[int](), list[int]()
    total = 0
    for shard, (path, name) in enumerate(zip(files, names, strict=True)):
        in_shard = 0
        with opened(path) as file:
            for example in examples(file, path, name):
                if why := example.wrong():
                    problems.append((printable(example.name), why))
                    continue
                if in_shard % CHUNK == 0:
                    shards.append(shard)
                    places.append(example.start)
                    counts.append(0)
                counts[-1] += 1
                in_shard += 1
                total += 1
                if progress is not None and total % 1000 == 0:
                    progress(total, None)
    shard_of, place, count = (np.array(numbers, dtype=np.int64) for numbers in (shards, places, counts))
    return Chunks(shard_of, place, np.zeros_like(count), count, count.cumsum() - count), problems
