"""Images with the features that the encoder of a run gives them, and query images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from rich.console import Console
from rich.text import Text
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nearfar.atomic import replacing
from nearfar.data import Images, open_images
from nearfar.data.decoding import pixels_of
from nearfar.data.table import digest, printable
from nearfar.data.value_range import EIGHT_BITS, Form
from nearfar.device import find_device
from nearfar.evaluation import extract, extract_view
from nearfar.messages import did_you_mean, first_line, one_line
from nearfar.neighbours import Nearest, find_nearest
from nearfar.networks import Encoder
from nearfar.networks.encoder import CONFIG, WEIGHTS
from nearfar.run import Run, load
from nearfar.training.progress import shown
from nearfar.views import Views

FILE = "features.safetensors"
LISTS = (".txt", ".list")
COMPARED = 20_000  # names that a misspelt one is compared with


@dataclass(frozen=True)
class Featured:
    """Images with the encoder, and the features that it gives them; these are computed when they are first asked for.

    The run folder holds those of the last data: features.safetensors, valid for the very encoder and data. Where it
    cannot be written, that is said and the features are used all the same.
    """

    images: Images
    encoder: Encoder
    folder: Path
    console: Console

    @cached_property
    def features(self) -> Float[Tensor, "images dim"]:
        """The features, float32 on the CPU; ValueError where they are not finite."""
        path, key = self.folder / FILE, self._key()
        with suppress(OSError, SafetensorError), safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("key") == key:
                return file.get_tensor("features")
        features = features_shown(self.encoder, self.images, self.console, "computing features")
        try:
            with replacing(path) as unfinished:
                save_file({"features": features}, unfinished, metadata={"key": key})
        except (OSError, SafetensorError) as error:  # which a full disk raises too
            self.console.print(Text(f"the features are not saved for the next time: {first_line(error)}"))
        return features

    def _key(self) -> str:
        """What features depend on, in one word: the encoder's files, the data and how it was opened."""
        images = self.images
        digests = images.table["digest"].to_pylist()
        opened = [digests, images.names, images.image_size, images.channels, images.value_range]
        files = [(self.folder / file).read_bytes() for file in (WEIGHTS, CONFIG)]
        return digest([*files, json.dumps(opened).encode()])

    @cached_property
    def paths(self) -> list[str] | None:
        """The images' files; None where they are not files of their own."""
        originals = self.images.originals
        if not originals or not isinstance(originals[0], str):  # others are read when they are asked for
            return None
        paths = [path for path in originals if isinstance(path, str)]
        return paths if len(paths) == len(originals) else None

    def files(self, rows: list[int]) -> dict[str, list[str]]:
        """A column "path" with the files of these images; no column where they are no files."""
        return {} if self.paths is None else {"path": [self.paths[row] for row in rows]}


def open_featured(
    run: Run,
    data: Any,
    split: str | None,
    encoder: nn.Module | None,
    console: Console,
    least: int = 2,
    label_column: str | None = None,
) -> Featured:
    """Open the data of a run, or other data; ValueError for fewer than `least` images."""
    settings = run.settings
    source = settings.given("data") if data is None else data
    split = split or (settings.split if data is None else None)
    trained = load(run, encoder=encoder)
    images = open_shown(source, console, split=split, label_column=label_column, **settings.reading)
    if len(images) < least:
        raise ValueError(f"there are only {len(images)} images in {images.source}, and {least} are needed")
    return Featured(images, trained, run.path, console)


def nearest_shown(
    features: Float[Tensor, "rows dim"],
    k: int,
    console: Console | None,
    queries: Float[Tensor, "queries dim"] | None = None,
    own: Int64[Tensor, " queries"] | None = None,
    approximate: bool = False,
) -> Nearest:
    """Find the k nearest rows of each query with a progress bar; see `find_nearest`."""
    with shown(console, "comparing images") as progress:
        report = None if console is None else console.print
        return find_nearest(features, queries, k, own=own, approximate=approximate, report=report, progress=progress)


