"""Copies and look-alikes among images: what was found, in columns, in words and on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.embeddings import Embeddings
from nearfar.embeddings.sources import checked, each_file_once, with_archive
from nearfar.isolation import isolated
from nearfar.neighbours import (
    FRAME,
    KINDS,
    Facts,
    Link,
    Member,
    Staying,
    group_members,
    image_stats,
)
from nearfar.neighbours.links import SAME_FILE
from nearfar.neighbours.removal import NOTHING
from nearfar.pages.sheet import thumbnails_for
from nearfar.pages.template import render_page, script
from nearfar.progress import log
from nearfar.tools.result import (
    FILES,
    TABLE,
    Columns,
    Result,
    archive_and_delete_command,
    link_command,
)

CHOSEN = "to-remove.list"  # saved from the page
MOST_IMAGES = 1500  # on the page, in the nearest pairs: about 10 MB
FOLDED = 0.2  # of the images: where more are near-duplicates, their groups are folded
NEAR_DUPLICATE = len(KINDS) - 1


@dataclass(frozen=True)
class Comparison:
    """Images compared with each other, or with those of an archive that come before them.

    archive: so many of the first images are of an archive. near: the distance up to which images
    count as near-duplicates. links: nearest first, those beyond that distance as well. facts: by
    position, what is said of an image: width, height, bytes and whether it is a link.
    """

    features: Float[Tensor, "images dim"]
    archive: int
    near: float
    links: Sequence[Link]
    members: Sequence[Member]
    facts: dict[int, Facts]


def find_duplicates(
    photos: Embeddings,
    against: Any,
    orientations: bool,
    edits: bool | None,
    distance: float | None,
    approximate: bool,
) -> Duplicates:
    """Compare images with each other, or with an archive; see `nearfar.duplicates`."""
    photos = each_file_once(checked(photos, 2 if against is None else 1))
    where, of_splits, archive = photos.images.where, photos.images.of_splits, 0
    if against is not None:
        photos, archive = with_archive(photos, against)
    images = photos.images
    if not photos.has_pixels:
        log.warning(
            "copies are confirmed by pixels: name the images of these vectors; without, all are "
            "near-duplicates"
        )
    near, links = photos.find_repeats(
        approximate, distance=distance, archive=archive, orientations=orientations, edits=edits
    )
    facts = image_stats(images, sorted({row for link in links for row in link[1:3]}))
    stays = Staying(images, links, archive)
    members = group_members(links, facts, images.names, near, archive, stays.why)
    features = normalize(photos.features, dim=1)  # after the search, which has a copy of its own
    compared = Comparison(features, archive, near, links, members, facts)
    return Duplicates(photos, compared, where, of_splits, orientations, edits is not False)


class Duplicates(Result):
    """Images that repeat others."""

    def __init__(
        self,
        photos: Embeddings,
        compared: Comparison,
        where: str,
        of_splits: str,
        orientations: bool,
        edits: bool,
    ) -> None:
        """where, of_splits: the data and its splits in words, without the archive."""
        self.compared, self.of_splits = compared, of_splits
        self.orientations, self.edits = orientations, edits
        columns = _columns(photos, compared, edits)
        kept = zip(columns.get("path", ()), columns["kept"], strict=False)
        count = len(photos) - compared.archive
        about = f"among {count} images of {where}"
        about += f", against {compared.archive} of an archive" if compared.archive else ""
        super().__init__(
            photos,
            columns,
            title="Near-duplicates",
            about=about,
            files=[path for path, keep in kept if not keep],
        )
        self.lines += self._lines()

    def _lines(self) -> list[str]:
        """Say how many images repeat others, and how."""
        archive, kinds = self.compared.archive, self["kind"]
        counts = [kinds.count(kind) for kind in KINDS]
        same, pixels, again, turned, mirrored, stretched, edited, near_duplicates = counts
        frames = kinds.count(FRAME)
        by_kind = (
            f"{same} the same file, {pixels} the same pixels, {again} resized or encoded again"
        )
        by_kind += f", {turned} turned, {mirrored} mirrored" if self.orientations else ""
        by_kind += f", {stretched} stretched to other proportions" if stretched else ""
        by_kind += f", {edited} edited" if self.edits else ""
        by_kind += f", {frames} by their first frame alone" if frames else ""
        total = sum(counts) - near_duplicates + frames
        relation = "in the archive" if archive else "copies of others"
        of = f" of {self.of_splits}" if self.of_splits else ""
        groups = {
            member.group for member in self.compared.members if member.kind == KINDS[NEAR_DUPLICATE]
        }
        others = f"{near_duplicates}" if archive else f"{len(groups)} groups of"
        lines = [
            f"{total} of {len(self.photos) - archive} images{of} are {relation}: {by_kind}",
            f"{others} others are near-duplicates, at a distance of up to {self.compared.near:.3g}",
        ]
        if stay := [why for why in self["why"] if why]:
            reasons = ", ".join(f"{count} {why}" for why, count in Counter(stay).most_common())
            lines.append(
                f"{len(stay)} that are the same file are not listed for removal: {reasons}"
            )
        return [*lines, "nothing was removed"]

    def after(self, path: Path) -> Sequence[str]:
        """Return the commands that act on what is the same file: one makes hard links, the other
        archives and then removes.
        """
        if self.photos.paths is None:
            return ()
        lines = []
        rows = zip(self["kind"], self["why"], self["bytes"], strict=True)
        sizes = [size for kind, why, size in rows if kind == KINDS[SAME_FILE] and why != NOTHING]
        if sizes:
            lines.append(
                f"to make hard links of the {len(sizes)} that are the same file, which keeps every "
                f"name and frees up to {_size(sum(sizes))}: {link_command(path.with_suffix(TABLE))}"
            )
        if self.files:
            command = archive_and_delete_command(path.with_suffix(FILES))
            lines.append(
                f"to archive and then remove what is the same file, byte for byte: {command}"
            )
        return lines

    def piped(self) -> list[str]:
        """Return the files, or names, with the same bytes as one that is kept."""
        names = self["path" if "path" in self else "name"]
        return [name for name, keep in zip(names, self["kept"], strict=True) if not keep]

    @isolated()
    def page(self) -> str:
        """Return the page: groups at a distance that a slider sets, copies apart from
        near-duplicates.
        """
        place, near = _nearest_pairs(self.compared.links)
        count = len(self.photos) - self.compared.archive
        data = {
            "images": self._described(list(place)),
            "links": near,
            "near_duplicate": NEAR_DUPLICATE,
            "distance": self.compared.near,
            "command": self.again("distance"),  # which the slider gives
            "files": CHOSEN,
            "removing": archive_and_delete_command(Path(CHOSEN)),
        }
        near_duplicates = {
            member.row
            for member in self.compared.members
            if member.kind == KINDS[NEAR_DUPLICATE] and member.row >= self.compared.archive
        }
        return render_page(
            "duplicates/duplicates.html",
            title=self.title,
            about=self.about,
            data=data,
            left=len(self.compared.links) - len(near),
            folded=len(near_duplicates) if len(near_duplicates) > FOLDED * count else 0,
            images=count,
            scripts=[script("saving.js", "duplicates/duplicates.js")],
        )

    def _described(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return what the page shows of each image."""
        copies = {
            member.row: member
            for member in self.compared.members
            if member.kind != KINDS[NEAR_DUPLICATE]
        }
        described = []
        for row, figure in zip(
            rows, thumbnails_for(self.photos, rows, [""] * len(rows)), strict=True
        ):
            member = copies.get(row, Member(0, row, "", True))
            described.append(
                {
                    "name": figure.name,
                    "url": figure.url,
                    "href": figure.href,
                    "kind": member.kind,
                    "kept": member.kept,
                    "turn": member.turn,
                    "why": member.why,
                    "archived": row < self.compared.archive,
                    "stretched": member.stretched,
                    "edit": member.edit,
                    **self.compared.facts[row]._asdict(),
                }
            )
        return described


