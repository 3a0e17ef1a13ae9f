"""A page of images with samples of their views, and what the views are in words."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from nearfar.commands.page import IMAGE, main_part, whole_page
from nearfar.data import Images
from nearfar.maps.thumbnails import data_url, thumbnails
from nearfar.training.seeding import stream
from nearfar.views import View, ViewPlan, Views, make_views, names_in

SHOWN = 96  # pixels of the largest view on the page
STORED = 128  # and at most in its data, for screens with more pixels
DASH = "\u2013"
ENLARGED = 48  # images below this are shown pixel by pixel
ELEMENTS = frozenset(
    ["section", "h2", "div", "table", "thead", "tbody", "tr", "th", "td", "small", "p", "br", "figure", "figcaption"]
)
ATTRIBUTES = {"class": r"[\w -]*", "scope": r"\w*", "alt": r".*", "title": r".*", "style": r"--side: \d+px"}
ATTRIBUTES |= {"width": r"\d+", "height": r"\d+", "src": IMAGE}
"""Elements of the section in the report, and what their attributes may hold."""


def views_page(title: str, about: str, images: Images, views: Views, *, samples: int, seed: int) -> str:
    """Return a page with a row for each image: the original, then `samples` samples of each view, and a table on top.

    Views keep their sizes relative to each other. The page asks for nothing outside itself. seed: of the samples.
    """
    pixels = images.gather(torch.arange(len(images)))
    drawn = sample_views(pixels, views, samples, seed)
    largest = max(view.shape[-1] for view in drawn[0])
    whole = STORED / largest if largest > STORED else 1.0
    factor = SHOWN // largest if largest < ENLARGED else SHOWN / largest
    side = round(factor * largest)
    chosen = slice(None) if images.shown is None else images.shown
    originals = thumbnails(images.pictures(torch.arange(len(images))), STORED)
    shrunk = [
        [thumbnails(view[:, chosen], max(1, round(whole * view.shape[-1]))) for view in views_] for views_ in drawn
    ]
    rows = ""
    for row, name in enumerate(images.names):
        known = html.escape(name)
        original = _figure(known, _picture(originals[row], side, f"{known}, as it is"), known)
        figures = ""
        for number in range(len(views)):
            shown = round(factor * drawn[0][number].shape[-1])
            pictures = [
                _picture(one[number][row], shown, f"{known}, view {number + 1}, sample {at + 1}")
                for at, one in enumerate(shrunk)
            ]
            figures += _figure(f"View {number + 1}", f'<div class="samples">{"".join(pictures)}</div>')
        rows += f'<div class="image">{original}<div class="of-views">{figures}</div></div>'
    return whole_page(
        title,
        about,
        f'<section class="views" style="--side: {side}px">{_style()}<h2>What training sees</h2>'
        f'{views_table(views, images)}{rows}<p class="note">Training pulls the views of an image together and pushes '
        "those of different images apart. Take views that change what does not matter to you and keep what does: "
        "where you could no longer tell two kinds of images apart by their views, the encoder cannot either.</p>"
        "</section>",
    )


def views_section(folder: Path) -> str:
    """Return the section of the report that shows views.html; empty where there is none.

    It is built anew from the page's text and images: of a page that something else wrote, nothing else comes along.
    """
    path = folder / "views.html"
    if not path.is_file():
        return ""
    section = _Section()
    section.feed(main_part(path.read_text(encoding="utf-8")))
    section.close()
    return section.html


class _Section(HTMLParser):
    """Builds the section of a page of views anew, in `html`, of elements and attributes that such a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.html, self._within = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = "".join(
            f' {name}="{html.escape(value or "")}"'
            for name, value in attrs
            if name in ATTRIBUTES and re.fullmatch(ATTRIBUTES[name], value or "", re.DOTALL)
        )
        if tag in ELEMENTS or tag == "img":
            self.html += f"<{tag}{kept}>"
        elif tag in ("style", "script"):
            self.html += _style() if tag == "style" else ""
            self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = "" if tag == self._within else self._within
        if tag in ELEMENTS - {"br"}:
            self.html += f"</{tag}>"

    def handle_data(self, data: str) -> None:
        if not self._within:
            self.html += html.escape(data)


def _style() -> str:
    style = resources.files("nearfar.commands").joinpath("views.css").read_text(encoding="utf-8")
    return f"<style>\n{style}</style>"