def features_shown(
    encoder: nn.Module | Callable[[Tensor], Tensor],
    images: Images,
    console: Console | None = None,
    title: str = "",
    view: Views | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute the features of all images [images, dim], on a GPU if there is one, and show how far that is.

    view, generator: for the features of one augmented view of each image; the encoder is an `Encoder` then.
    Raises ValueError for features that are not finite.
    """
    with shown(console, title) as progress:
        if view is None:
            features = extract(encoder, images, device=find_device(), progress=progress)
        else:
            assert isinstance(encoder, Encoder) and generator is not None
            features = extract_view(encoder, images, view, generator, device=find_device(), progress=progress)
    if bad := int((~features.isfinite()).any(1).sum()):
        raise ValueError(f"the features of {bad} of {len(images)} images are not finite: the encoder's weights are bad")
    return features


def open_shown(source: Any, console: Console, **options: Any) -> Images:
    """Open images as `nearfar.data.open_images` does and show how far the decoding is."""
    with shown(console, "reading images") as progress:
        return open_images(source, progress=progress, **options)


def sampled_shown(images: Any, limit: int, seed: int, console: Console) -> Any:
    """Return at most `limit` of the images, or of others that can be sampled, and say so where it is a sample."""
    if limit < len(images):
        console.print(Text(f"--limit: {limit} of {len(images)} images, a random sample (seed {seed})"))
    return images.sampled(limit, seed)


@dataclass(frozen=True)
class Queries:
    """Query images. `own`: their positions in the data, -1 for others; `pixels`: as the encoder takes them."""

    names: list[str]
    features: Float[Tensor, "queries dim"]
    own: Int64[Tensor, " queries"]
    pixels: list[Shaped[Tensor, "channels side side"]]


def queries_of(given: Any, data: Featured) -> Queries:
    """Find images by what is given: words, or anything else that `nearfar.data.open_images` takes in memory.

    A word is the name of an image of the data; a file, which is looked up in the data first; or a text file of names
    and files, one a line or with a zero byte between them. ValueError for a word that is nothing of this, for files
    that are no images, and where nothing is given.
    """
    net = data.encoder
    words = [given] if isinstance(given, (str, os.PathLike)) else given
    if not (isinstance(words, (list, tuple)) and all(isinstance(word, (str, os.PathLike)) for word in words)):
        form: dict[str, Any] = dict(
            image_size=net.image_size, channels=net.channels, value_range=net.value_range or EIGHT_BITS
        )
        others = open_images(given, **form)
        pixels = list(others.gather(torch.arange(len(others))))
        return Queries(others.names, extract(net, torch.stack(pixels)), torch.full((len(others),), -1), pixels)
    names, rows, pixels = [], [], []
    for word, row in places_of(words, data):
        names.append(printable(word) if row < 0 else data.images.names[row])
        rows.append(row)
        pixels.append(_decoded(word, data) if row < 0 else data.images.gather(torch.tensor([row]))[0])
    if not names:
        raise ValueError("name the images to look for: their names in the data, files, or a text file of either")
    features = [
        data.features[row] if row >= 0 else extract(net, x[None])[0] for row, x in zip(rows, pixels, strict=True)
    ]
    return Queries(names, torch.stack(features), torch.tensor(rows), pixels)


def places_of(words: Sequence[Any], data: Featured) -> list[tuple[str, int]]:
    """Names and files, those in text files too, each with its position in the data, or -1 where it is not of it."""
    place = {name: row for row, name in enumerate(data.images.names)}
    files = {path: row for row, path in enumerate(data.paths or [])}
    found = []
    for word in _words(words, place):
        folder, name = os.path.split(word)
        row = place[word] if word in place else files.get(os.path.join(os.path.realpath(folder), name), -1)
        found.append((word, row))
    return found


def _words(words: Sequence[Any], known: dict[str, int]) -> list[str]:
    """The words, with what text files hold in their places."""
    out = []
    for word in map(os.fspath, words):
        if word in known or Path(word).suffix.lower() not in LISTS or not Path(word).is_file():
            out.append(word)
            continue
        text = Path(word).read_bytes().decode("utf-8", "surrogateescape")
        out += [line for line in (text.split("\0") if "\0" in text else text.splitlines()) if line]
    return out


def _decoded(word: str, data: Featured) -> Shaped[Tensor, "channels side side"]:
    if not Path(word).is_file():
        near = did_you_mean(word, data.images.names[:COMPARED], "see `nearfar embed` for the names")
        raise ValueError(f"{printable(word)!r} is neither an image of the data nor a file: {near}")
    with one_line(f"cannot read {printable(word)!r} as an image"):
        net = data.encoder
        return pixels_of(word, Form(net.image_size, net.channels, net.value_range))
