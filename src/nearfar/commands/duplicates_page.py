"""The page on which a person sets the distance of near-duplicates by looking."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from nearfar.commands.copies import ALIKE, KINDS, Facts, Link
from nearfar.commands.gallery import pictures, write_gallery
from nearfar.commands.run_features import Featured

MOST_IMAGES = 1500  # on the page, in the nearest pairs: about 10 MB


def write_duplicates_page(
    path: Path, known: Featured, links: Sequence[Link], facts: Mapping[int, Facts], distance: float, command: str
) -> None:
    """Write the page: groups at a distance that a slider sets, copies apart from images that are merely alike.

    links: nearest first, those beyond `distance` as well, for the slider. command: that makes these lists again.
    """
    place: dict[int, int] = {}
    shown = []
    for link in sorted(links, key=lambda link: link.kind == ALIKE):  # copies first
        if len(place.keys() | {link.first, link.second}) > MOST_IMAGES:
            break
        ends = [place.setdefault(row, len(place)) for row in (link.first, link.second)]
        shown.append([link.distance, *ends, link.kind])
    urls = pictures(known, list(place))
    images = [
        {
            "name": known.images.names[row],
            "url": urls[row],
            "href": None if known.paths is None else Path(known.paths[row]).as_uri(),
            **facts[row]._asdict(),
        }
        for row in place
    ]
    told = {"images": images, "links": shown, "kinds": KINDS, "alike": ALIKE, "distance": distance, "command": command}
    data = json.dumps(told).replace("<", "\\u003c")
    script = "\n" + resources.files("nearfar.commands").joinpath("duplicates.js").read_text(encoding="utf-8")
    left = len(links) - len(shown)
    more = f" The page holds the nearest {len(shown)} pairs; {left} more are left out." if left else ""
    main = (
        '<div class="control"><label for="far">Distance up to which images that are no copies count as alike</label>'
        '<input type="range" id="far" min="0" step="1"><output id="said" for="far"></output></div>'
        f'<p class="note">Move the slider until no group is wrong and none is missing, then make the lists with '
        f'this distance; nothing is removed.{more}</p><pre><code id="command"></code></pre>'
        '<h2>Copies</h2><p class="note">Confirmed by their pixels at full size. The first one, marked, has the most '
        "pixels. What is the same file, byte for byte, is listed for removal; look at all others yourself.</p>"
        '<div class="groups pairs" id="copies"></div>'
        '<h2>Merely alike</h2><p class="note">Near by their features, and other pixels: all are kept.</p>'
        f'<div class="groups pairs" id="alike"></div><script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script>"
    )
    write_gallery(path, "Near-duplicates", f"among {len(known.images)} images", main, scripts=[script])
