"""Small labelled sets of many kinds of images, in training and test images, for benchmarks/encoders.py.

Choices are made on training images alone (`parts(kind, data, "held-out")`), and reports are made on test images
(`"test"`). A set without a split has a fixed stratified fifth as its test images. The images lie in the folder of data
sets or in an installed package, or are drawn from random numbers (drawn.py); an error says which package is missing.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from drawn import DEFECTS, LAYOUTS, SIGNS, glyph, page, sign, tile
from PIL import Image, ImageFont, ImageOps
from sklearn.model_selection import train_test_split
from torch import Tensor

from nearfar.data import Images, open_images
from nearfar.views import resize_square
from nearfar_papers.annotations import open_annotated, read_pixels

ON = ("held-out", "test")
HELD_OUT = 5  # every fifth image
FASHION = Path("/usr/share/datasets/fashion-mnist")  # these three are folders of Debian's packages
FONTS, STAMPS = Path("/usr/share/fonts"), Path("/usr/share/tuxpaint/stamps")


@dataclass(frozen=True)
class Kind:
    """A data set, and the length of a run on it: crops of `crop` pixels, epochs.

    load: takes the folder of data sets and "train" or "test", and returns those images.
    """

    load: Callable[[Path, str], Images]
    crop: int
    epochs: int


def parts(kind: Kind, data: Path, on: str) -> tuple[Images, Images]:
    """Return the images to train on and the images to evaluate on.

    on: "held-out" for four fifths of the training images and the fifth between them, which sees no
    test image; "test" for all training images and the test images.
    """
    train = kind.load(data, "train")
    if on == "test":
        return train, kind.load(data, "test")
    rows = np.arange(len(train))
    return train.subset(rows[rows % HELD_OUT != 0]), train.subset(rows[rows % HELD_OUT == 0])


def a_fifth(images: Images, split: str) -> Images:
    """Return the four fifths ("train") or the stratified fifth ("test") of a set without a split,
    in a random order.
    """
    train, test = train_test_split(
        np.arange(len(images)), test_size=1 / 5, stratify=images.labels, random_state=0
    )
    return images.subset(train if split == "train" else test)


def _images(pixels: Tensor, labels: Sequence[int] | np.ndarray) -> Images:
    names = [f"{number:05d}" for number in range(len(pixels))]
    return Images(pixels, names=names, labels=np.asarray(labels, np.int64))


def _stacked(arrays: Sequence[np.ndarray]) -> Tensor:
    """Return images [height, width] or [height, width, 3] as [images, channels, height, width]."""
    pixels = torch.from_numpy(np.stack(arrays))
    return pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()


def _there(path: Path, command: str) -> Path:
    """Return the path; FileNotFoundError with the command that installs it where it is missing."""
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: {command}")
    return path


def _of_python(module: str, command: str) -> Path:
    """Return the folder of an installed Python package, which is not imported."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"there is no {module}: {command}")
    return Path(spec.submodule_search_locations[0])


def flowers(data: Path, split: str) -> Images:
    """Return the 1600 training or 400 test images at 96 px."""
    return open_images(str(data / "flowers"), image_size=96, split=split)


def unbalanced(data: Path, split: str) -> Images:
    """Return images of Imagenette at 96 px, each class with 0.75 times the images of the one
    before: 1883 for training, 752 to test on.
    """
    images = open_images(str(data / "imagenette"), image_size=96, split=split)
    counts = ((500 if split == "train" else 200) * 0.75 ** np.arange(10)).astype(int)
    return images.subset(
        np.sort(
            np.concatenate([np.flatnonzero(images.labels == c)[:n] for c, n in enumerate(counts)])
        )
    )


def imagenette(data: Path, split: str) -> Images:
    """Return the first 2000 training or test images of Imagenette at 96 px."""
    return open_images(str(data / "imagenette"), image_size=96, split=split).subset(range(2000))


def cifar10(data: Path, split: str) -> Images:
    """Return the first 5000 training or 2000 test images of CIFAR-10."""
    count = 5000 if split == "train" else 2000
    return open_images(str(data / "cifar10"), split=split).subset(range(count))


def patches(data: Path, split: str) -> Images:
    """Return patches of 96 px of 40 photographs, 50 of each, resized to 64 px; the photograph is
    the class.
    """
    images = open_images(str(data / "imagenette"), image_size=224, split="train").subset(range(40))
    corners = torch.randint(
        0, 224 - 96, (40, 50, 2), generator=torch.Generator().manual_seed(0)
    ).tolist()
    cut = [
        image[:, y : y + 96, x : x + 96]
        for image, places in zip(images.pixels, corners, strict=True)
        for y, x in places
    ]
    return a_fifth(
        _images(resize_square(torch.stack(cut), 64), np.repeat(np.arange(40), 50)), split
    )


