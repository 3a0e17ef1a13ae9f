"""`Embeddings`: images with their features, and the encoder that made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.transforms.v2 import RandomHorizontalFlip

import nearfar
from nearfar.data import Images
from nearfar.data.images import sample, say_sample
from nearfar.data.scanning import Scanned
from nearfar.device import find_device
from nearfar.embeddings.saving import check_format, save_embeddings
from nearfar.embeddings.store import FeatureStore
from nearfar.embeddings.untrained import encoder_for
from nearfar.evaluation import extract
from nearfar.isolation import isolated
from nearfar.neighbours import (
    Link,
    Nearest,
    duplicate_threshold,
    find_links,
    near_duplicate_threshold,
    paths_of,
)
from nearfar.neighbours.edit_maps import opencv
from nearfar.networks import Encoder
from nearfar.pairs.arithmetic import rows_not_finite
from nearfar.progress import log
from nearfar.run import Run
from nearfar.training.seeding import stream

# images whose features are computed at a time: more of them take gigabytes, and longer, on a CPU
BATCH, BATCH_OF_GPU = 64, 512
BEYOND = 2.0  # times the distance of near-duplicates: pairs up to there are compared, and shown


class Repeats(NamedTuple):
    """Pairs of copies and near-duplicates, nearest first; near: the distance up to which the latter
    count.
    """

    near: float
    links: list[Link]


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings:
    """Images with their features, perhaps with the encoder that made them.

    `nearfar.embed(target)` makes them: of a run, of data, or of vectors made elsewhere. Every tool
    is a method: `photos.search("cat.jpg")`, `photos.duplicates()`, `photos.map(out="map.html")`.
    Features are computed when they are first asked for.

    - `images`: the images, which are grey stand-ins where there are vectors alone
    - `encoder`: None for vectors that were made elsewhere
    - `name`: the run, the data or the file that they were made from, in a word
    - `source`: the images as they were named: a path, several, an array
    - `split`: the part of the source that was asked for, or several
    - `label_column`: the column of the source that was asked for
    - `run`: the run whose encoder it is, whose folder keeps features and takes pages; None without
    - `own_data`: whether the images are the data that the run learned from
    - `module`: the module whose weights the run learned, if a user gave one
    - `has_pixels`: whether the images can be looked at
    - `path`: the file that `nearfar.embed` wrote; None without one
    - `for_copies`: whether the features are those that find copies, where others tell kinds better
    - `near`: the nearest others of each image, where they are known
    - `repeats`: copies and near-duplicates among them, where they are known
    - `measures`: `nearfar.data.measures` of each image [images, 4], where they are known
    - `scanned`: the files of a run's images with their table, to open them in another size without
      another walk; None for others

    >>> photos = nearfar.embed("photos")
    >>> photos.features.shape == (len(photos), photos.encoder.num_features)
    True
    """

    images: Images
    encoder: Encoder | None
    name: str = "images"
    source: Any = None
    split: str | tuple[str, ...] | None = None
    label_column: str | None = None
    run: Run | None = None
    own_data: bool = False
    module: nn.Module | None = None
    vectors: Float[Tensor, "images dim"] | None = None
    has_pixels: bool = True
    for_copies: bool = False
    path: Path | None = None
    near: Nearest | None = None
    repeats: Repeats | None = None
    measures: Float[np.ndarray, "images 4"] | None = None
    scanned: Scanned | None = None

    def __repr__(self) -> str:
        return f"Embeddings({len(self)} images of {self.images.where})"

    def __len__(self) -> int:
        return len(self.images)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a tool as a method."""
        return nearfar.tool_method(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *nearfar.tool_names()})

    def summary(self) -> dict[str, Any]:
        """Return in plain values what they are, for JSON output."""
        return {
            "path": None if self.path is None else str(self.path),
            "name": self.name,
            "images": len(self),
            "numbers": self.features.shape[1],
        }

    @cached_property
    def features(self) -> Float[Tensor, "images dim"]:
        """The features, float32 on the CPU; ValueError where they are not finite."""
        if self.vectors is not None:
            return self.vectors
        assert self.encoder is not None
        with isolated():  # whoever asks for them, in whatever modes: a run folder keeps them
            if self.run is None:
                return compute_features(self.encoder, self.images)
            return FeatureStore(self.run.path, self.images).features(self.encoder, compute_features)

    @cached_property
    def paths(self) -> list[str] | None:
        """The images' files; None where they are not files of their own."""
        paths = [path for path in paths_of(self.images) if path is not None]
        return paths if paths and len(paths) == len(self.images) else None

    def columns(self, rows: Sequence[int] | None = None) -> dict[str, list[Any]]:
        """Return the names of the images at these rows (default: all) and, where they are files,
        their paths, as columns "name" and "path" of a result.
        """
        rows = range(len(self)) if rows is None else rows
        names = {"name": [self.images.names[row] for row in rows]}
        return names if self.paths is None else {**names, "path": [self.paths[row] for row in rows]}

    def subset(self, rows: Sequence[int] | Tensor) -> Embeddings:
        """Return the images at these rows, with their features."""
        chosen = [int(row) for row in rows]
        known = self.__dict__.get("features", self.vectors)  # computed by now, or given
        vectors = None if known is None else known[chosen]
        measures = None if self.measures is None else self.measures[chosen]
        images = self.images.subset(chosen)
        return replace(
            self, images=images, vectors=vectors, near=None, repeats=None, measures=measures
        )

    def sampled(self, count: int, seed: int) -> Embeddings:
        """Return at most `count` random images; a line says so where it is a sample."""
        if count >= len(self):
            return self
        say_sample(count, len(self), seed)
        return self.subset(sample(len(self), count, seed).tolist())

    def for_labels(self) -> Embeddings:
        """Return the same images with the features that tell their kinds best."""
        if not self.for_copies:
            return self
        return replace(self, encoder=encoder_for(self.images, None), for_copies=False, near=None)

    @isolated()
    def mirrored(self) -> Embeddings:
        """Return the same images with the mean of the features of each and its mirror image; not
        for text and other images whose left and right differ. ValueError for vectors alone.
        """
        if self.encoder is None:
            raise ValueError(f"`mirrored` needs an encoder, and {self.name} holds vectors")
        turned = nn.Sequential(RandomHorizontalFlip(1.0), self.encoder)
        other = compute_features(turned, self.images, "features of mirror images")
        return replace(self, vectors=(self.features + other) / 2, run=None, near=None, repeats=None)

    def duplicate_threshold(self) -> float:
        """Return the distance within which copies lie, see `nearfar.neighbours`; 0 where no encoder
        can measure it.
        """
        if self.encoder is None:
            return 0.0
        compute = partial(extract, self.encoder, batch_size=BATCH)
        return duplicate_threshold(compute, self.images, self.features, stream(0, "altered"))

    def chosen_edits(self, edits: bool | None) -> bool | None:
        """Return `edits` as it was asked for, None as False where no edited copies can be found; a
        line says so where OpenCV is missing.

        Raises ValueError where True cannot be had.
        """
        if edits is False or (edits is None and not self.has_pixels):
            return False
        if not self.has_pixels:
            raise ValueError("`edits` compares pixels: name the images of these vectors")
        try:
            opencv()
        except ValueError as error:
            if edits:
                raise
            log.info("not looking for edited copies: %s", error)
            return False
        return edits

    def find_repeats(
        self,
        approximate: bool = False,
        *,
        distance: float | None = None,
        archive: int = 0,
        orientations: bool = False,
        edits: bool | None = False,
        verdicts: dict[tuple[str, str], int] | None = None,
    ) -> Repeats:
        """Find copies, confirmed by their pixels, and near-duplicates; `find_links` says how.

        approximate: as for `find_nearest`. distance: of near-duplicates. Default: estimated. The
        others are those of `find_links`; without any, what is known is not found again.
        """
        plain = distance is None and not (archive or orientations) and edits is False
        if self.repeats is not None and plain:
            return self.repeats
        near = distance
        if near is None:
            near = near_duplicate_threshold(self.features, stream(0, "pairs"))
        links = find_links(
            self.images,
            self.features,
            max(self.duplicate_threshold(), BEYOND * near),
            approximate=approximate,
            archive=archive,
            orientations=orientations,
            has_pixels=self.has_pixels,
            edits=edits,
            nearest=self.near,
            verdicts=verdicts,
        )
        return Repeats(near, links)

    def save(self, out: str | Path) -> Path:
        """Write one row for each image, its name, label, columns and embedding, to a .parquet, .csv
        or .npz file that does not exist yet; returns its path.
        """
        check_format(out)
        return save_embeddings(Path(out), self.images, self.features)


def compute_features(
    encoder: nn.Module | Callable[[Tensor], Tensor],
    images: Images,
    title: str = "computing features",
) -> Tensor:
    """Compute the features of all images [images, dim], on a GPU if there is one, with a bar.

    Raises ValueError for features that are not finite.
    """
    device = find_device()
    at_once = BATCH if device.type == "cpu" else BATCH_OF_GPU
    features = extract(encoder, images, batch_size=at_once, device=device, title=title)
    if bad := len(rows_not_finite(features)):
        raise ValueError(
            f"the features of {bad} of {len(images)} images are not finite: the encoder's "
            f"weights are bad"
        )
    return features
