"""Targets that a user can name for a tool: a run, data, vectors, or embeddings that exist.

`resolve(target)` is the only place that asks which one it is; each kind opens as `Embeddings`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from nearfar.data import Images, describe, list_splits, open_images
from nearfar.data.images import say_sample, stacked
from nearfar.data.labels import numbered
from nearfar.data.names import file_identity, match
from nearfar.data.opening import scanned
from nearfar.data.scanning import Scanned
from nearfar.data.sources.rows import HUB
from nearfar.data.table import USUAL, printable
from nearfar.data.value_range import EIGHT_BITS, FormatRequest, spread
from nearfar.embeddings.embeddings import Embeddings, compute_features
from nearfar.embeddings.untrained import (
    encoder_for,
    encoder_for_copies,
    encoder_for_many,
    size_untrained,
)
from nearfar.evaluation import Vectors, find_vectors
from nearfar.messages import check_column, listed_names
from nearfar.neighbours.duplicates import MANY
from nearfar.networks import Encoder
from nearfar.networks.encoder import WEIGHTS
from nearfar.networks.shortened import FITTED, Shortened, longest_directions
from nearfar.progress import log, say_read
from nearfar.run import Run, load


@dataclass(frozen=True)
class Opening:
    """Options of opening a target.

    data: other images than those of a run, further data, or the images of vectors. split: part of
    them that a user asked for; usual: the part that a tool takes otherwise; None for both: that of
    the run, the training split of other data. Several are opened together where the data has all of
    them, else the training split or everything. encoder: weights by name for
    data without a run, or a module. label_column: of the data. copies: take the features that find
    the most copies where there is no run. fewest: images that are needed, else ValueError. later:
    decode no image of files before it is asked for; above 20 000 images without a run, features at
    hand are then those of `encoder_for_many`.

    >>> len(resolve("runs/photos").open(Opening("photos", split="all")))
    25
    """

    data: Any = None
    split: str | None = None
    encoder: nn.Module | str | None = None
    label_column: str | None = None
    usual: str | tuple[str, ...] | None = None
    copies: bool = False
    fewest: int = 2
    later: bool = False

    def part_of(self, source: Any) -> str | tuple[str, ...] | None:
        """Return the split or splits of a source to open: those that a user asked for, else the
        usual ones; None in place of several that the source does not have all.

        Images that are open already are taken as they are, unless a user asked.
        """
        if self.split is not None:
            return self.split
        if isinstance(source, Images):
            _say_part(source, self.usual)
            return None
        if isinstance(self.usual, tuple) and not {*self.usual} <= {*list_splits(source)}:
            return None
        return self.usual


@runtime_checkable
class Source(Protocol):
    """A target of a tool."""

    @property
    def name(self) -> str:
        """The target in a word."""
        ...

    def page(self, name: str) -> Path | None:
        """Return where a page of this name goes if nobody says where; None: nowhere."""
        ...

    def open(self, opening: Opening) -> Embeddings:
        """Open the images, with what gives their features."""
        ...


@dataclass(frozen=True)
class OfRun:
    """A run: its encoder, its data, its folder."""

    run: Run

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.run.path)

    def page(self, name: str) -> Path:
        """Return a file in the run folder, which is replaced."""
        return self.run.path / f"{name}.html"

    def open(self, opening: Opening) -> Embeddings:
        """Open the data of the run, or other data, with its encoder."""
        if isinstance(opening.encoder, str):
            raise ValueError(
                f"`encoder={opening.encoder!r}` is for data without a run: {self.name} has its own"
            )
        settings, trained = self.run.settings, load(self.run, encoder=opening.encoder)
        source, wanted = opening.data, opening
        if source is None:
            source = settings.given("data")
            wanted = replace(opening, usual=opening.usual or settings.split)
        try:
            request = FormatRequest(trained.image_size, trained.channels)
            scanned_source = scanned(source, opening.label_column, request=request)
            split = wanted.part_of(scanned_source)
            reading = settings.reading_for(trained.image_size)
            images = read_images(scanned_source, split=split, **reading, later=opening.later)
        except FileNotFoundError as error:
            if opening.data is not None:
                raise
            raise FileNotFoundError(
                f"{error}; that is where the data of {self.name} was: name it anew"
            ) from error
        photos = Embeddings(
            images,
            trained,
            self.name,
            source,
            split,
            opening.label_column,
            self.run,
            own_data=opening.data is None,
            module=opening.encoder,
            scanned=_of_files(scanned_source),
        )
        return checked(photos, opening.fewest)


def _of_files(source: Scanned | Images) -> Scanned | None:
    """Return a source whose table is made from headers; None for one that holds its images."""
    return source if isinstance(source, Scanned) and source.from_headers else None


@dataclass(frozen=True)
class WithoutRun:
    """A target that is no run: its pages go to the working directory."""

    source: Any

    @property
    def name(self) -> str:
        """The source in a word."""
        return describe(self.source)

    def page(self, name: str) -> Path:
        """Return SOURCE-NAME.html, with the source as one plain word; it is replaced."""
        stem = Path(self.name).resolve().stem.replace(".", "-")
        return Path(f"{stem}-{name}.html")


@dataclass(frozen=True)
class OfData(WithoutRun):
    """Images without a run: features at hand, or those of weights that are named."""

    def open(self, opening: Opening) -> Embeddings:
        """Open the images; further data joins them."""
        source = joined_sources(self.source, opening.data)
        scanned_source = scanned(source, opening.label_column)
        at_hand, later = opening.encoder is None, opening.later
        split = opening.part_of(scanned_source)
        of = split if isinstance(split, str) else None
        size = size_untrained(scanned_source, of, later) if at_hand else USUAL
        images = read_images(scanned_source, split=split, image_size=size, later=later)
        for_copies = opening.copies and at_hand
        if for_copies:
            net = encoder_for_copies(images)
        elif at_hand and later and len(images) > MANY:
            net = encoder_for_many(images)
        else:
            net = encoder_for(images, opening.encoder)
        photos = Embeddings(
            images, net, self.name, source, split, opening.label_column, for_copies=for_copies
        )
        return shortened(checked(photos, opening.fewest))


@dataclass(frozen=True)
class OfVectors(WithoutRun):
    """Features that were made elsewhere, with or without their images."""

    vectors: Vectors

    def open(self, opening: Opening) -> Embeddings:
        """Join the vectors with the images of `data`, by their names or in their order; without
        data they have grey stand-ins.
        """
        if opening.encoder is not None:
            raise ValueError(f"{self.name} holds vectors: no encoder is needed")
        if opening.data is None and opening.split not in (None, "all"):
            raise ValueError(f"{self.name} holds vectors, which have no splits: leave `split` out")
        vectors, column = self._labelled(opening.label_column, opening.data)
        if opening.data is None:
            return checked(self._alone(vectors), opening.fewest)
        scanned_source = scanned(opening.data, column)
        split = replace(opening, usual="all").part_of(scanned_source)
        size = size_untrained(scanned_source)
        images = read_images(scanned_source, split=split, image_size=size)
        of = self._matched(vectors, images)
        kept, rows = map(list, zip(*sorted(of.items()), strict=True))
        images = images.subset(kept)
        if images.labels is None or opening.label_column != column:
            images.labels, images.class_names = _numbered(vectors.labels, rows)
        elif vectors.labels is not None:
            log.info("labels are those of %s, not those of %s", images.source, self.name)
        photos = Embeddings(images, None, self.name, opening.data, vectors=vectors.features[rows])
        return checked(photos, opening.fewest)

    def _labelled(self, label_column: str | None, data: Any) -> tuple[Vectors, str | None]:
        """Return the vectors with the labels in a column, if it is one of theirs, and None; else
        the column that the images are to have.
        """
        if label_column is None or label_column not in self.vectors.columns:
            if label_column is not None and data is None:
                check_column(self.name, label_column, self.vectors.columns)
            return self.vectors, label_column
        vectors = find_vectors(self.source, label_column)
        assert vectors is not None
        return vectors, None

    def _alone(self, vectors: Vectors) -> Embeddings:
        """Return the vectors with grey stand-ins for images."""
        count, names = len(vectors.features), vectors.names
        numbers, classes = _numbered(vectors.labels, list(range(count)))
        images = Images(
            torch.full((1, 1, 8, 8), 128, dtype=torch.uint8).expand(count, -1, -1, -1),
            names=[f"{row:06d}" for row in range(count)]
            if names is None
            else list(map(printable, names)),
            labels=numbers,
            class_names=classes,
            source=vectors.source,
        )
        return Embeddings(
            images, None, self.name, self.source, vectors=vectors.features, has_pixels=False
        )

    def _matched(self, vectors: Vectors, images: Images) -> dict[int, int]:
        """Return the vector of each image, by their positions; ValueError where none has one."""
        count, names = len(vectors.features), vectors.names
        if names is None:
            if texts := vectors.texts:
                raise ValueError(
                    f"{self.name} has no column of a usual name, such as 'path', with the names "
                    f"of its images: rename the right one of {listed_names(texts)}, or give the "
                    "vectors alone, in the order of the images"
                )
            if len(images) != count:
                raise ValueError(
                    f"{count} vectors without names cannot be those of {len(images)} images"
                )
            log.info("the vectors have no names: they are taken in the order of %s", images.source)
            return {row: row for row in range(count)}
        of, note = match(names, images.names, Embeddings(images, None).paths)
        if not of:
            raise ValueError(
                f"no name in {self.name} is that of an image in {images.source}: first "
                f"{names[0]!r:.300}, and {images.names[0]!r:.300} there (folder and file must "
                "agree)"
            )
        if note:
            log.info("%s", note)
        if len(of) < max(len(images), count):
            log.warning(
                "%d of %d images have one of the %d vectors; the others are left out",
                len(of),
                len(images),
                count,
            )
        return of


@dataclass(frozen=True)
class OfEmbeddings:
    """Embeddings that are open already."""

    embeddings: Embeddings

    @property
    def name(self) -> str:
        """Source of the embeddings."""
        return self.embeddings.name

    def page(self, name: str) -> None:
        """Return None: a program says where its pages go."""
        return None

    def open(self, opening: Opening) -> Embeddings:
        """Return them as they are; ValueError for options that ask for others."""
        if any(
            value is not None
            for value in (opening.data, opening.split, opening.encoder, opening.label_column)
        ):
            raise ValueError(
                "these embeddings are open already: name data, split, encoder and label column "
                "where they are made, as in nearfar.embed('photos', split='all')"
            )
        _say_part(self.embeddings.images, opening.usual)
        return checked(self.embeddings, opening.fewest)


def resolve(target: Any) -> Source:
    """Return what a target is: embeddings, the run in a folder, a file or an array of vectors, or
    data of any kind.

    Its `open(Opening(...))` returns `Embeddings`. Raises FileNotFoundError for a path that is not
    there.

    >>> len(resolve("photos").open(Opening()))
    25
    """
    if isinstance(target, Embeddings):
        return OfEmbeddings(target)
    if isinstance(target, Run):
        return OfRun(target)
    if isinstance(target, Source):
        return target
    if isinstance(target, (str, os.PathLike)):
        path = Path(target)
        if any((path / name).exists() for name in ("config.yaml", WEIGHTS, "metrics.jsonl")):
            return OfRun(Run(path))
        if not path.exists() and str(target) != "digits" and not str(target).startswith(HUB):
            raise FileNotFoundError(
                f"there is no {path}: name a run folder, images or a file of vectors"
            )
    vectors = find_vectors(target)
    return OfData(target) if vectors is None else OfVectors(target, vectors)


def _say_part(images: Images, usual: str | tuple[str, ...] | None) -> None:
    """Say where images that are open already are one split of those that a tool usually takes."""
    if usual == "all" and len(images.splits) > 1 and images.split in images.splits:
        log.info(
            "this compares the images of %s alone: opened with split='all', it compares all",
            images.where,
        )


def read_images(
    source: Any, *, split: str | tuple[str, ...] | None = None, **options: Any
) -> Images:
    """Open images as `nearfar.data.open_images` does, and log what was read and left out.

    split: of several, all images are in the form of those of the first.
    """
    images = open_images(source, split=split, **options)
    for part in images.by_split():
        say_read(part)
    return images


def sampled(images: Any, limit: int, seed: int) -> Any:
    """Return at most `limit` of the images, or of others that can be sampled, and log a line where
    it is a sample.
    """
    if limit < len(images):
        say_sample(limit, len(images), seed)
    return images.sampled(limit, seed)


def checked(photos: Embeddings, fewest: int) -> Embeddings:
    """Return the embeddings; ValueError for fewer images than are needed."""
    if len(photos) < fewest:
        raise ValueError(
            f"there are only {len(photos)} images in {photos.images.source}, and {fewest} "
            "are needed"
        )
    return photos


def with_archive(photos: Embeddings, archive: Any) -> tuple[Embeddings, int]:
    """Open an archive, and put its images before those to compare with it; returns both, and the
    number of the former.

    Its files that are also among the others are left out: they are no second copy. ValueError if no
    other is left.
    """
    others = photos.images
    if photos.encoder is None:
        raise ValueError("`against` needs an encoder, and there are vectors alone")
    images = read_images(
        archive,
        split=Opening(usual="all").part_of(archive),
        value_range=others.value_range or EIGHT_BITS,
        image_size=others.image_size,
        channels=others.channels,
    )
    own = {file_identity(path) for path in photos.paths or [] if not os.path.islink(path)}
    files = map(file_identity, replace(photos, images=images).paths or [])
    if shared := {row for row, identity in enumerate(files) if identity in own}:
        log.warning(
            "%d files of %s are also among the others, and left out there",
            len(shared),
            images.source,
        )
        if len(shared) == len(images):
            raise ValueError(
                f"every file of {images.source} is one of {others.source}: name another archive"
            )
        images = images.subset([row for row in range(len(images)) if row not in shared])
    return shortened(replace(photos, images=stacked(images, others))), len(images)


def shortened(photos: Embeddings) -> Embeddings:
    """Return the same images with features of 128 numbers, where there are more than 20 000 whose
    features are colours and edges, of 2276 numbers for colour; the others as they are.

    A line says so. The directions are those of 2048 of the images.
    """
    images, encoder = photos.images, photos.encoder
    if not photos.for_copies or len(images) <= MANY or isinstance(encoder, Shortened):
        return photos
    assert isinstance(encoder, Encoder)
    some = images.subset(spread(len(images), FITTED))
    directions = longest_directions(compute_features(encoder, some, "directions of features"))
    log.info("features cut down to %d numbers: more than %d images", directions.shape[1], MANY)
    return replace(photos, encoder=Shortened(encoder, directions))


def each_file_once(photos: Embeddings) -> Embeddings:
    """Return the same with each file once: one that is seen twice would be a copy of itself.

    Files are told apart by device and inode, so that hard links, symbolic links, bind mounts and
    names that differ in case count as one file; of these a name that is no link comes first.
    """
    paths = photos.paths or []
    identities = list(map(file_identity, paths))
    if len(set(identities)) == len(paths):
        return photos
    order = sorted(range(len(paths)), key=lambda row: (os.path.islink(paths[row]), row))
    rows = sorted({identities[row]: row for row in reversed(order)}.values())
    log.warning(
        "%d files are named more than once (links count too), and count once",
        len(paths) - len(rows),
    )
    return photos.subset(rows)


def joined_sources(source: Any, data: Any) -> Any:
    """Return data and further data, None for none, as one source; ValueError for what is no
    path.
    """
    if data is None:
        return source
    first, others = (
        list(part) if isinstance(part, (list, tuple)) else [part] for part in (source, data)
    )
    if not all(isinstance(part, (str, os.PathLike)) for part in first + others):
        raise ValueError(
            f"{describe(source)} is neither a run nor a file of vectors, so that it is the data: "
            f"leave {describe(data)} out"
        )
    return first + others


def _numbered(
    labels: list[str | None] | None, rows: Sequence[int]
) -> tuple[np.ndarray | None, list[str] | None]:
    """Return the labels of some rows as numbers, and the names of the classes."""
    if labels is None:
        return None, None
    numbers, classes = numbered(labels)
    if numbers.null_count == len(numbers):
        return None, None
    return numbers.fill_null(-1).to_numpy()[list(rows)], classes


def folders_apart(images: Any) -> tuple[Any, Any]:
    """Return queries and further data, None for none: folders among the queries are data."""
    if not isinstance(images, (list, tuple)):
        return images, None
    folders = [
        place for place in images if isinstance(place, (str, os.PathLike)) and os.path.isdir(place)
    ]
    if not folders:
        return images, None
    words = [word for word in images if not any(word is folder for folder in folders)]
    return words, folders[0] if len(folders) == 1 else folders
