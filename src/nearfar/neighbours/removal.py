"""Files that are never listed for removal, although another file of the set has their bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from nearfar.data import Images
from nearfar.neighbours.files import paths_of
from nearfar.neighbours.full_size import full_size
from nearfar.neighbours.groups import same_proportions
from nearfar.neighbours.links import SAME_FILE, Link

NOTHING, BELONGS = "shows nothing", "belongs to another file of that name"
CLASS, SPLIT = "in another class", "in another split"
PLAIN = 4  # of 255: range of values within each channel up to which an image shows nothing
PART = re.compile(  # what is added to the name of an image for another view of it
    r"[ ._-]+(image|img|rgb|colou?r|photo|left|right|mask|seg|label|gt|ground.?truth|annot|anno"
    r"|instance|panoptic|depth|disp|normal|edge|trimap|matte|alpha)[a-z]*\d*([ ._-].*)?$"
)
ENDING = re.compile(r"\.[a-z][a-z0-9]{2,3}$")  # of a.jpg in a.jpg.xml
ADDED = re.compile(r"[ ._-]+[a-z]+([ ._-]?\d+)?$")  # a word behind the name, as in a_cropped.jpg


class Staying:
    """Why images are kept although another of their group has the same bytes.

    links: of all the images. archive: so many of the first images are an archive, which stays as it
    is.
    """

    def __init__(self, images: Images, links: Sequence[Link], archive: int = 0) -> None:
        self.images, self.links, self.archive = images, links, archive
        self._plain: dict[int, bool] = {}
        self._beside: dict[str, list[str]] = {}

    def why(self, row: int, first: int) -> str:
        """The reason for which an image stays, given the first of its group; "" if there is
        none.
        """
        if self._shows_nothing(row):
            return NOTHING
        if self._has_partner(row):
            return BELONGS
        for places, words in ((self._labels, CLASS), (self._splits, SPLIT)):
            own, other = places[row], places[first]
            # folders of an archive need not be those of the images
            if own != other and (first >= self.archive or (own and other)):
                return words
        return ""

    def _shows_nothing(self, row: int) -> bool:
        same = self._same[row]
        if same not in self._plain:
            pixels = full_size(self.images, row)
            most = PLAIN if pixels.dtype == np.uint8 else 0
            self._plain[same] = all(np.ptp(plane) <= most for plane in pixels)
        return self._plain[same]

    def _has_partner(self, row: int) -> bool:
        """Return whether a file that is no copy of this one has its name, less its folder, its
        ending and a word behind.
        """
        own = _stem(self.images.names[row])
        keys = {own, PART.sub("", own), ADDED.sub("", own)}
        group = self._copies[row]
        if any(other != group for key in keys for other in self._stems.get(key, ())):
            return True
        return not keys.isdisjoint(self._beside_it(row))

    def _beside_it(self, row: int) -> list[str]:
        """The names, as `_stem` makes them, of what lies in the folder of a file and is no image of
        the set.
        """
        path = self._paths[row]
        if path is None:
            return []
        folder = os.path.dirname(path)
        if folder not in self._beside:
            try:
                names = os.listdir(folder or ".")
            except OSError:
                names = []
            others = (name for name in names if os.path.join(folder, name) not in self._own_paths)
            self._beside[folder] = [stem for name in others for stem in _names(_stem(name))]
        return self._beside[folder]

    @cached_property
    def _same(self) -> dict[int, int]:
        same = {link.second: link.first for link in self.links if link.kind == SAME_FILE}
        return {row: same.get(row, row) for row in range(len(self.images))}

    @cached_property
    def _copies(self) -> np.ndarray:
        return same_proportions(self.links, len(self.images))

    @cached_property
    def _stems(self) -> dict[str, set[int]]:
        """For each name, as `_stem` makes it, the groups of copies with an image of that name; -1:
        left out.
        """
        rows_of: dict[str, set[int]] = {}
        for row in range(self.archive, len(self.images)):
            for key in _names(_stem(self.images.names[row])):
                rows_of.setdefault(key, set()).add(int(self._copies[row]))
        for name, _ in self.images.skipped:
            for key in _names(_stem(name)):
                rows_of.setdefault(key, set()).add(-1)
        return rows_of

    @cached_property
    def _paths(self) -> list[str | None]:
        return paths_of(self.images)

    @cached_property
    def _own_paths(self) -> set[str | None]:
        return set(self._paths)

    @cached_property
    def _labels(self) -> list[str]:
        return self.images.label_names

    @cached_property
    def _splits(self) -> list[str]:
        return self.images.split_names


def _stem(name: str) -> str:
    """The name of a file without its folders and its ending, in one case."""
    last = name.rpartition("/")[2]
    return (last.rpartition(".")[0] or last).casefold()


def _names(stem: str) -> Iterable[str]:
    """A name, and what is left of it without a word for another view of the same."""
    inner = ENDING.sub("", stem)
    return {stem, inner, PART.sub("", stem), PART.sub("", inner)}