def cells(data: Path, split: str) -> Images:
    """Return blood cells cut from BCCD's boxes at 64 px: at most 600 of a kind, red, white and
    platelets.
    """
    train, test = open_annotated(data / "bccd")
    cut, labels = [], []
    for image in (train if split == "train" else test).images:
        pixels = (255 * read_pixels(image, 3)).to(torch.uint8)
        for cell in image.objects:
            left, top, width, height = map(round, cell["bbox"])
            if min(width, height) >= 8:
                piece = pixels[:, top : top + height, left : left + width]
                cut.append(resize_square(piece[None], 64)[0])
                labels.append(cell["category_id"] - 1)
    order = np.random.default_rng(0).permutation(len(labels))
    kept = np.concatenate([order[np.array(labels)[order] == c][:600] for c in np.unique(labels)])
    kept = np.random.default_rng(1).permutation(kept)
    return _images(torch.stack([cut[i] for i in kept]), np.array(labels)[kept])


def fashion(data: Path, split: str) -> Images:
    """Return the first 4000 training or 2000 test images of Fashion-MNIST, from Debian's package
    dataset-fashion-mnist.
    """
    _there(FASHION, "apt install dataset-fashion-mnist")
    name, count = ("train", 4000) if split == "train" else ("t10k", 2000)
    contents = [
        gzip.decompress((FASHION / f"{name}-{kind}-ubyte.gz").read_bytes())
        for kind in ("images-idx3", "labels-idx1")
    ]
    pixels = np.frombuffer(contents[0], np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count]
    return _images(
        torch.from_numpy(pixels.copy()), np.frombuffer(contents[1], np.uint8, offset=8)[:count]
    )


def of_kind(name: str, size: int) -> Callable[[Path, str], Images]:
    """Return a function that reads the images of a set of `kinds`, in a random order."""

    def load(data: Path, split: str) -> Images:
        images = open_images(data / "kinds" / f"{name}.parquet", image_size=size, split=split)
        return images.subset(np.random.default_rng(0).permutation(len(images)))

    return load


def digits(data: Path, split: str) -> Images:
    """Return scikit-learn's digits: 1437 for training, 360 to test on."""
    return open_images("digits", split=split)


def of_drawing(
    draw: Callable[[str, np.random.Generator], np.ndarray],
    classes: Sequence[str],
    most: int,
    least: int,
) -> Callable[[Path, str], Images]:
    """Return a function that draws images of classes of unequal size, in a random order.

    most, least: training images of the first and the last class; those between fall evenly. There
    are a quarter as many test images. Each image has random numbers of its own.
    """

    def load(data: Path, split: str) -> Images:
        counts = np.linspace(most, least, len(classes)).astype(int)
        first = 0
        if split == "test":
            counts, first = counts // 4, 1_000_000
        labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(classes)), counts))
        return _images(
            _stacked(
                [
                    draw(classes[label], np.random.default_rng(first + row))
                    for row, label in enumerate(labels)
                ]
            ),
            labels,
        )

    return load


def emoji(data: Path, split: str) -> Images:
    """Return the emoji of one family at 64 px, at most 200 of a category: 1235 and 309."""
    command = "npm install emoji-datasource-google (in this folder or one of NODE_PATH)"
    folders = [Path(name) for name in os.environ.get("NODE_PATH", "").split(os.pathsep) if name]
    places = [folder / "emoji-datasource-google" for folder in (*folders, Path("node_modules"))]
    package = next((place for place in places if place.is_dir()), places[-1])
    entries = json.loads((_there(package, command) / "emoji.json").read_text(encoding="utf-8"))
    of_category: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda entry: entry["image"]):
        if entry["has_img_google"] and entry["category"] != "Component":
            of_category.setdefault(entry["category"], []).append(entry["image"])
    arrays, labels = [], []
    for label, category in enumerate(sorted(of_category)):
        for name in _some(of_category[category], 200):
            with Image.open(package / "img/google/64" / name) as image:
                arrays.append(_on_white(image, 64))
            labels.append(label)
    return a_fifth(_images(_stacked(arrays), labels), split)


def _some(names: list[str], count: int) -> list[str]:
    """Return at most `count` of the names, drawn at random."""
    rows = np.random.default_rng(0).permutation(len(names))[:count]
    return [names[row] for row in sorted(rows)]


