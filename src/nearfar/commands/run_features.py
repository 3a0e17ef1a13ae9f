"""The features of a run's images, or of others: computed once and kept in the run folder for the next verb."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from rich.console import Console
from rich.text import Text
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nearfar.atomic import replacing
from nearfar.commands.opening import features_shown, open_shown, shown
from nearfar.commands.run import Run, load
from nearfar.data import Images, fingerprint_of, fingerprint_of_images
from nearfar.data.digests import digest
from nearfar.messages import first_line
from nearfar.neighbours import Nearest, approximate_rows, nearest_rows
from nearfar.networks import Encoder
from nearfar.networks.encoder import DESCRIPTION, WEIGHTS

FILE = "features.safetensors"


@dataclass(frozen=True)
class Featured:
    """Images with the encoder, and the features that it gives them; these are computed when they are first asked for.

    The run folder keeps those of the last data: features.safetensors, valid for the very encoder and data. Where it
    cannot be written, that is said and the features are used all the same.
    """

    images: Images
    encoder: Encoder
    folder: Path
    source: Any
    split: str | None
    console: Console

    @cached_property
    def features(self) -> Float[Tensor, "images dim"]:
        """The features, float32 on the CPU; ValueError where they are not finite."""
        path = self.folder / FILE
        key = _key(self)
        features = _kept(path, key)
        if features is None:
            features = features_shown(self.encoder, self.images, self.console, "computing features")
            try:
                with replacing(path) as unfinished:
                    save_file({"features": features}, unfinished, metadata={"key": key})
            except (OSError, SafetensorError) as error:  # which a full disk raises too
                self.console.print(Text(f"the features are not kept for the next time: {first_line(error)}"))
        return features

    @cached_property
    def paths(self) -> list[str] | None:
        """The images' files; None where they are not files of their own."""
        originals = self.images.originals
        if originals is None or len(originals) == 0 or not isinstance(originals[0], str):
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
    return Featured(images, trained, run.path, source, split, console)


def _key(known: Featured) -> str:
    """What features depend on, in one word: the encoder's files, the data and how it was opened."""
    images = known.images
    fingerprint = fingerprint_of(known.source, known.split) or fingerprint_of_images(images)
    opened = [asdict(fingerprint), images.names, images.image_size, images.channels, images.value_range]
    files = [(known.folder / file).read_bytes() for file in (WEIGHTS, DESCRIPTION)]
    return digest([*files, json.dumps(opened).encode()])


def _kept(path: Path, key: str) -> Tensor | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            return file.get_tensor("features") if (file.metadata() or {}).get("key") == key else None
    except (SafetensorError, OSError):  # damaged: computed again and replaced
        return None


def nearest_shown(
    features: Float[Tensor, "rows dim"],
    k: int,
    console: Console | None,
    queries: Float[Tensor, "queries dim"] | None = None,
    own: Int64[Tensor, " queries"] | None = None,
    approximate: bool = False,
) -> Nearest:
    """Search the nearest rows by cosine and show how far that is; all pairs on a GPU if there is one.

    approximate: by an index, with a line about the share that it finds; see `approximate_rows`. It takes no `own`.
    """
    if approximate:
        with shown(console, "comparing images") as progress:
            found, share = approximate_rows(features, queries, k, progress=progress)
        if console is not None:
            console.print(f"the approximate search found {100 * share:.1f} % of the true {k} nearest images")
        return found
    place = "cuda" if torch.cuda.is_available() else "cpu"
    queries, own = (None if one is None else one.to(place) for one in (queries, own))
    with shown(console, "comparing images") as progress:
        found = nearest_rows(features.to(place), queries, k, own=own, progress=progress)
    return Nearest(found.distance.cpu(), found.index.cpu())
