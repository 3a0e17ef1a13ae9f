"""Pairs of images that are copies or nearly alike, and the groups that they form at a distance."""

from __future__ import annotations

import math
import os
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from nearfar.commands.opening import shown
from nearfar.commands.run_features import Featured, nearest_shown
from nearfar.data.decode import formats, to_array, to_pil
from nearfar.data.digests import digest, digest_of_file
from nearfar.data.raw import opened, raw
from nearfar.evaluation import extract
from nearfar.neighbours import COPY, LOCAL, altered, components, local_difference, pixel_difference, small_images
from nearfar.training.seeding import stream
from nearfar.views import eight_bits

KINDS = ("same file", "same pixels", "copy", "alike")
ALIKE = KINDS.index("alike")
NEIGHBOURS = 8  # of each image that are looked at
TRIED, SHARE = 128, 0.99  # images that are altered to see how far features move, and the share of them to be found
STRETCHED = 0.03  # difference of shape up to which images are copies
PAIRS = 8192  # that are compared at a time at 16 pixels
HELD = 2**28  # bytes of images at full size that are kept for the next comparison
CHANCE, PART = 20_000, 0.1  # pairs at random, and the part of their usual distance that is called alike


class Link(NamedTuple):
    """Two images by their positions, the distance of their features, and what they are: a place in KINDS."""

    distance: float
    first: int
    second: int
    kind: int


class Facts(NamedTuple):
    """What decides which copy is kept: a file before a link to one, then the most pixels, then the largest file."""

    width: int
    height: int
    bytes: int
    link: bool = False


def copy_distance(known: Featured) -> float:
    """The distance within which copies lie: that of 99 % of altered images of the data from the originals.

    128 images at random, each once at half its size and once as JPEG of quality 50.
    """
    order = torch.randperm(len(known.images), generator=stream(0, "altered"))[:TRIED]
    unit = torch.nn.functional.normalize
    own, found = unit(known.features[order], dim=1), []
    for pixels in altered(eight_bits(known.images.gather(order))):
        found.append((own - unit(extract(known.encoder, pixels), dim=1)).square().sum(1) / 2)
    return float(torch.cat(found).quantile(SHARE))


def alike_distance(known: Featured) -> float:
    """A tenth of the median distance between two images of the data, as 20 000 pairs at random tell it.

    Copies can lie farther apart, and pixels confirm them; other images that far apart have little in common.
    """
    chance, unit = stream(0, "pairs"), torch.nn.functional.normalize
    first, second = torch.randint(len(known.images), (2, CHANCE), generator=chance)
    first, second = first[first != second], second[first != second]
    apart = (unit(known.features[first], dim=1) - unit(known.features[second], dim=1)).square().sum(1) / 2
    return PART * float(apart.median())


def find_links(known: Featured, most: float, console: Console, approximate: bool = False) -> list[Link]:
    """Find pairs of images no farther apart than `most`, nearest first.

    Same files are found by their bytes, whatever their features. Of each other image the eight nearest are looked at.
    Where small versions of two differ by less than a fifth of their contrast, the files are read and compared at full
    size: they have the same pixels, or are copies where they have the same shape and differ nowhere by more than
    `local_difference` allows. Others are alike where each is the nearest of the other that is no copy.
    """
    same = _same_files(known, console)
    links = [Link(0.0, int(first), row, 0) for row, first in enumerate(same) if first != row]
    kept = torch.from_numpy(np.unique(same))
    if len(kept) < 2:
        return links
    found = nearest_shown(known.features[kept], min(NEIGHBOURS, len(kept) - 1), console, approximate=approximate)
    rows, places = torch.where(found.distance <= most)
    first, second = kept[rows], kept[found.index[rows, places]]
    pairs = torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 1)
    pairs, inverse = pairs.unique(dim=0, return_inverse=True)
    distance = torch.zeros(len(pairs)).index_put_((inverse,), found.distance[rows, places])
    if len(pairs):
        involved, at = pairs.unique(return_inverse=True)
        with shown(console, "comparing pixels") as progress:
            small = small_images(known.images, involved, progress)
        apart = torch.cat([pixel_difference(small[some[:, 0]], small[some[:, 1]]) for some in at.split(PAIRS)])
        full = _FullSize(known)
        with shown(console, "comparing at full size") as progress:
            for done, (one, other) in enumerate(pairs.tolist()):
                kind = _kind(full[one], full[other]) if apart[done] <= COPY else ALIKE
                links.append(Link(float(distance[done]), one, other, kind))
                progress(done + 1, len(pairs))
    nearest: dict[int, Link] = {}  # of those that are merely alike: with all of them, chains would join everything
    for link in sorted(links):
        for row in (link.first, link.second) if link.kind == ALIKE else ():
            nearest.setdefault(row, link)
    return sorted(link for link in links if link.kind < ALIKE or nearest[link.first] == nearest[link.second])


