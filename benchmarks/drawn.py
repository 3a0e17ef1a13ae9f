"""Images drawn from random numbers: surfaces of tiles with defects, scanned pages, road signs, letters of fonts.

Each function draws one image of a class as uint8, [height, width] or [height, width, 3].
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from scipy.ndimage import gaussian_filter

TILE, PAGE, SIGN, GLYPH = 64, 96, 64, 48  # pixels
DRAWN = 128  # pixels, of a sign before it is reduced
FORM = 2 * PAGE  # pixels, of a page before it is reduced


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _between(rng: Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


# Surfaces: ground tiles, as in the photographs of Huang et al., "Surface defect saliency of
# magnetic tile" (2018). Grinding marks run from left to right.


def tile(kind: str, rng: Generator) -> np.ndarray:
    """Draw a tile of a kind in DEFECTS, 64 px, gray."""
    marks = gaussian_filter(rng.normal(size=(TILE, TILE)), (0.6, _between(rng, 5, 15)))
    clouds = gaussian_filter(rng.normal(size=(TILE, TILE)), 12)
    ramp = np.linspace(-1, 1, TILE)
    surface = _between(rng, 80, 150) + 6 * marks / marks.std() + 5 * clouds / clouds.std()
    surface += _between(rng, -12, 12) * ramp + _between(rng, -12, 12) * ramp[:, None]
    surface = DEFECTS[kind](surface, rng)
    return _bytes(surface + rng.normal(scale=_between(rng, 2, 5), size=surface.shape))


def _blowhole(surface: np.ndarray, rng: Generator) -> np.ndarray:
    """Add one to three dark pits with a bright rim."""
    y, x = np.mgrid[:TILE, :TILE]
    for _ in range(rng.integers(1, 4)):
        top, left = rng.uniform(6, TILE - 6, 2)
        high, wide = rng.uniform(1.3, 3.2, 2)
        away = np.hypot((y - top) / high, (x - left) / wide)
        surface = surface - _between(rng, 35, 70) * np.exp(-(away**4))
        surface = surface + 14 * np.exp(-((away - 1.6) ** 2) / 0.08)
    return surface


def _crack(surface: np.ndarray, rng: Generator) -> np.ndarray:
    """Add a thin dark line that wanders."""
    steps = int(rng.integers(18, 50))
    angles = _between(rng, 0, np.pi) + np.cumsum(rng.normal(scale=0.3, size=steps))
    path = rng.uniform(12, TILE - 12, 2) + np.cumsum(
        np.stack([np.cos(angles), np.sin(angles)], 1), 0
    )
    image = Image.new("L", (TILE, TILE))
    ImageDraw.Draw(image).line([tuple(point) for point in path.tolist()], fill=255, width=1)
    line = gaussian_filter(np.asarray(image, np.float64) / 255, _between(rng, 0.3, 0.7))
    return surface - _between(rng, 60, 100) * line


def _fray(surface: np.ndarray, rng: Generator) -> np.ndarray:
    """Break pieces out of one edge, whose ground is bright and rough."""
    outline = gaussian_filter(rng.normal(size=TILE), 2.5)
    depth = _between(rng, 4, 9) + _between(rng, 2, 5) * outline / outline.std()
    broken = gaussian_filter((np.arange(TILE)[:, None] < depth).astype(np.float64), 0.6)
    ground = _between(rng, 25, 60) + 12 * gaussian_filter(rng.normal(size=surface.shape), 1.5)
    turned = np.rot90(broken, int(rng.integers(4)))
    return surface + ground * turned


def _uneven(surface: np.ndarray, rng: Generator) -> np.ndarray:
    """Add a wide soft stain."""
    stain = gaussian_filter(rng.normal(size=surface.shape), _between(rng, 7, 10))
    return surface - _between(rng, 20, 35) * np.clip(stain / stain.std(), 0, 2)


DEFECTS: dict[str, Callable[[np.ndarray, Generator], np.ndarray]] = {
    "none": lambda surface, rng: surface,
    "blowhole": _blowhole,
    "crack": _crack,
    "fray": _fray,
    "uneven": _uneven,
}


# Pages: drawn at 192 px, then moved, skewed, cut off, reduced to 96 px and scanned with noise.

WORDS = tuple(
    re.findall(
        r"\w+",
        """The of and to in for is on that by this with you it not or be are from at as your all have
        new more an was we will home can us about if page my has search free but our one other do
        no information time they site he up may what which their news out use any there see only
        so his when contact here business who web also now help get view online first total amount
        account received between invoice customer product service department""",
    )
)
SMALL, LARGE = (ImageFont.load_default(size) for size in (7, 12))
LENGTHS = np.array([SMALL.getlength(f"{word} ") for word in WORDS])


def page(kind: str, rng: Generator) -> np.ndarray:
    """Draw a page of a layout in LAYOUTS, 96 px, gray."""
    sheet = Image.new("L", (FORM, FORM), 255)
    LAYOUTS[kind](ImageDraw.Draw(sheet), rng)
    paper = int(rng.integers(215, 250))
    zoom, turn = _between(rng, 0.85, 1.3), rng.normal(scale=0.04)  # radians
    c, d = np.cos(turn) / zoom, np.sin(turn) / zoom
    x, y = FORM / 2 + rng.uniform(-16, 16, 2)
    turned = sheet.transform(
        (FORM, FORM),
        Image.Transform.AFFINE,
        (c, d, FORM / 2 - c * x - d * y, -d, c, FORM / 2 + d * x - c * y),
        Image.Resampling.BILINEAR,
        fillcolor=255,
    )
    small = turned.filter(ImageFilter.GaussianBlur(_between(rng, 0.2, 0.9)))
    ink = np.asarray(small.resize((PAGE, PAGE), Image.Resampling.BOX), np.float64) / 255
    shade = 1 + _between(rng, -0.12, 0.12) * np.linspace(-1, 1, PAGE)
    scan = (paper - _between(rng, 150, 210) * (1 - ink)) * shade
    return _bytes(scan + rng.normal(scale=_between(rng, 2, 9), size=scan.shape))


def _line(draw: ImageDraw.ImageDraw, rng: Generator, left: float, top: float, width: float) -> None:
    """Write the words that the width has room for, one at least."""
    words = rng.integers(len(WORDS), size=2 + int(width / 8))
    count = max(1, int((np.cumsum(LENGTHS[words]) <= width).sum()))
    text = " ".join(WORDS[word] for word in words[:count])
    draw.text((left, top), text, fill=0, font=SMALL)


def _block(
    draw: ImageDraw.ImageDraw,
    rng: Generator,
    box: tuple[float, float, float],
    lines: int,
    last: float = 0.5,
) -> float:
    """Write lines from (left, top) on, the last of a share of the width; return where they end."""
    left, top, width = box
    for number in range(lines):
        share = last if number == lines - 1 else _between(rng, 0.93, 1)
        _line(draw, rng, left, top, share * width)
        top += 8
    return top


def _number(rng: Generator, most: int = 10000) -> str:
    return f"{rng.integers(1, most)}.{rng.integers(100):02d}"


def _right(draw: ImageDraw.ImageDraw, right: float, top: float, text: str) -> None:
    draw.text((right - SMALL.getlength(text), top), text, fill=0, font=SMALL)


def _letter(draw: ImageDraw.ImageDraw, rng: Generator) -> None:
    if rng.random() < 0.5:
        draw.text((_between(rng, 16, 100), 8), str(rng.choice(WORDS)).title(), 0, LARGE)
    _block(draw, rng, (16, 26, _between(rng, 45, 70)), int(rng.integers(3, 5)), 0.8)
    _line(draw, rng, _between(rng, 125, 140), _between(rng, 26, 60), 36)
    top = _block(draw, rng, (16, _between(rng, 64, 74), 40), 1, 1) + 3
    for _ in range(rng.integers(2, 5)):
        lines = int(rng.integers(2, 5))
        if top + 8 * lines > 160:
            break
        top = _block(draw, rng, (16, top, 160), lines, _between(rng, 0.2, 0.9)) + 5
    _block(draw, rng, (_between(rng, 16, 110), top + 3, 45), 2, 0.7)


def _article(draw: ImageDraw.ImageDraw, rng: Generator) -> None:
    title = " ".join(rng.choice(WORDS, 3)).title()
    draw.text(((FORM - LARGE.getlength(title)) / 2, 8), title, fill=0, font=LARGE)
    top = _block(draw, rng, (40, 24, 112), int(rng.integers(2, 5)), 0.6) + 6
    columns = int(rng.integers(1, 4))
    wide = 172 / columns
    figure = rng.integers(-1, columns)  # the column with a figure, or none
    for column in range(columns):
        start, left = top, 12 + column * wide
        if column == figure:
            high = _between(rng, 25, 50)
            draw.rectangle((left, start, left + wide - 8, start + high), outline=0, fill=190)
            start += high + 4
        while start < 168:
            lines = min(int(rng.integers(3, 9)), int((182 - start) // 8))
            box = (left, start, wide - 8)
            start = _block(draw, rng, box, lines, _between(rng, 0.3, 1)) + 2


def _form(draw: ImageDraw.ImageDraw, rng: Generator) -> None:
    draw.text((14, 8), " ".join(rng.choice(WORDS, 2)).title(), fill=0, font=LARGE)
    top, boxed = 28.0, rng.random() < 0.5
    while top < 172:
        split = rng.random() < 0.4
        for left, right in ((14, 92), (100, 178)) if split else ((14, 178),):
            _line(draw, rng, left, top, _between(rng, 20, 36))
            if boxed:
                draw.rectangle((left + 38, top - 1, right, top + 9), outline=0)
            else:
                draw.line((left + 38, top + 8, right, top + 8), fill=0)
            if rng.random() < 0.5:  # filled in
                _line(draw, rng, left + 41, top, _between(rng, 8, right - left - 42))
        top += _between(rng, 12, 15)
        if rng.random() < 0.25:
            for left in range(14, 160, 42):
                draw.rectangle((left, top + 1, left + 6, top + 7), outline=0)
                _line(draw, rng, left + 9, top, 28)
            top += 13


def _grid(draw: ImageDraw.ImageDraw, rng: Generator, top: float, rows: int, high: float) -> None:
    """Draw a table with ruled or shaded rows, words in the first column and numbers beside."""
    columns = int(rng.integers(3, 6))
    edges = [14, *np.linspace(70, 178, columns).tolist()]
    ruled, shaded = rng.random() < 0.7, rng.random() < 0.5
    for row in range(rows):
        at = top + high * row
        if row == 0 or (shaded and row % 2):
            draw.rectangle((14, at, 178, at + high), fill=215)
        _line(draw, rng, 16, at + 1, _between(rng, 20, 50))
        for right in edges[2:]:
            _right(draw, right - 2, at + 1, _number(rng, 100))
    for row in range(rows + 1) if ruled else (0, 1, rows):
        draw.line((14, top + high * row, 178, top + high * row), fill=0)
    for edge in edges if ruled else ():
        draw.line((edge, top, edge, top + high * rows), fill=0)


def _table(draw: ImageDraw.ImageDraw, rng: Generator) -> None:
    top = _between(rng, 10, 30)
    if top > 22:
        _line(draw, rng, 14, top - 12, _between(rng, 60, 150))
    high = _between(rng, 9.5, 13)
    _grid(draw, rng, top, int(rng.integers(9, int((184 - top) / high) + 1)), high)


def _invoice(draw: ImageDraw.ImageDraw, rng: Generator) -> None:
    logo = 14 if rng.random() < 0.5 else 140
    draw.rectangle((logo, 8, logo + _between(rng, 18, 38), _between(rng, 18, 26)), fill=90)
    _block(draw, rng, (14, 32, _between(rng, 45, 65)), int(rng.integers(3, 5)), 0.7)
    for row in range(3):
        _line(draw, rng, 118, 32 + 8 * row, 30)
        _right(draw, 178, 32 + 8 * row, str(rng.integers(1000, 99999)))
    rows, high = int(rng.integers(3, 7)), 10.0
    _grid(draw, rng, 72, rows, high)
    top = 76 + rows * high
    for _ in range(rng.integers(2, 4)):
        _line(draw, rng, 112, top, 26)
        _right(draw, 178, top, _number(rng))
        top += 8
    draw.line((110, top, 178, top), fill=0, width=2)
    if rng.random() < 0.6:
        _block(draw, rng, (14, 165, 160), 2, 0.6)


LAYOUTS: dict[str, Callable[[ImageDraw.ImageDraw, Generator], None]] = {
    "article": _article,
    "letter": _letter,
    "form": _form,
    "invoice": _invoice,
    "table": _table,
}


# Road signs: drawn at 128 px, then turned, lit, blurred and reduced to 64 px on a blurred ground.

RED, BLUE, YELLOW, WHITE, BLACK = (
    (190, 25, 35),
    (20, 75, 165),
    (250, 190, 20),
    (245, 245, 245),
    (15, 15, 15),
)
DIGITS = ImageFont.load_default(48)
CAPITALS = ImageFont.load_default(30)


def _disc(draw: ImageDraw.ImageDraw, inside: tuple[int, int, int]) -> None:
    draw.ellipse((16, 16, 112, 112), fill=RED)
    draw.ellipse((28, 28, 100, 100), fill=inside)


def _limit(speed: str) -> Callable[[ImageDraw.ImageDraw], None]:
    def sign(draw: ImageDraw.ImageDraw) -> None:
        _disc(draw, WHITE)
        draw.text((64, 64), speed, fill=BLACK, font=DIGITS, anchor="mm")

    return sign


def _stop(draw: ImageDraw.ImageDraw) -> None:
    draw.regular_polygon((64, 64, 52), 8, 22.5, fill=RED, outline=WHITE, width=4)
    draw.text((64, 64), "STOP", fill=WHITE, font=CAPITALS, anchor="mm")


def _yield(draw: ImageDraw.ImageDraw) -> None:
    draw.polygon(((12, 24), (116, 24), (64, 114)), fill=RED)
    draw.polygon(((32, 36), (96, 36), (64, 92)), fill=WHITE)


def _no_entry(draw: ImageDraw.ImageDraw) -> None:
    draw.ellipse((16, 16, 112, 112), fill=RED)
    draw.rectangle((30, 54, 98, 74), fill=WHITE)


def _priority(draw: ImageDraw.ImageDraw) -> None:
    draw.regular_polygon((64, 64, 52), 4, 45, fill=WHITE, outline=BLACK, width=2)
    draw.regular_polygon((64, 64, 38), 4, 45, fill=YELLOW)


def _warning(picture: Callable[[ImageDraw.ImageDraw], None]) -> Callable[..., None]:
    def sign(draw: ImageDraw.ImageDraw) -> None:
        draw.polygon(((64, 12), (118, 106), (10, 106)), fill=RED)
        draw.polygon(((64, 34), (100, 96), (28, 96)), fill=WHITE)
        picture(draw)

    return sign


def _exclamation(draw: ImageDraw.ImageDraw) -> None:
    draw.polygon(((59, 50), (69, 50), (66, 78), (62, 78)), fill=BLACK)
    draw.ellipse((60, 82, 68, 90), fill=BLACK)


def _bend(draw: ImageDraw.ImageDraw) -> None:
    draw.line(((58, 92), (58, 74), (70, 64), (70, 54)), fill=BLACK, width=6)
    draw.polygon(((62, 56), (78, 56), (70, 45)), fill=BLACK)


def _turn(right: bool) -> Callable[[ImageDraw.ImageDraw], None]:
    def sign(draw: ImageDraw.ImageDraw) -> None:
        draw.ellipse((16, 16, 112, 112), fill=BLUE)
        way = 1 if right else -1
        bent = [(64 - 14 * way, 92), (64 - 14 * way, 58), (64 + 10 * way, 58)]
        draw.line(bent, fill=WHITE, width=12, joint="curve")
        tip = [(64 + 8 * way, 42), (64 + 8 * way, 74), (64 + 32 * way, 58)]
        draw.polygon(tip, fill=WHITE)

    return sign


def _parking(draw: ImageDraw.ImageDraw) -> None:
    draw.rounded_rectangle((20, 20, 108, 108), 8, fill=BLUE, outline=WHITE, width=3)
    draw.text((64, 66), "P", fill=WHITE, font=ImageFont.load_default(70), anchor="mm")


SIGNS: dict[str, Callable[[ImageDraw.ImageDraw], None]] = {
    "30": _limit("30"),
    "50": _limit("50"),
    "80": _limit("80"),
    "priority": _priority,
    "yield": _yield,
    "no entry": _no_entry,
    "stop": _stop,
    "danger": _warning(_exclamation),
    "bend": _warning(_bend),
    "turn right": _turn(True),
    "turn left": _turn(False),
    "parking": _parking,
}


def sign(kind: str, rng: Generator) -> np.ndarray:
    """Draw a photograph of a road sign of a kind in SIGNS, 64 px, RGB."""
    front = Image.new("RGBA", (DRAWN, DRAWN))
    SIGNS[kind](ImageDraw.Draw(front))
    turn, size = rng.normal(scale=0.08), _between(rng, 0.8, 1.25)  # radians, of the source
    shear, narrow = rng.normal(scale=0.08), _between(rng, 1, 1.25)
    a, b = size * narrow * np.cos(turn), size * (shear - np.sin(turn))
    d, e = size * np.sin(turn), size * np.cos(turn)
    x, y = 64 + rng.uniform(-7, 7, 2)
    moved = front.transform(
        (DRAWN, DRAWN),
        Image.Transform.AFFINE,
        (a, b, 64 - a * x - b * y, d, e, 64 - d * x - e * y),
        Image.Resampling.BILINEAR,
    )
    ground = gaussian_filter(rng.normal(size=(DRAWN, DRAWN, 3)), (9, 9, 0.6))
    ground = 110 + _between(rng, 15, 45) * ground / ground.std() + rng.uniform(-40, 40, 3)
    scene = Image.fromarray(_bytes(ground))
    scene.paste(moved, mask=moved.getchannel("A"))
    small = scene.filter(ImageFilter.GaussianBlur(_between(rng, 0.3, 2.2))).resize(
        (SIGN, SIGN), Image.Resampling.BOX
    )
    light = _between(rng, 0.25, 1.1) * rng.uniform(0.88, 1.12, 3)
    return _bytes(
        np.asarray(small) * light + rng.normal(scale=_between(rng, 2, 8), size=(SIGN, SIGN, 3))
    )


def glyph(text: str, font: ImageFont.FreeTypeFont, rng: Generator) -> np.ndarray:
    """Draw a character of a font of 100 px about 30 px high, moved and turned a little, on 48 px,
    gray: dark on light or light on dark.
    """
    left, top, right, bottom = font.getbbox(text)
    ink = Image.new("L", (max(1, int(right - left)), max(1, int(bottom - top))))
    ImageDraw.Draw(ink).text((-left, -top), text, fill=255, font=font)
    scale = _between(rng, 26, 34) / max(ink.size)
    size = [max(1, round(side * scale)) for side in ink.size]
    reduced = ink.resize((size[0], size[1]), Image.Resampling.BOX)
    reduced = reduced.rotate(rng.normal(scale=6), Image.Resampling.BICUBIC, expand=True)
    image = Image.new("L", (GLYPH, GLYPH))
    x, y = ((GLYPH - side) // 2 + int(rng.integers(-3, 4)) for side in reduced.size)
    image.paste(reduced, (x, y))
    paper, written = _between(rng, 170, 255), _between(rng, 0, 90)
    if rng.random() < 0.2:
        paper, written = written, paper
    share = np.asarray(image, np.float64) / 255
    values = paper + (written - paper) * share
    return _bytes(values + rng.normal(scale=_between(rng, 1, 10), size=values.shape))