def _on_white(image: Image.Image, size: int) -> np.ndarray:
    """Return an image with an alpha channel whole on a white square."""
    front = ImageOps.contain(image.convert("RGBA"), (size, size))
    square = Image.new("RGBA", (size, size), "white")
    square.alpha_composite(front, ((size - front.width) // 2, (size - front.height) // 2))
    return np.asarray(square.convert("RGB"))


ICONS = {
    "fontawesome6-solid": 400,
    "materialdesignicons6": 350,
    "phosphor": 300,
    "remixicon": 300,
    "fontawesome6-brands": 300,
    "codicon": 250,
    "elusiveicons": 200,
    "fontawesome6-regular": 150,
}


def icons(data: Path, split: str) -> Images:
    """Return icons of eight families at 48 px, gray; the family is the class: 1800 and 450."""
    folder = _of_python("qtawesome", "pip install --no-deps qtawesome") / "fonts"
    arrays, labels = [], []
    for label, (family, count) in enumerate(ICONS.items()):
        [charmap] = folder.glob(f"{family}*.json")
        [file] = folder.glob(f"{family}*.ttf")
        font = ImageFont.truetype(str(file), 100)
        codes = sorted(set(json.loads(charmap.read_text()).values()))
        for number, code in enumerate(_some(codes, count)):
            rng = np.random.default_rng([label, number])
            arrays.append(glyph(chr(int(code, 16)), font, rng))
            labels.append(label)
    return a_fifth(_images(_stacked(arrays), labels), split)


FAMILIES = {  # packages of fonts and how many of their fonts are taken
    "train": (("opentype/urw-base35", "truetype/lato", "truetype/dejavu"), 70),
    "test": (("opentype/linux-libertine", "opentype/comic-neue", "truetype/open-sans"), 29),
}
NO_LETTERS = (  # fonts of symbols, and those without small letters
    "D050000L",
    "StandardSymbols",
    "DejaVuMath",
    "LinBiolinum_K",
    "LinLibertine_DR",
    "LinLibertine_I.",
)


def fonts(data: Path, split: str) -> Images:
    """Return the 26 small letters of 70 fonts, or of 29 fonts of other families, at 48 px, gray.

    The letter is the class. Every fifth image is of the same fonts, which therefore are held out.
    """
    command = (
        "apt install fonts-urw-base35 fonts-lato fonts-dejavu fonts-linuxlibertine "
        "fonts-comic-neue fonts-open-sans"
    )
    folders, count = FAMILIES[split]
    files = [
        file
        for folder in folders
        for file in sorted(_there(FONTS / folder, command).glob("*.?tf"))
        if not file.name.startswith(NO_LETTERS)
    ]
    if len(files) < count:
        raise FileNotFoundError(f"there are {len(files)} of {count} fonts: {command}")
    faces = [ImageFont.truetype(str(file), 100) for file in files[:count]]
    letters = "abcdefghijklmnopqrstuvwxyz"
    arrays = [
        glyph(letter, face, np.random.default_rng([split == "test", row, number]))
        for row, letter in enumerate(letters)
        for number, face in enumerate(faces)
    ]
    return _images(_stacked(arrays), np.repeat(np.arange(26), count))


SHELVES = ("animals", "food", "household", "plants", "seasonal", "symbols", "town", "vehicles")


def stamps(data: Path, split: str) -> Images:
    """Return photographs and drawings of single things at 80 px, by shelf: 570 and 143."""
    folder = _there(STAMPS, "apt install tuxpaint-stamps-default")
    arrays, labels = [], []
    for label, shelf in enumerate(SHELVES):
        for file in sorted((folder / shelf).rglob("*.png")):
            with Image.open(file) as image:
                arrays.append(_on_white(image, 80))
            labels.append(label)
    return a_fifth(_images(_stacked(arrays), labels), split)


SURFACES = ("brick", "grass", "gravel")


def textures(data: Path, split: str) -> Images:
    """Return squares of 32 px of three photographs, lit from the left or the right, gray: 624 and
    144.

    Surface and light are the class. The squares do not overlap, and those of the lowest 96 px are
    the test images.
    """
    folder = _of_python("skimage", "pip install scikit-image") / "data"
    squares, surfaces = [], []
    for label, name in enumerate(SURFACES):
        with Image.open(folder / f"{name}.png") as image:
            rows = np.asarray(image.convert("L")).reshape(16, 32, 16, 32).swapaxes(1, 2)
        chosen = (rows[:13] if split == "train" else rows[13:]).reshape(-1, 32, 32)
        squares.append(chosen)
        surfaces += [label] * len(chosen)
    rng = np.random.default_rng(0 if split == "train" else 1)
    right = rng.permutation(len(surfaces)) % 2
    ramp = np.linspace(-1, 1, 32)[None, None] * np.where(right, 0.3, -0.3)[:, None, None]
    lit = np.clip(np.concatenate(squares) * (1 + ramp), 0, 255).astype(np.uint8)
    order = rng.permutation(len(lit))
    return _images(_stacked(lit[order]), (2 * np.array(surfaces) + right)[order])


SETS = {
    "flowers": Kind(flowers, 64, 40),
    "unbalanced": Kind(unbalanced, 64, 40),
    "imagenette": Kind(imagenette, 64, 40),
    "cells": Kind(cells, 48, 40),
    "patches": Kind(patches, 48, 40),
    "cifar10": Kind(cifar10, 24, 40),
    "fashion-mnist": Kind(fashion, 20, 40),
    "digits": Kind(digits, 8, 40),
    "scans": Kind(of_kind("scans", 96), 64, 60),
    "letters": Kind(of_kind("letters", 64), 48, 40),
    "bees": Kind(of_kind("bees", 80), 54, 60),
    "emoji": Kind(emoji, 48, 40),
    "icons": Kind(icons, 36, 40),
    "fonts": Kind(fonts, 36, 40),
    "stamps": Kind(stamps, 64, 60),
    "textures": Kind(textures, 24, 60),
    "signs": Kind(of_drawing(sign, list(SIGNS), 240, 40), 48, 40),
    "tiles": Kind(of_drawing(tile, list(DEFECTS), 300, 80), 48, 60),
    "pages": Kind(of_drawing(page, list(LAYOUTS), 280, 80), 64, 60),
}
