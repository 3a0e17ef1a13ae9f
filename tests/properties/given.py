"""Strategies for several properties: names as people and machines give them, and images that tell
which one they are.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from tests.pictures import encoded

FEW = settings(max_examples=8 if settings.default.derandomize else settings.default.max_examples)
"""For properties that take a tenth of a second or more for each example."""

IMAGE_ENDINGS = (".png", ".PNG", ".jpg", ".tif", ".v2.png", ".jpg_large", "")
_USUAL = (
    "a",
    "A",
    "é",
    "e\u0301",
    "a.b",
    "20.01",
    "a\n",
    "a\\n",
    "\udcff",
    "-x",
    "~",
    "%41",
    "a b",
)
_SPLITS = ("train", "Train", "val2017", "test_images", "valid", "dev", "images", "__background__")


def numbered_png(number, size=8):
    """A grayscale image whose first pixel is a number below 256, in a frame that is its own."""
    pixels = np.random.default_rng(number).integers(0, 256, (size, size), dtype=np.uint8)
    pixels[0, 0] = number
    return encoded(pixels)


def numbers_of(images):
    """The numbers of `numbered_png`, in the order of the images."""
    return images.pixels[:, 0, 0, 0].tolist()


def _on_disk(name):
    """A name as a file system gives it back: bytes that are no UTF-8 come as surrogates."""
    return os.fsdecode(os.fsencode(name)[:80])


def _is_name(name):
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


_CHARACTERS = st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0")
NAMES = (
    st.one_of(st.sampled_from(_USUAL), st.text(_CHARACTERS, min_size=1, max_size=12))
    .map(_on_disk)
    .filter(_is_name)
)
FOLDERS = st.one_of(st.sampled_from(_SPLITS), NAMES)


@st.composite
def trees(draw, most=8, endings=IMAGE_ENDINGS):
    """Paths of files, of which none is a folder of another."""
    folders = draw(st.lists(st.lists(FOLDERS, max_size=3), min_size=1, max_size=4))
    paths = []
    for _ in range(draw(st.integers(1, most))):
        folder = draw(st.sampled_from(folders))
        paths.append("/".join([*folder, draw(NAMES) + draw(st.sampled_from(endings))]))
    inner = {"/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 1)}
    return [path for path in dict.fromkeys(paths) if path not in inner]


@contextlib.contextmanager
def folder_of(files):
    """A folder with files by their paths."""
    with tempfile.TemporaryDirectory() as made:
        for path, content in files.items():
            place = Path(made, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        yield Path(made)