def _size(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _columns(photos: Embeddings, compared: Comparison, edits: bool) -> Columns:
    """Return a row for each image that repeats another one, or that an archive has."""
    archive, features = compared.archive, compared.features
    first = {member.group: member.row for member in reversed(compared.members)}
    listed = [member for member in compared.members if member.row >= archive]
    rows, beside = [member.row for member in listed], [first[member.group] for member in listed]
    apart = (features[beside] - features[rows]).square().sum(1) / 2

    def described(rows: Sequence[int]) -> Columns:
        known, facts = photos.columns(rows), [compared.facts[row] for row in rows]
        return {
            "name": known.pop("name"),
            "width": [fact.width for fact in facts],
            "height": [fact.height for fact in facts],
            "bytes": [fact.bytes for fact in facts],
            **known,
        }

    columns: Columns = {} if archive else {"group": [member.group for member in listed]}
    columns["kind"] = [member.kind for member in listed]
    if not archive:
        places = photos.images.names if photos.paths is None else photos.paths
        columns["of"] = [places[member.of] if member.of != member.row else "" for member in listed]
    columns |= {
        "kept": [member.kept for member in listed],
        "why": [member.why for member in listed],
        **({"edit": [member.edit for member in listed]} if edits else {}),
        "name": [],
        "distance": apart.tolist(),
        **described(rows),
    }
    if archive:
        columns |= {f"archive_{field}": values for field, values in described(beside).items()}
    return columns


def _nearest_pairs(links: Sequence[Link]) -> tuple[dict[int, int], list[list[Any]]]:
    """Return the place of each image on the page, and its pairs by these, copies first; as many as
    the page holds.
    """
    place: dict[int, int] = {}
    near: list[list[Any]] = []
    for link in sorted(links, key=lambda link: link.kind == NEAR_DUPLICATE):
        if len(place.keys() | {link.first, link.second}) > MOST_IMAGES:
            break
        pair = [place.setdefault(row, len(place)) for row in (link.first, link.second)]
        near.append([link.distance, *pair, link.kind])
    return place, near
