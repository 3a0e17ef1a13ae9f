"""The page on which a person sets the distance of near-duplicates by looking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.data import Images
from nearfar.pages.contact_sheets import pictures
from nearfar.pages.template import script, write_page

MOST_IMAGES = 1500  # on the page, in the nearest pairs: about 10 MB


def write_duplicates_page(
    path: Path,
    images: Images,
    paths: Sequence[str] | None,
    links: Sequence[tuple[float, int, int, int]],
    facts: Mapping[int, Mapping[str, Any]],
    *,
    kinds: Sequence[str],
    distance: float,
    command: str,
) -> None:
    """Write the page: groups at a distance that a slider sets, copies apart from images that are merely alike.

    links: distance, two positions and a place in `kinds`, the last of which is "alike"; nearest first, those beyond
    `distance` as well, for the slider. facts: by position, what the page says of an image: width, height, bytes and
    whether it is a link. command: that makes these lists again.
    """
    place: dict[int, int] = {}
    shown = []
    for far, first, second, kind in sorted(links, key=lambda link: link[3] == len(kinds) - 1):  # copies first
        if len(place.keys() | {first, second}) > MOST_IMAGES:
            break
        shown.append([far, *(place.setdefault(row, len(place)) for row in (first, second)), kind])
    urls = pictures(images, list(place))
    told = [
        {
            "name": images.names[row],
            "url": urls[row],
            "href": None if paths is None else Path(paths[row]).as_uri(),
            **facts[row],
        }
        for row in place
    ]
    data = {"images": told, "links": shown, "kinds": kinds, "alike": len(kinds) - 1}
    write_page(
        path,
        "duplicates.html",
        title="Near-duplicates",
        about=f"among {len(images)} images",
        data={**data, "distance": distance, "command": command},
        left=len(links) - len(shown),
        scripts=[script("duplicates.js")],
    )
