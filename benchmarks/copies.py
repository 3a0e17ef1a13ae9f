"""Precision and recall of the copies that `nearfar duplicates` confirms, on sets with known answers.

    python benchmarks/copies.py DATA --out docs/results/copies.json     # DATA holds imagenette/ and flowers/
    python benchmarks/copies.py DATA --seed 0 --sets invoices pages     # the sets that the limits were chosen on
    python benchmarks/copies.py DATA --orientations --out docs/results/copies-turned.json
    python benchmarks/copies.py DATA --orientations --saved PNG "JPEG 75" --sets one_digit --out ...
    python benchmarks/copies.py DATA --series 10 30 100 --out docs/results/copies-series.json
    python benchmarks/copies.py DATA --time --count 5 --out docs/results/copies-series.json
    python benchmarks/copies.py DATA --stretched --out docs/results/copies-stretched.json
    python benchmarks/copies.py DATA --leaks --out docs/results/copies-stretched.json
    python benchmarks/copies.py DATA --whole imagenette flowers --count 3000 --out docs/results/copies-turned.json

No image of a set is a copy of another: invoices of one template; invoices that differ in one digit; the same at half
the size, in several fonts; numbers alone at half the size that differ in one digit; pages of text; plots; screens of
one program; digits; bursts of a camera (frames shifted by 2 to 6 pixels, with noise and another exposure); and
photographs. Every image gets the copies that ALTERED names. Each image is compared with its copies, some of these with
one another, and the image with its nearest in the set at 16 pixels: both unaltered, one of them altered in every way,
and both altered alike in every way.

--orientations: all eight orientations of each image are saved as files, PNG, JPEG 75 and 1/2 in turn, and
`nearfar.duplicates(FOLDER, orientations=True)` is to group those of each image, and no others, by untrained
features. --stretched: copies of other proportions, 0.6 to 1.7 times as wide or squashed to a square; images of square
sets are first cut to 0.6 to 1.7. Each is compared with its own versions, and with those of its nearest in the set.
--leaks: `nearfar.check` on the scans as they are, and on flowers whose training images are squashed, a quarter of which
are test images at their own proportions. --whole SET: as --orientations, on so many images of a data set as it is:
seconds with and without --orientations, and what is found, to look at.

--series COUNT: so many images that are more alike than small versions show, each as PNG and as JPEG. --time: seconds
of the processor for a comparison of two photographs of 1920 x 1440 pixels, and for the small versions that refuse it.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import io
import itertools
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import PIL
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from pyarrow.dataset import dataset
from sklearn.datasets import load_digits

import nearfar
from nearfar.neighbours import COPY, LOCAL, local_difference, pixel_difference
from nearfar.neighbours.copies import compare_pixels, differs, reduced

Chance = np.random.Generator
TEXT = """\
account address amount and annual assessment balance before between branch building by city client company contract
copy date day delivery department district due during each form from general gross hours house in interest invoice
item journal law letter limit list market material member method minutes month net north note number of office on
order other page paper part payment per period person place plan policy price product project quarter rate record
reference region report result return river road room school section service share sheet signed site south state
street sum supply system table tax term the time to total train transfer unit value volume water week west with work
year
"""
FAMILIES = (
    "Adams Baker Clark Davis Evans Fischer Garcia Hughes Ito Jones Kim Lopez Meyer "
    "Nolan Olsen Park Quinn Rossi"
)
WORDS, NAMES = TEXT.split(), FAMILIES.split()


def encoded(image: Image.Image, file_format: str, **options: Any) -> Image.Image:
    """Return an image as it is read after it was saved."""
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return Image.open(file).convert(image.mode)


def resized(image: Image.Image, share: float, kernel: Image.Resampling) -> Image.Image:
    """The image at a share of its size."""
    return image.resize((round(image.width * share), round(image.height * share)), kernel)


BOX, BILINEAR, BICUBIC, LANCZOS = (
    Image.Resampling[name] for name in ("BOX", "BILINEAR", "BICUBIC", "LANCZOS")
)
ALTERED: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG 90": lambda image: encoded(image, "JPEG", quality=90),
    "JPEG 75": lambda image: encoded(image, "JPEG", quality=75),
    "JPEG 50": lambda image: encoded(image, "JPEG", quality=50),
    "JPEG 30": lambda image: encoded(image, "JPEG", quality=30),
    "WebP 80": lambda image: encoded(image, "WEBP", quality=80),
    "JPEG 75 twice": lambda image: encoded(encoded(image, "JPEG", quality=75), "JPEG", quality=70),
    "JPEG 50 twice": lambda image: encoded(encoded(image, "JPEG", quality=50), "JPEG", quality=50),
    "2/3": lambda image: resized(image, 2 / 3, BICUBIC),
    "2/3, JPEG 75": lambda image: encoded(resized(image, 2 / 3, LANCZOS), "JPEG", quality=75),
    "1/2, box": lambda image: resized(image, 1 / 2, BOX),
    "1/2, bilinear": lambda image: resized(image, 1 / 2, BILINEAR),
    "1/2, lanczos": lambda image: resized(image, 1 / 2, LANCZOS),
    "1/2, JPEG 75": lambda image: encoded(resized(image, 1 / 2, LANCZOS), "JPEG", quality=75),
    "1/2, JPEG 50": lambda image: encoded(resized(image, 1 / 2, BICUBIC), "JPEG", quality=50),
    "1/2, without a row and a column": lambda image: resized(
        image.crop((0, 0, image.width - 1, image.height - 1)), 1 / 2, BILINEAR
    ),
    "1/4": lambda image: resized(image, 1 / 4, LANCZOS),
    "1/4, JPEG 75": lambda image: encoded(resized(image, 1 / 4, BICUBIC), "JPEG", quality=75),
    "1.5, JPEG 90": lambda image: encoded(resized(image, 1.5, BICUBIC), "JPEG", quality=90),
}
TWO_COPIES = [
    ("JPEG 90", "JPEG 50"),
    ("JPEG 75", "JPEG 30"),
    ("WebP 80", "JPEG 75 twice"),
    ("JPEG 50", "JPEG 50 twice"),
    ("1/2, JPEG 75", "1/2, JPEG 50"),
    ("1/2, bilinear", "1/2, lanczos"),
    ("1/2, box", "1/2, lanczos"),
]
FONTS = [
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSerif",
    "DejaVuSansMono",
    "STIXGeneral",
    "cmr10",
]


def font(size: int, name: str = "DejaVuSans") -> ImageFont.FreeTypeFont:
    """A font that comes with matplotlib."""
    return ImageFont.truetype(
        Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf", size
    )


def words(chance: Chance, count: int) -> str:
    """So many words at random."""
    return " ".join(chance.choice(WORDS, count))


def amount(chance: Chance) -> str:
    """A price."""
    return f"{chance.integers(1, 2000)}.{chance.integers(100):02d}"


def invoice(chance: Chance, number: int, size: tuple[int, int] = (620, 520)) -> Image.Image:
    """One invoice of a template: number, name, date and amounts differ."""
    page = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(page)
    draw.rectangle((40, 30, 150, 80), fill=(20, 60, 120))
    draw.text((55, 45), "NORTH", font=font(20, "DejaVuSans-Bold"), fill="white")
    draw.text((380, 40), "INVOICE", font=font(26, "DejaVuSans-Bold"), fill=(20, 60, 120))
    small = font(11)
    draw.text((380, 80), f"No. {number:06d}", font=small, fill="black")
    draw.text(
        (380, 96),
        f"{chance.integers(1, 29):02d}.{chance.integers(1, 13):02d}.2024",
        font=small,
        fill="black",
    )
    for line, text in enumerate(
        (chance.choice(NAMES), f"{chance.integers(1, 99)} {chance.choice(WORDS)} street")
    ):
        draw.text((40, 140 + 16 * line), f"{text}", font=small, fill="black")
    draw.rectangle((40, 220, 580, 240), fill=(225, 230, 240))
    for x, text in ((46, "Item"), (330, "Quantity"), (410, "Price"), (500, "Total")):
        draw.text((x, 223), text, font=small, fill="black")
    for row in range(8):
        y = 246 + 22 * row
        draw.line((40, y + 18, 580, y + 18), fill=(200, 200, 200))
        cells = (f"{chance.choice(WORDS)} {chance.choice(WORDS)}", f"{chance.integers(1, 20)}")
        for x, text in zip(
            (46, 330, 410, 500), (*cells, amount(chance), amount(chance)), strict=True
        ):
            draw.text((x, y), text, font=small, fill="black")
    draw.text(
        (410, 440), f"Total  {amount(chance)}", font=font(13, "DejaVuSans-Bold"), fill="black"
    )
    lines = (
        "Payment is due within thirty days of the date of this invoice.",
        "Please state the number of the invoice.",
    )
    for line, text in enumerate(lines):
        draw.text((40, 480 + 14 * line), text, font=font(9), fill=(90, 90, 90))
    return page


def invoices(chance: Chance, count: int) -> list[Image.Image]:
    """Invoices of one template."""
    return [invoice(chance, int(chance.integers(10**6))) for _ in range(count)]


def one_digit(chance: Chance, count: int) -> list[Image.Image]:
    """Invoices that differ in the last digits of their number alone: each and the next ten, in one
    digit.
    """
    seed, start = int(chance.integers(2**31)), int(chance.integers(10**5))
    return [invoice(np.random.default_rng(seed), 10 * start + number) for number in range(count)]


def numbers(chance: Chance) -> tuple[list[str], ImageFont.FreeTypeFont, Image.Resampling]:
    """A number with each digit at one of its six places, in any order; a font of 10 to 13 pixels; a
    kernel.
    """
    number, place = f"{chance.integers(10**6):06d}", int(chance.integers(6))
    made = [f"{number[:place]}{digit}{number[place + 1 :]}" for digit in chance.permutation(10)]
    kernels = (BOX, BILINEAR, BICUBIC, LANCZOS)
    return (
        made,
        font(int(chance.integers(10, 14)), chance.choice(FONTS)),
        kernels[chance.integers(4)],
    )


def half_forms(chance: Chance, count: int) -> list[Image.Image]:
    """Invoices at half the size; of every ten, two differ in one digit of a number alone, anywhere
    on the page.
    """
    made: list[Image.Image] = []
    while len(made) < count:
        texts, drawn, kernel = numbers(chance)
        page, at = (
            invoice(chance, int(chance.integers(10**6))),
            (int(chance.integers(40, 480)), chance.integers(90, 480)),
        )
        gray = (int(chance.choice([0, 60, 90])),) * 3
        for text in texts:
            page_form = page.copy()
            draw = ImageDraw.Draw(page_form)
            draw.rectangle(draw.textbbox(at, text, font=drawn), fill="white")
            draw.text(at, text, font=drawn, fill=gray)
            made.append(resized(page_form, 1 / 2, kernel))
    return made[:count]


def half_labels(chance: Chance, count: int) -> list[Image.Image]:
    """Numbers alone, black on white, at half the size: the digits are 4 to 5 pixels high, and two
    differ in one.
    """
    made: list[Image.Image] = []
    while len(made) < count:
        texts, drawn, kernel = numbers(chance)
        for text in texts:
            label = Image.new("L", (120, 48), 255)
            ImageDraw.Draw(label).text((20, 14), text, font=drawn, fill=0)
            made.append(resized(label, 1 / 2, kernel))
    return made[:count]


def pages(chance: Chance, count: int) -> list[Image.Image]:
    """Pages of text, black on white, all set alike."""
    made = []
    for _ in range(count):
        page = Image.new("L", (480, 420), 255)
        draw = ImageDraw.Draw(page)
        for line in range(24):
            draw.text(
                (30, 30 + 15 * line), words(chance, 9)[:62], font=font(11, "DejaVuSerif"), fill=0
            )
        made.append(page)
    return made


def plots(chance: Chance, count: int) -> list[Image.Image]:
    """Curves of matplotlib in the same axes: random walks that end near each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = []
    for _ in range(count):
        figure = Figure(figsize=(5, 3.5), dpi=100)
        canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
        time = np.linspace(0, 1, 60)
        for slope in (1, 2):
            axes.plot(
                time,
                slope * time + 0.03 * chance.standard_normal(60).cumsum(),
                label=f"run {slope}",
            )
        axes.set(xlim=(0, 1), ylim=(-0.5, 2.5), xlabel="time", ylabel="value")
        axes.legend(loc="upper left")
        canvas.draw()
        made.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    return made


