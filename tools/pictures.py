"""Draw the pictures of the pages that nearfar writes: docs/pictures/front.jpg and verbs.jpg.

    python -m tools.pictures RUN                          # front.jpg: its map and report, after evaluate and map
    python -m tools.pictures RUN FOLDER [--query IMAGE]   # verbs.jpg: a page of each verb on photographs in FOLDER

Every panel is a page in headless Chromium.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import nearfar
from tools.browser import Browser, opened

PANEL, TITLE, GAP = (620, 470), 26, 8
WINDOW = (1000, 758)  # the same shape as a panel


def main() -> None:
    """Run the verbs, look at their pages and put them side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument(
        "--query", default="", help="the image that is searched for; default: one at random"
    )
    args = parser.parse_args()
    run = nearfar.Run(Path(args.run))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        pages = {"map.html": run.path / "map.html", "report.html": run.path / "report.html"}
        if args.folder:
            pages = _verbs(run, args.folder, args.query, place)
        with opened(place / "profile", [f"window-size={WINDOW[0]},{WINDOW[1]}"]) as window:
            seen = {
                title: _seen(window, page, thumbnails=not args.folder)
                for title, page in pages.items()
            }
    out = Path("docs/pictures", "verbs.jpg" if args.folder else "front.jpg")
    _side_by_side(seen).save(out, quality=82)
    print(f"-> {out}")


def _verbs(run: nearfar.Run, photographs: Path, query: str, place: Path) -> dict[str, Path]:
    """The page of each verb that lists images, and the map, by command."""
    data = str(photographs)
    files = sorted(
        path for path in photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    )
    query = query or str(random.Random(0).choice(files))
    pages = {
        "nearfar map RUN": place / "map.html",
        f"nearfar search RUN {Path(query).name}": place / "search.html",
        "nearfar duplicates RUN": place / "duplicates.html",
        "nearfar select RUN --by outlier": place / "odd.html",
        "nearfar select RUN --by typical": place / "typical.html",
        "nearfar cluster RUN": place / "cluster.html",
    }
    to_map, to_search, to_duplicates, to_odd, to_typical, to_cluster = pages.values()
    nearfar.map(run, data, out=to_map)
    run.search(query, data=data, k=20, out=to_search)
    run.duplicates(data, out=to_duplicates)
    run.select(data=data, by="outlier", n=20, out=to_odd)
    run.select(data=data, by="typical", n=20, out=to_typical)
    run.cluster(data, out=to_cluster)
    return pages


def _side_by_side(seen: dict[str, Image.Image]) -> Image.Image:
    """Two panels a row, each below its title."""
    width, height = PANEL
    rows = (len(seen) + 1) // 2
    whole = Image.new("RGB", (2 * width + 3 * GAP, rows * (height + TITLE + GAP) + GAP), "white")
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(15)
    for number, (title, picture) in enumerate(seen.items()):
        left, top = GAP + number % 2 * (width + GAP), GAP + number // 2 * (height + TITLE + GAP)
        draw.text((left, top + 4), title, "#333333", font)
        whole.paste(picture.resize(PANEL, Image.Resampling.LANCZOS), (left, top + TITLE))
        draw.rectangle(
            (left, top + TITLE, left + width - 1, top + TITLE + height - 1), outline="#cccccc"
        )
    return whole


def _seen(window: Browser, page: Path, thumbnails: bool) -> Image.Image:
    """The upper part of a page, on maps with images or points."""
    window.visit(page)
    if page.name == "map.html":
        window.wait("document.querySelector('#count').textContent.length > 0")
        if thumbnails:
            window.run("document.querySelector('#pictures').click()")
        window.run("new Promise(done => setTimeout(done, 2000))")  # its images are drawn
    return Image.fromarray(window.screenshot())


if __name__ == "__main__":
    main()
