"""Draw docs/pictures/verbs.jpg: the pages of the verbs for a folder of photographs.

    python -m tools.pictures RUN FOLDER [--out docs/pictures/verbs.jpg]

RUN is a run folder, FOLDER photographs that its encoder embeds. Every panel is the page written by the command above
it, in headless Chromium.
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/verbs.jpg"))
    parser.add_argument("--query", default="", help="the image that is searched for; default: one at random")
    args = parser.parse_args()
    run, data = nearfar.Run(Path(args.run)), str(args.folder)
    files = sorted(path for path in args.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    query = args.query or str(random.Random(0).choice(files))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        pages = {verb: place / f"{verb}.html" for verb in ("map", "search", "duplicates", "odd", "typical", "cluster")}
        nearfar.map_images(run, data, out=pages["map"])
        run.search(query, data=data, k=20, out=pages["search"])
        run.duplicates(data, out=pages["duplicates"])
        run.select(data=data, by="outlier", n=20, out=pages["odd"])
        run.select(data=data, by="typical", n=20, out=pages["typical"])
        run.cluster(data, out=pages["cluster"])
        titles = {
            "map": "nearfar map RUN", "search": f"nearfar search RUN {Path(query).name}",
            "duplicates": "nearfar duplicates RUN", "odd": "nearfar select RUN --by outlier",
            "typical": "nearfar select RUN --by typical", "cluster": "nearfar cluster RUN",
        }  # fmt: skip
        with opened(place / "profile", [f"window-size={WINDOW[0]},{WINDOW[1]}"]) as window:
            seen = {verb: _seen(window, page, verb) for verb, page in pages.items()}
    width, height = PANEL
    whole = Image.new("RGB", (2 * width + 3 * GAP, 3 * (height + TITLE) + 4 * GAP), "white")
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(15)
    for number, (verb, picture) in enumerate(seen.items()):
        left, top = GAP + number % 2 * (width + GAP), GAP + number // 2 * (height + TITLE + GAP)
        draw.text((left, top + 4), titles[verb], "#333333", font)
        whole.paste(picture.resize(PANEL, Image.Resampling.LANCZOS), (left, top + TITLE))
        draw.rectangle((left, top + TITLE, left + width - 1, top + TITLE + height - 1), outline="#cccccc")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    whole.save(args.out, quality=82)
    print(f"-> {args.out}")


def _seen(window: Browser, page: Path, verb: str) -> Image.Image:
    """The upper part of a page."""
    window.visit(page)
    if verb == "map":
        window.wait("document.querySelector('#count').textContent.length > 0")
        window.run("new Promise(done => setTimeout(done, 2000))")  # its images are drawn
    return Image.fromarray(window.screenshot())


if __name__ == "__main__":
    main()