def screens(chance: Chance, count: int) -> list[Image.Image]:
    """A table on a dark screen, with other values in it."""
    made = []
    for _ in range(count):
        page = Image.new("RGB", (620, 400), (30, 32, 38))
        draw = ImageDraw.Draw(page)
        draw.rectangle((0, 0, 620, 34), fill=(50, 54, 64))
        draw.text((16, 8), "Monitor    Alerts    Settings", font=font(13), fill=(220, 220, 220))
        for row in range(12):
            y = 50 + 27 * row
            draw.rectangle((16, y, 604, y + 24), fill=(38, 41, 49) if row % 2 else (34, 36, 43))
            draw.text((24, y + 5), f"server-{row:02d}.example", font=font(12), fill=(160, 190, 240))
            for x in (220, 310, 400, 490):
                draw.text(
                    (x, y + 5), f"{chance.uniform(0, 100):.2f}", font=font(12), fill=(200, 200, 200)
                )
            draw.ellipse(
                (570, y + 7, 580, y + 17),
                fill=(80, 200, 120) if chance.random() < 0.9 else (230, 80, 80),
            )
        made.append(page)
    return made


def digits(chance: Chance, count: int) -> list[Image.Image]:
    """Handwritten digits of scikit-learn at 32 pixels."""
    chosen = load_digits().images[chance.permutation(1797)[:count]]
    return [
        Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize((32, 32), BICUBIC)
        for digit in chosen
    ]