def groups_at(links: Sequence[Link], count: int, distance: float) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of copies, and groups of images that are merely alike, by links of at most this distance.

    Copies are so at any distance, as their pixels are compared.
    Of a group of copies only the first number takes part in the others. Both in the order of their first links.
    """
    near = [link for link in links if link.kind < ALIKE or link.distance <= distance]
    copies = components(count, [(link.first, link.second) for link in near if link.kind < ALIKE])
    ends = [(int(copies[link.first]), int(copies[link.second])) for link in near if link.kind == ALIKE]
    alike = components(count, ends)
    order = [row for link in near for row in (link.first, link.second)]
    return _collected(copies, order), _collected(alike, [int(copies[row]) for row in order])


def _collected(label: np.ndarray, order: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in dict.fromkeys(order):
        groups.setdefault(int(label[row]), []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def facts_of(known: Featured, row: int) -> Facts:
    """Size in pixels and bytes of one image, as its file has it; zero bytes where pixels are all there is."""
    originals = known.images.originals
    if originals is None:
        return Facts(known.images.image_size, known.images.image_size, 0)
    data = originals[row]
    size = len(data) if isinstance(data, bytes) else os.path.getsize(data)
    is_link = isinstance(data, str) and os.path.islink(data)
    if (found := raw(data)) is not None:
        return Facts(*found.native, size, is_link)
    with Image.open(opened(data), formats=formats()) as image:
        return Facts(image.width, image.height, size, is_link)


def _same_files(known: Featured, console: Console) -> np.ndarray:
    """For each image the first one with the same bytes. Files are read only where others have the same size."""
    originals, total = known.images.originals, len(known.images)
    first = np.arange(total)
    if originals is None:
        return first
    wanted: Sequence[int] = range(total)
    if known.paths is not None:
        sizes = defaultdict(list)
        for row, path in enumerate(known.paths):
            sizes[os.path.getsize(path)].append(row)
        wanted = sorted(row for rows in sizes.values() if len(rows) > 1 for row in rows)
    seen: dict[str | int, int] = {}
    with shown(console, "comparing files") as progress:
        for done, row in enumerate(wanted, 1):
            data = originals[row]
            mark = digest(data) if isinstance(data, bytes) else digest_of_file(data)
            first[row] = seen.setdefault(mark or row, row)  # what can no longer be read is like nothing else
            progress(done, len(wanted))
    return first


class _FullSize:
    """Images as their files hold them, [channels, height, width] by position; the last ones are kept, up to 256 MB."""

    def __init__(self, known: Featured) -> None:
        self.known, self.kept = known, OrderedDict[int, np.ndarray]()

    def __getitem__(self, row: int) -> np.ndarray:
        pixels = self.kept.pop(row, None)
        self.kept[row] = pixels = self._read(row) if pixels is None else pixels
        while len(self.kept) > 2 and sum(one.nbytes for one in self.kept.values()) > HELD:
            self.kept.popitem(last=False)
        return pixels

    def _read(self, row: int) -> np.ndarray:
        originals = self.known.images.originals
        if originals is None:
            return self.known.images.gather(torch.tensor([row]))[0].numpy()
        if (found := raw(originals[row])) is not None:
            return found.read()
        image, _ = to_pil(originals[row], at_least=2**30)
        return to_array(image, len(image.getbands()))


def _kind(first: np.ndarray, second: np.ndarray) -> int:
    """What two images are whose small versions are alike, by all their pixels."""
    if np.array_equal(first, second):
        return KINDS.index("same pixels")
    (height, width), (high, wide) = first.shape[1:], second.shape[1:]
    if abs(math.log(width * high / (height * wide))) > STRETCHED or _furthest(first, second) > LOCAL:
        return ALIKE
    return KINDS.index("copy")


def _furthest(first: np.ndarray, second: np.ndarray) -> float:
    """`local_difference` of any two images: grey and colour, and more than 8 bits.

    Those are scaled by the range of both images, and again without its ends: a few bright pixels could hide the rest.
    """
    if {len(first), len(second)} == {1, 3}:
        first, second = (np.broadcast_to(one, (3, *one.shape[1:])) for one in (first, second))
    if first.dtype == second.dtype == np.uint8:
        return local_difference(first, second)
    if len(first) != len(second) or first.dtype != second.dtype:
        return math.inf
    found = []
    for cut in (0, 0.5):
        both = [one.reshape(len(one), -1) for one in (first, second)]
        ends = np.array([np.percentile(one, [cut, 100 - cut], axis=1) for one in both])  # [2 images, 2 ends, channels]
        low, high = ends[:, 0].min(0)[:, None, None], ends[:, 1].max(0)[:, None, None]
        scale = 255 / np.where(high > low, high - low, 1)
        scaled = (((one - low) * scale).clip(0, 255).round().astype(np.uint8) for one in (first, second))
        found.append(local_difference(*scaled))
    return max(found)