def sample_views(
    pixels: Shaped[Tensor, "images channels side side"], views: Views, samples: int, seed: int
) -> list[list[Tensor]]:
    """Return `samples` lists with the views of all images, each uint8 [images, channels, side, side]."""
    channels, generator = pixels.shape[1], stream(seed, "views shown")
    made = [make_views(pixels, views, generator, [0.0] * channels, [1.0] * channels) for _ in range(samples)]
    return [[view.mul(255).round_().clamp_(0, 255).to(torch.uint8) for view in one] for one in made]


def views_table(views: Views, images: Images) -> str:
    """Return a table in HTML with a column for each distribution of views and its numbers in words."""
    if not isinstance(views, ViewPlan):
        return f'<p class="note">Made by the function {html.escape(str(views.name))}.</p>'
    names = names_in(views.name)
    names = names if len(names) == len(views) else (views.name,) * len(views)
    columns: dict[tuple[str, View], list[int]] = {}
    for number, (name, view) in enumerate(zip(names, views.views, strict=True), 1):
        columns.setdefault((name, view), []).append(number)
    head = "".join(
        f'<th scope="col">{html.escape(name)}<small>{_numbered(numbers)}</small></th>'
        for (name, _), numbers in columns.items()
    )
    words = [in_words(view, images.image_size, images.channels) for _, view in columns]
    body = ""
    for row in words[0]:
        if any(column[row] for column in words):
            cells = "".join(f"<td>{column[row] or DASH}</td>" for column in words)
            body += f'<tr><th scope="row">{row}</th>{cells}</tr>'
    return f'<div class="scroll"><table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def in_words(view: View, image_size: int, channels: int) -> dict[str, str]:
    """Return what a view does to images, in words; empty where it leaves them as they are.

    Shares are those of all images; amounts are the largest, or a range that is sampled from evenly.
    """
    moves = [
        f"turned by up to {view.degrees:g}°" if view.degrees else "",
        f"shifted by up to {_share(view.translate)} of the side" if view.translate else "",
        f"zoomed {_range(view.zoom)} times" if view.zoom != (1.0, 1.0) else "",
        f"sheared by up to {view.shear:g}°" if view.shear else "",
    ]
    colours = [f"{name} ±{_share(getattr(view, name))}" for name in ("brightness", "contrast") if getattr(view, name)]
    if channels == 3:
        colours += [f"saturation ±{_share(view.saturation)}"] if view.saturation else []
        colours += [f"hue ±{360 * view.hue:g}°"] if view.hue else []
    return {
        "Size": f"{view.size or image_size} px",
        "Crop": f"{_range(view.scale, 100)} % of the area" if view.scale[0] < 1 else "",
        "Width to height": _range(view.ratio) if view.ratio != (1.0, 1.0) else "",
        "Flipped left to right": _some(view.flip),
        "Flipped upside down": _some(view.flip_vertical),
        "Turned by 90°, 180° or 270°": _some(view.rot90),
        "Moved": _some(view.affine, moves),
        "Light and colour" if channels == 3 else "Light": _some(view.jitter if any(colours) else 0.0, colours),
        "Without colour": _some(view.grey if channels == 3 else 0.0),
        "Without one channel": _some(view.drop if channels > 1 else 0.0),
        "Blurred": _some(view.blur, [f"by {_range(view.sigma)} px"]),
        "Bright parts inverted": _some(view.solarize),
        "Noise": _some(view.noise, [f"{_range(view.noise_std, 100)} % of the full range"]),
    }


def _some(probability: float, amounts: list[str] | None = None) -> str:
    said = ",<br>".join(filter(None, amounts or []))
    return _share(probability) + (f": {said}" if said else "") if probability else ""


def _share(value: float) -> str:
    return f"{100 * value:.3g}\u00a0%"


def _range(bounds: tuple[float, float], unit: float = 1.0) -> str:
    low, high = (f"{unit * bound:.3g}" for bound in bounds)
    return low if low == high else f"{low}{DASH}{high}"


def _numbered(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"view {numbers[0]}"
    together = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2
    return f"views {_range((numbers[0], numbers[-1]))}" if together else f"views {', '.join(map(str, numbers))}"


def _figure(caption: str, content: str, hint: str = "") -> str:
    told = f' title="{hint}"' if hint else ""
    return f"<figure><figcaption{told}>{caption}</figcaption>{content}</figure>"


def _picture(tile: UInt8[Tensor, "3 side side"], shown: int, words: str) -> str:
    enlarged = tile.shape[-1] < ENLARGED and shown > tile.shape[-1]
    url = data_url(tile, lossless=tile.shape[-1] < ENLARGED)
    kind = ' class="enlarged"' if enlarged else ""
    return f'<img{kind} width="{shown}" height="{shown}" alt="{words}" src="{url}">'