def drawn_digits(chance: Chance, count: int) -> list[Image.Image]:
    """Numbers of three digits, drawn black on white."""
    made = []
    for number in chance.permutation(1000)[:count]:
        page = Image.new("L", (96, 64), 255)
        ImageDraw.Draw(page).text((12, 12), f"{number:03d}", font=font(34), fill=0)
        made.append(page)
    return made


def photographs(folder: Path, chance: Chance, count: int) -> list[Image.Image]:
    """Photographs of a data set at random."""
    cells = dataset(sorted(folder.glob("*.parquet"))).to_table(columns=["image"])["image"]
    picked = [cells[int(row)].as_py()["bytes"] for row in chance.permutation(len(cells))[:count]]
    return [Image.open(io.BytesIO(encoded_image)).convert("RGB") for encoded_image in picked]


def bursts(folder: Path, chance: Chance, count: int) -> list[Image.Image]:
    """Photographs, five frames of each: moved by 2 to 6 pixels, with noise and another exposure."""
    made = []
    for photograph in photographs(folder, chance, -(-count // 5)):
        numbers, x, y = np.asarray(photograph, dtype=np.float64), 12, 12
        for _ in range(5):
            frame = numbers[y : y + 200, x : x + 200] * chance.uniform(0.97, 1.03)
            made.append(
                Image.fromarray(
                    (frame + chance.normal(0, 3, frame.shape)).clip(0, 255).astype(np.uint8)
                )
            )
            turn, far = chance.uniform(0, 2 * np.pi), chance.uniform(2, 6)
            x, y = (
                int(np.clip(round(at), 0, 24))
                for at in (x + far * np.cos(turn), y + far * np.sin(turn))
            )
    return made[:count]


def soft(folder: Path, chance: Chance, count: int) -> list[Image.Image]:
    """Photographs enlarged to twice the size: as soft as those of a camera at full size."""
    return [resized(image, 2, BICUBIC) for image in photographs(folder, chance, count)]


def planes(image: Image.Image) -> np.ndarray:
    """[channels, height, width], as `local_difference` takes it."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def small_difference(images: list[Image.Image]) -> torch.Tensor:
    """Return differences of all pairs at 16 pixels, where candidates are found: [images, images]."""
    small = [
        np.asarray(image.convert("RGB").resize((16, 16), BOX), dtype=np.float32) for image in images
    ]
    rows = torch.from_numpy(np.stack(small).transpose(0, 3, 1, 2))
    return torch.stack([pixel_difference(row.expand_as(rows), rows) for row in rows])


def measure(
    images: list[Image.Image], others: int, chance: Chance, kinds: list[str]
) -> dict[str, Any]:
    """Recall of the copies of these images, and what was called a copy among the pairs of different
    ones.
    """
    apart = small_difference(images).fill_diagonal_(torch.inf)
    nearest = apart.topk(min(others, len(images) - 1), largest=False)
    saved = {"unaltered": [planes(image) for image in images]}
    saved |= {kind: [planes(ALTERED[kind](image)) for image in images] for kind in kinds}
    one_of_them = [("unaltered", kind) for kind in kinds]
    two_copies = [pair for pair in TWO_COPIES if set(pair) <= set(kinds)]
    recall, furthest = {}, []
    for kind, other_kind in one_of_them + two_copies:
        differences = [
            local_difference(*pair) for pair in zip(saved[kind], saved[other_kind], strict=True)
        ]
        recall[other_kind if kind == "unaltered" else f"{kind} and {other_kind}"] = float(
            np.mean(np.array(differences) <= LOCAL)
        )
        furthest += [difference for difference in differences if np.isfinite(difference)]
    near = list(enumerate(nearest.indices.tolist()))
    tried = [("unaltered", "unaltered", row, place) for row, places in near for place in places]
    for kind, other_kind in one_of_them + [(kind, kind) for kind in kinds] + two_copies:
        column = chance.integers(nearest.indices.shape[1])
        tried += [(kind, other_kind, row, places[column]) for row, places in near]
    different: dict[str, list[float]] = {
        "unaltered": [],
        "one altered": [],
        "both alike": [],
        "each otherwise": [],
    }
    wrong = []
    for kind, other_kind, row, place in tried:
        difference = round(local_difference(saved[kind][row], saved[other_kind][place]), 2)
        alike = (
            "unaltered"
            if kind == other_kind == "unaltered"
            else "both alike"
            if kind == other_kind
            else "each otherwise"
        )
        different["one altered" if kind == "unaltered" != other_kind else alike].append(difference)
        wrong += (
            [f"{row} as {kind}, {place} as {other_kind}: {difference:.2f}"]
            if difference <= LOCAL
            else []
        )
    return {
        "images": len(images),
        "different_pairs": len(tried),
        "called_copies": len(wrong),
        "wrong": wrong,
        "of_them_near_at_16_pixels": float((nearest.values <= COPY).float().mean()),
        "different": {
            alteration: {
                "pairs": len(differences),
                "called_copies": sum(difference <= LOCAL for difference in differences),
                "closest": min(differences),
            }
            for alteration, differences in different.items()
        },
        "furthest_copy": round(max(furthest), 2),
        "recall": recall,
    }


ORIENTED: list[list[Image.Transpose]] = [
    [*first, *second]
    for second in ([], [Image.Transpose.FLIP_LEFT_RIGHT])
    for first in (
        [],
        *([turn] for turn in (Image.Transpose[f"ROTATE_{degrees}"] for degrees in (90, 180, 270))),
    )
]
SAVED: dict[str, Callable[[Image.Image], Image.Image]] = {
    "PNG": lambda image: image,
    "JPEG 75": ALTERED["JPEG 75"],
    "1/2": ALTERED["1/2, lanczos"],
}


def measure_orientations(images: list[Image.Image], saved: list[str]) -> dict[str, Any]:
    """Recall of the orientations of these images, by how they were saved, and what was grouped with
    another image.
    """
    how_of = lambda row, turn: saved[(row + turn) % len(saved) if turn else 0]  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        for row, image in enumerate(images):
            for turn, steps in enumerate(ORIENTED):
                oriented = image
                for step in steps:
                    oriented = oriented.transpose(step)
                saved_as = how_of(row, turn)
                place = Path(folder) / f"{row:03d} {turn} {saved_as.replace('/', ' of ')}"
                if saved_as == "JPEG 75":  # as PNG it would count as exact
                    oriented.save(f"{place}.jpg", quality=75)
                else:
                    SAVED[saved_as](oriented).save(f"{place}.png")
        page = Path(folder) / "page.html"
        duplicates = nearfar.duplicates(folder, orientations=True, out=page)
    groups: dict[int, list[tuple[int, int, str, str]]] = {}
    for group, kind, name in zip(
        duplicates["group"], duplicates["kind"], duplicates["name"], strict=True
    ):
        row, turn, saved_as = name.rpartition(".")[0].split(" ", 2)
        if kind != "near-duplicate":
            groups.setdefault(group, []).append(
                (int(row), int(turn), kind, saved_as.replace(" of ", "/"))
            )
    placed: dict[str, list[bool]] = {saved_as: [] for saved_as in saved}
    wrong, wrong_kinds, held = [], 0, {member[:2] for group in groups.values() for member in group}
    for group in groups.values():
        row, turn, _, _ = group[0]
        wrong += [f"{row}, {other[0]}" for other in group if other[0] != row]
        for _, other, kind, saved_as in group[1:]:
            placed[saved_as].append(True)
            true = "mirrored" if (turn < 4) != (other < 4) else "turned"
            wrong_kinds += kind != true
    for row in range(len(images)):
        for turn in range(8):
            if (row, turn) not in held:
                placed[how_of(row, turn)].append(False)
    pairs = 8 * 8 * len(images) * (len(images) - 1) // 2
    return {
        "images": len(images),
        "different_pairs": pairs,
        "called_copies": len(wrong),
        "wrong": wrong,
        "wrong_kinds": wrong_kinds,
        "groups": len(groups),
        "recall": {
            saved_as: round(float(np.mean(hits)), 3) if hits else None
            for saved_as, hits in placed.items()
        },
        "closest_different_upright": {
            saved_as: closest(images, SAVED[saved_as]) for saved_as in saved
        },
    }


def scans(folder: Path, chance: Chance, count: int) -> list[Image.Image]:
    """Scans of heads at random, of the training split."""
    table = dataset(folder / "scans.parquet").to_table()
    cells = [row["image"] for row in table.to_pylist() if row["split"] == "train"]
    picked = chance.permutation(len(cells))[:count]
    return [Image.open(io.BytesIO(cells[row])).convert("L") for row in picked]


def fashion(chance: Chance, count: int) -> list[Image.Image]:
    """Articles of Fashion-MNIST at random, 28 x 28 pixels; of Debian's package dataset-fashion-mnist."""
    with gzip.open("/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], dtype=np.uint8).reshape(-1, 28, 28)
    return [Image.fromarray(pixels[row]) for row in chance.permutation(len(pixels))[:count]]


def widened(image: Image.Image, share: float, kernel: Image.Resampling) -> Image.Image:
    """The image at so many times its proportions, with about as many pixels."""
    size = round(image.width * share**0.5), round(image.height / share**0.5)
    return image.resize(size, kernel)


def squashed(image: Image.Image, share: float, kernel: Image.Resampling) -> Image.Image:
    """The image as a square, at a share of its shorter side."""
    side = round(share * min(image.size))
    return image.resize((side, side), kernel)


def interpolated(image: Image.Image, share: float) -> Image.Image:
    """The same by interpolation between the nearest pixels alone, as OpenCV does."""
    side, pixels = round(share * min(image.size)), torch.from_numpy(planes(image).copy())
    made = F.interpolate(pixels[None].float(), (side, side), mode="bilinear")[0].round().byte()
    return Image.fromarray(made.permute(1, 2, 0).numpy().squeeze())


STRETCHED: dict[str, Callable[[Image.Image], Image.Image]] = {
    "0.6": lambda image: widened(image, 0.6, BICUBIC),
    "0.77, JPEG 75": lambda image: encoded(widened(image, 0.77, LANCZOS), "JPEG", quality=75),
    "1.3, JPEG 90": lambda image: encoded(widened(image, 1.3, BILINEAR), "JPEG", quality=90),
    "1.7, JPEG 75": lambda image: encoded(widened(image, 1.7, BICUBIC), "JPEG", quality=75),
    "square": lambda image: squashed(image, 1, BILINEAR),
    "square, JPEG 50": lambda image: encoded(squashed(image, 1, LANCZOS), "JPEG", quality=50),
    "2/3, OpenCV": lambda image: interpolated(image, 2 / 3),
    "1/2, JPEG 75": lambda image: encoded(squashed(image, 1 / 2, BICUBIC), "JPEG", quality=75),
    "1/3, JPEG 90": lambda image: encoded(squashed(image, 1 / 3, BOX), "JPEG", quality=90),
}


def cut(image: Image.Image, chance: Chance) -> Image.Image:
    """The image less a part of one side, where it is a square: 0.6 to 1.7 times as wide as high."""
    share = np.exp(chance.uniform(0.1, 0.5))
    if image.width != image.height:
        return image
    if chance.random() < 0.5:
        return image.crop((0, 0, image.width, round(image.height / share)))
    return image.crop((0, 0, round(image.width / share), image.height))


def measure_stretched(images: list[Image.Image], chance: Chance) -> dict[str, Any]:
    """Recall of the stretched copies of these images, and what is called one of another image."""
    images = [cut(image, chance) for image in images]
    apart = small_difference(images).fill_diagonal_(torch.inf)
    nearest = apart.argmin(1).tolist()
    unaltered = [planes(image) for image in images]
    recall, closest, wrong, furthest = {}, {}, [], 0.0
    for kind, alter in STRETCHED.items():
        altered = [planes(alter(image)) for image in images]
        own = [local_difference(*pair) for pair in zip(unaltered, altered, strict=True)]
        others = [local_difference(unaltered[row], altered[at]) for row, at in enumerate(nearest)]
        recall[kind] = float(np.mean(np.array(own) <= LOCAL))
        furthest = max([furthest, *(difference for difference in own if np.isfinite(difference))])
        closest[kind] = round(min(others), 2) if np.isfinite(min(others)) else None
        called = [
            f"{row}, {at} as {kind}: {others[row]:.2f}"
            for row, at in enumerate(nearest)
            if others[row] <= LOCAL
        ]
        wrong += called
    return {
        "images": len(images),
        "different_pairs": len(images) * len(STRETCHED),
        "called_copies": len(wrong),
        "wrong": wrong,
        "closest_different": closest,
        "furthest_copy": round(furthest, 2),
        "recall": recall,
    }


def measure_leaks(data: Path, seed: int, count: int) -> dict[str, Any]:
    """Leaks that `nearfar.check` lists: among the scans, and among flowers squashed for training."""
    results: dict[str, Any] = {}
    chance = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "scans"
        for row, row_of_table in enumerate(
            dataset(data / "kinds/scans.parquet").to_table().to_pylist()
        ):
            (folder / row_of_table["split"]).mkdir(parents=True, exist_ok=True)
            (folder / row_of_table["split"] / f"{row:03d}.jpg").write_bytes(row_of_table["image"])
        flowers = Path(place) / "flowers"
        for split in ("train", "test"):
            (flowers / split).mkdir(parents=True)
        for row, image in enumerate(photographs(data / "flowers", chance, count)):
            if row < count // 2:
                squashed(image, 0.8, BICUBIC).save(flowers / f"train/{row:03d}.jpg", quality=90)
            if row < count // 8 or row >= count // 2:
                image.save(flowers / f"test/{row:03d}.jpg", quality=90)
        for source in (folder, flowers):
            began = time.perf_counter()
            page = Path(place) / f"{source.name}.html"
            problems = nearfar.check(source, out=page)
            words = [
                text.rsplit(" ", 1)[0]
                for text, problem in zip(problems["words"], problems["problem"], strict=True)
                if problem == "leak"
            ]
            right = sum(
                name[-7:] == other[-7:]
                for name, other, problem in zip(
                    problems["name"], problems["other"], problems["problem"], strict=True
                )
                if problem == "leak"
            )
            results[source.name] = {"leaks": len(words)} | {
                text: words.count(text) for text in sorted(set(words))
            }
            results[source.name]["seconds"] = round(time.perf_counter() - began, 1)
        results["flowers"] |= {"planted": count // 8, "right": right}
    return results


def series(chance: Chance, count: int) -> list[Image.Image]:
    """One invoice with a mark at another place in each: more alike than any small version shows
    well.
    """
    page = invoice(chance, 1).resize((128, 128), LANCZOS)
    made = []
    for number in range(count):
        frame, (y, x) = page.copy(), (11 * (digit % 10) + 6 for digit in (number // 10, number))
        ImageDraw.Draw(frame).rectangle((x, y, x + 5, y + 5), fill=(220, 30, 30))
        made.append(frame)
    return made


def measure_series(images: list[Image.Image]) -> dict[str, Any]:
    """The pairs that are found where each of many alike images is saved as PNG and as JPEG; and
    false ones.
    """
    with tempfile.TemporaryDirectory() as folder:
        for row, image in enumerate(images):
            image.save(Path(folder) / f"{row:03d}.png")
            image.save(Path(folder) / f"{row:03d}.jpg", quality=85)
        page = Path(folder) / "page.html"
        duplicates = nearfar.duplicates(folder, out=page)
    groups: dict[int, list[str]] = {}
    for group, kind, name in zip(
        duplicates["group"], duplicates["kind"], duplicates["name"], strict=True
    ):
        if kind != "near-duplicate":
            groups.setdefault(group, []).append(name[:3])
    right = sum(len(names) == 2 and len(set(names)) == 1 for names in groups.values())
    wrong = sum(len(set(names)) - 1 for names in groups.values())
    return {"images": len(images), "recall": right / len(images), "called_copies": wrong}


def measure_time(images: list[Image.Image], size: tuple[int, int] = (1920, 1440)) -> dict[str, Any]:
    """Mean seconds of the processor for a pair of different images: at full size, and by small
    versions, which each image has once.
    """
    rows = [planes(image.resize(size, BICUBIC)) for image in images]
    pairs = list(itertools.pairwise(rows))
    began = time.process_time()
    called = [compare_pixels(*pair) for pair in pairs]
    at_full_size = time.process_time() - began
    began = time.process_time()
    small = [reduced(row) for row in rows]
    made = time.process_time() - began
    began = time.process_time()
    refused = [differs(*pair) for pair in itertools.pairwise(small)]
    return {
        "size": size,
        "pairs": len(pairs),
        "called_copies": len(pairs) - called.count("near-duplicate"),
        "refused": sum(refused),
        "seconds_at_full_size": round(at_full_size / len(pairs), 4),
        "seconds_of_a_small_version": round(made / len(rows), 4),
        "seconds_by_small_versions": round((time.process_time() - began) / len(pairs), 4),
    }


def closest(images: list[Image.Image], save: Callable[[Image.Image], Image.Image]) -> float:
    """The smallest difference of two different images that are saved alike, neither turned: a
    control.
    """
    saved = [planes(save(image)) for image in images]
    return round(min(local_difference(*pair) for pair in itertools.combinations(saved, 2)), 2)


def measure_whole(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Count what is called turned or mirrored among images of a data set, and time it."""
    images = nearfar.data.open_images(folder, image_size=96).sampled(count, seed)
    results: dict[str, Any] = {"images": len(images), "seconds": {}}
    with tempfile.TemporaryDirectory() as place:
        for orientations in (False, True):
            began = time.perf_counter()
            page = Path(place) / f"{orientations}.html"
            columns = nearfar.duplicates(images, orientations=orientations, out=page)
            results["seconds"]["orientations" if orientations else "upright"] = round(
                time.perf_counter() - began, 1
            )
    for kind in ("same file", "same pixels", "copy", "turned", "mirrored"):
        results[kind] = columns["kind"].count(kind)
    turned = {
        group
        for group, kind in zip(columns["group"], columns["kind"], strict=True)
        if kind in ("turned", "mirrored")
    }
    rows = zip(columns["group"], columns["name"], columns["kind"], strict=True)
    return results | {
        "groups": [f"{group} {kind}: {name}" for group, name, kind in rows if group in turned]
    }


def main() -> None:
    """Make the sets, measure, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--seed", type=int, default=200)
    parser.add_argument("--count", type=int, default=10, help="images of each set")
    parser.add_argument(
        "--others", type=int, default=9, help="different images that each is compared with"
    )
    parser.add_argument("--sets", nargs="*")
    parser.add_argument(
        "--orientations", action="store_true", help="turned and mirrored copies instead"
    )
    parser.add_argument(
        "--stretched", action="store_true", help="copies of other proportions instead"
    )
    parser.add_argument("--leaks", action="store_true", help="leaks of other proportions instead")
    parser.add_argument(
        "--saved", nargs="*", choices=SAVED, default=list(SAVED), help="how they are saved"
    )
    parser.add_argument(
        "--series", type=int, nargs="*", default=[], help="numbers of alike images, as 10 30 100"
    )
    parser.add_argument("--time", action="store_true", help="seconds of a comparison")
    parser.add_argument("--whole", nargs="*", default=[], help="data sets as they are")
    parser.add_argument("--out", type=Path, help="where it exists, its other sets are kept")
    args = parser.parse_args()
    sets: dict[str, Callable[[Chance, int], list[Image.Image]]] = {
        made.__name__: made
        for made in (
            invoices,
            one_digit,
            half_forms,
            half_labels,
            pages,
            plots,
            screens,
            digits,
            drawn_digits,
        )
    }
    if args.stretched:
        sets["fashion"] = fashion
        sets["scans"] = lambda chance, count: scans(args.data / "kinds", chance, count)
    for name in ("imagenette", "flowers"):
        sets[name] = lambda chance, count, name=name: photographs(args.data / name, chance, count)  # type: ignore[misc]
    sets["soft_photographs"] = lambda chance, count: soft(args.data / "imagenette", chance, count)
    sets["bursts"] = lambda chance, count: bursts(args.data / "imagenette", chance, count)
    with open("/proc/cpuinfo") as cpu:
        model = next(
            (line.split(":")[1].strip() for line in cpu if line.startswith("model name")),
            platform.machine(),
        )
    result: dict[str, Any] = {
        "seed": args.seed,
        "limit": LOCAL,
        "cpu": model,
        "date": f"{datetime.date.today()}",
    }
    result["versions"] = {
        "pillow": PIL.__version__,
        "torch": torch.__version__,
        "matplotlib": matplotlib.__version__,
    }
    result["sets"] = (
        json.loads(args.out.read_text())["sets"]
        if args.out is not None and args.out.exists()
        else {}
    )
    for name in args.whole:
        result["sets"][f"{name}, whole"] = measured = measure_whole(
            args.data / name, args.count, args.seed
        )
        print(name, json.dumps(measured), flush=True)
    for count in args.series:
        measured = measure_series(series(np.random.default_rng([args.seed, count]), count))
        result["sets"][f"series of {count}"] = measured
        print(f"series of {count}", json.dumps(measured), flush=True)
    if args.leaks:
        result["sets"]["leaks"] = measured = measure_leaks(args.data, args.seed, args.count)
        print("leaks", json.dumps(measured), flush=True)
    if args.time:
        chance = np.random.default_rng(args.seed)
        measured = measure_time(photographs(args.data / "imagenette", chance, args.count))
        result["sets"]["1920 x 1440"] = measured
        print("1920 x 1440", json.dumps(measured), flush=True)
    others = args.whole or args.series or args.leaks or args.time
    for name in args.sets or ({} if others else sets):
        chance = np.random.default_rng([args.seed, *name.encode()])
        images = sets[name](chance, args.count)
        if args.stretched:
            measured = measure_stretched(images, chance)
        elif args.orientations:
            measured = measure_orientations(images, args.saved)
            name += "" if args.saved == list(SAVED) else f", {' and '.join(args.saved)} alone"
        else:
            half = name.startswith("half")  # once more at half the size, digits cannot be read
            kinds = [kind for kind in ALTERED if not half or kind.startswith(("JPEG", "WebP"))]
            measured = measure(images, args.others, chance, kinds)
        result["sets"][name] = measured
        print(name, json.dumps(measured), flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
