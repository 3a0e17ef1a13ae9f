"""Images with their features, by the encoder of a run, without one, or from a file of vectors; and
query images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from rich.console import Console
from rich.text import Text
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nearfar.atomic import replacing
from nearfar.data import Images, describe, open_images, scan
from nearfar.data.cache import FORMAT as READING
from nearfar.data.decoding import pixels_of
from nearfar.data.images import joined, sample
from nearfar.data.labels import numbered
from nearfar.data.names import file_identity, match, plain_name, spellings
from nearfar.data.sources.rows import HUB
from nearfar.data.table import USUAL, digest, printable, usual_side
from nearfar.data.text import encoding_of, lines_of, text_of
from nearfar.data.value_range import EIGHT_BITS, Form
from nearfar.device import find_device
from nearfar.evaluation import Vectors, extract, find_vectors
from nearfar.messages import did_you_mean, first_line, one_line
from nearfar.neighbours import Nearest, copy_distance, find_nearest, paths_of
from nearfar.networks import Encoder, join_encoders, named_encoder
from nearfar.networks.backbone import own_backbone
from nearfar.networks.encoder import CONFIG, WEIGHTS
from nearfar.networks.joined import SIDE
from nearfar.networks.starting import INSTALL, OWN, PRETRAINED, installed_weights
from nearfar.progress import tracked, waiting
from nearfar.run import Run, load
from nearfar.training.progress import say_read
from nearfar.training.run_folder import content_of
from nearfar.training.seeding import stream

FILE = "features.safetensors"
FEATURES = 1  # raise it when the same encoder gives an image other features
LISTS = (".txt", ".list")
COMPARED = 20_000  # names that a misspelt one is compared with
COPIES = {"colours": 1.0, "edges": 1.5}
"""Weights of the features that find the most copies, of those that need no training
(docs/neighbours.md)."""
BESIDE = {"edges": 0.5, "colours": 0.5}
"""Weights of simple features beside a pretrained net of weight 1 (docs/starting-weights.md)."""
BETTER = (
    f"{INSTALL} brings better ones: kNN accuracy 87 % for 71 on photographs of flowers, "
    "82 for 52 on CIFAR-10 (docs/starting-weights.md)"
)


@dataclass(frozen=True)
class Featured:
    """Images with the encoder, and the features that it gives them; these are computed when they
    are first asked for.

    The run folder holds them by the digest of the encoded image, in features.safetensors, so that
    only new images are computed; those of other data stay, up to as many. Where it cannot be
    written, that is said and the features are used all the same. folder: None without a run:
    nothing is saved. vectors: features that were made elsewhere; the encoder is None then.
    pictured: whether the images can be looked at, and are not a grey stand-in for rows of a file.
    for_copies: whether the features are those that find copies, and others would tell kinds better.
    """

    images: Images
    encoder: Encoder | None
    folder: Path | None
    console: Console
    vectors: Float[Tensor, "images dim"] | None = None
    pictured: bool = True
    for_copies: bool = False

    def for_labels(self) -> Featured:
        """The same images with features that tell their kinds best."""
        if not self.for_copies:
            return self
        return replace(self, encoder=encoder_for(self.images, None, self.console), for_copies=False)

    @cached_property
    def features(self) -> Float[Tensor, "images dim"]:
        """The features, float32 on the CPU; ValueError where they are not finite."""
        if self.vectors is not None:
            return self.vectors
        assert self.encoder is not None
        if self.folder is None:
            return features_shown(self.encoder, self.images, self.console, "computing features")
        images, path = self.images, self.folder / FILE
        key = _key(self.folder, images)
        digests = images.digests
        saved, before = _known(path, key, self.encoder.num_features, self.console)
        rows, some = np.array([before.get(one or "", -1) for one in digests]), images
        new = np.flatnonzero(rows < 0)
        if not len(new):
            return saved[rows]
        if len(new) < len(images):
            some = images.subset(new)
            said = (
                f"{len(new)} of {len(images)} images are new; the features of the others are known"
            )
            self.console.print(Text(said))
        features = torch.cat(
            [saved, features_shown(self.encoder, some, self.console, "computing features")]
        )
        rows[new] = len(saved) + np.arange(len(new))
        known = {one: int(row) for one, row in zip(digests, rows, strict=True) if one is not None}
        others = [one for one in before if one not in known][: len(images)]
        known |= {one: before[one] for one in others}
        try:
            _save_known(path, key, features, known)
        except (OSError, SafetensorError) as error:  # which a full disk raises too
            self.console.print(
                Text(f"the features are not saved for the next time: {first_line(error)}")
            )
        return features[rows]

    def copy_distance(self) -> float:
        """The distance within which copies lie, see `nearfar.neighbours`; 0 where no encoder can
        measure it.
        """
        if self.encoder is None:
            return 0.0
        return copy_distance(
            partial(extract, self.encoder), self.images, self.features, stream(0, "altered")
        )

    def sampled(self, count: int, seed: int) -> Featured:
        """At most `count` random images with their features; a line says so where it is a
        sample.
        """
        rows = torch.from_numpy(sample(len(self.images), count, seed))
        vectors = None if self.vectors is None else self.vectors[rows]
        return replace(
            self, images=sampled_shown(self.images, count, seed, self.console), vectors=vectors
        )

    @cached_property
    def paths(self) -> list[str] | None:
        """The images' files; None where they are not files of their own."""
        paths = [path for path in paths_of(self.images) if path is not None]
        return paths if paths and len(paths) == len(self.images) else None

    def files(self, rows: list[int]) -> dict[str, list[str]]:
        """A column "path" with the files of these images; no column where they are no files."""
        return {} if self.paths is None else {"path": [self.paths[row] for row in rows]}


def _key(folder: Path, images: Images) -> str:
    """What features of an image depend on beside its content: the encoder's files, how it is read,
    and our code.
    """
    opened = [FEATURES, READING, images.image_size, images.channels, images.value_range]
    files = [(folder / file).read_bytes() for file in (WEIGHTS, CONFIG)]
    return digest([*files, json.dumps(opened).encode()])


def _known(
    path: Path, key: str, dim: int, console: Console
) -> tuple[Float[Tensor, "known dim"], dict[str, int]]:
    """The features that a run folder holds by this key, and the row of each digest of an image.

    None where there is no such file, or one by another key. One that holds anything else than what
    `_save_known` wrote is not believed, and a line says so.
    """
    nothing: tuple[Tensor, dict[str, int]] = (torch.zeros(0, dim), {})
    if not os.path.lexists(path):
        return nothing
    try:
        if not path.is_file():
            raise ValueError("it is not a regular file")
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("key") != key:
                return nothing
            features, digests = file.get_tensor("features"), file.get_tensor("digests")
        shapes = (len(features), dim), (len(features), 16)
        if (tuple(features.shape), tuple(digests.shape)) != shapes:
            raise ValueError(f"its features are not [images, {dim}]")
        if (features.dtype, digests.dtype) != (torch.float32, torch.uint8):
            raise ValueError(f"its features are {features.dtype}")
        if about.get("content") != content_of(features, digests) or not features.isfinite().all():
            raise ValueError("its content has changed")
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        why = first_line(error)[:200]
        console.print(Text(f"{path} is damaged, and its features are computed anew: {why}"))
        return nothing
    return features, {bytes(one).hex(): row for row, one in enumerate(digests.numpy())}


def _save_known(path: Path, key: str, features: Tensor, rows: Mapping[str, int]) -> None:
    """Write the features at these rows by the digests of their images, whole or not at all."""
    kept = features[list(rows.values())]
    marks = [list(bytes.fromhex(one)) for one in rows]
    digests = torch.tensor(marks, dtype=torch.uint8).reshape(len(rows), 16)
    about = {"key": key, "content": content_of(kept, digests)}
    with replacing(path) as unfinished:
        save_file({"features": kept, "digests": digests}, unfinished, metadata=about)


@dataclass(frozen=True)
class WithoutRun:
    """What stands in the place of a run: data, or vectors that were made elsewhere."""

    source: Any
    vectors: Vectors | None

    @property
    def path(self) -> Path:
        """The source as a word."""
        return Path(describe(self.source))

    @property
    def stem(self) -> str:
        """The beginning of the names of pages, which go to the working directory."""
        return self.path.resolve().stem.replace(".", "-")

    def beside(self, data: Any) -> WithoutRun:
        """The source with further data; ValueError where both are not paths."""
        return self if data is None else WithoutRun(_with(self.source, data), None)


def run_or_data(given: Any) -> Run | WithoutRun:
    """Return the run in a folder, or what is there instead: a file or an array of vectors, or data
    of any kind.
    """
    if isinstance(given, (Run, WithoutRun)):
        return given
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        if any((path / name).exists() for name in ("config.yaml", WEIGHTS, "metrics.jsonl")):
            return Run(path)
        if not path.exists() and str(given) != "digits" and not str(given).startswith(HUB):
            raise FileNotFoundError(
                f"there is no {path}: name a run folder, images or a file of vectors"
            )
    return WithoutRun(given, find_vectors(given))


def open_featured(
    run: Run | WithoutRun,
    data: Any,
    split: str | None,
    encoder: nn.Module | str | None,
    console: Console,
    least: int = 2,
    label_column: str | None = None,
    copies: bool = False,
) -> Featured:
    """Open the data of a run, or other data; ValueError for fewer than `least` images.

    Without a run: the data alone, with an encoder by the name of its weights or the best features
    at once, of which those that find the most `copies` are of colours and edges alone; or vectors,
    with the images of `data` beside them.
    """
    if isinstance(run, WithoutRun):
        if run.vectors is not None:
            found = _beside(run, data, split, encoder, console, label_column)
        else:
            found = _at_once(run, data, split, encoder, console, label_column, copies)
    else:
        if isinstance(encoder, str):
            raise ValueError(
                f"--encoder {encoder} is for data without a run: {run.path} has its own"
            )
        settings, trained = run.settings, load(run, encoder=encoder)
        source = settings.given("data") if data is None else data
        split = split or (settings.split if data is None else None)
        try:
            images = open_shown(
                source,
                console,
                split=split,
                label_column=label_column,
                **settings.reading_for(trained.image_size),
            )
        except FileNotFoundError as error:
            if data is not None:
                raise
            raise FileNotFoundError(
                f"{error}; that is where the data of {run.path} was: name it anew"
            ) from error
        found = Featured(images, trained, run.path, console)
    if len(found.images) < least:
        raise ValueError(
            f"there are only {len(found.images)} images in {found.images.source}, and "
            f"{least} are needed"
        )
    return found


def open_against(known: Featured, archive: Any, console: Console) -> tuple[Featured, int]:
    """Open an archive, and put its images before those to compare with it; and the number of the
    former.

    Its files that are also among the others are left out: they are no second copy. ValueError if no
    other is left.
    """
    others = known.images
    if known.encoder is None:
        raise ValueError("--against needs an encoder, and there are vectors alone")
    how: dict[str, Any] = dict(image_size=others.image_size, channels=others.channels)
    images = open_shown(
        archive, console, split="all", value_range=others.value_range or EIGHT_BITS, **how
    )
    own = {file_identity(path) for path in known.paths or [] if not os.path.islink(path)}
    found = map(file_identity, replace(known, images=images).paths or [])
    if shared := {row for row, one in enumerate(found) if one in own}:
        console.print(
            Text(
                f"{len(shared)} files of {images.source} are also among the others, and "
                f"left out there"
            )
        )
        if len(shared) == len(images):
            raise ValueError(
                f"every file of {images.source} is one of {others.source}: name another archive"
            )
        images = images.subset([row for row in range(len(images)) if row not in shared])
    both = joined([images, others], [images.source, others.source], labelled=False)
    both.names = images.names + others.names
    return replace(known, images=both), len(images)


def _at_once(
    run: WithoutRun,
    data: Any,
    split: str | None,
    encoder: Any,
    console: Console,
    label_column: str | None,
    copies: bool,
) -> Featured:
    """Data without a run, with the weights that are named or a user's module, else features at
    hand.
    """
    source, for_copies = run.beside(data).source, copies and encoder is None
    size = side_at_hand(source, console) if encoder is None else USUAL
    images = open_shown(source, console, split=split, label_column=label_column, image_size=size)
    if for_copies:
        net = join_encoders(list(COPIES.items()), images.image_size, images.channels)
        net.value_range = images.value_range
        console.print(Text("features of colours and edges, which find the most copies"))
    else:
        net = encoder_for(images, encoder, console)
    return Featured(images, net, None, console, for_copies=for_copies)


def _with(source: Any, data: Any) -> list[Any]:
    """Data and further data as one source; ValueError for what is no path."""
    first, others = (
        list(one) if isinstance(one, (list, tuple)) else [one] for one in (source, data)
    )
    if not all(isinstance(one, (str, os.PathLike)) for one in first + others):
        raise ValueError(
            f"{describe(source)} is neither a run nor a file of vectors, so that it is the "
            f"data: leave "
            f"{describe(data)} out"
        )
    return first + others


def encoder_for(images: Images, encoder: nn.Module | str | None, console: Console) -> Encoder:
    """An encoder for images without a run: by the name of its weights, a user's module, or None for
    the best at hand; a line says which it is.
    """
    size, channels, moments = images.image_size, images.channels, (images.mean, images.std)
    if encoder is None:
        net = at_hand(size, channels, console)
    elif isinstance(encoder, str):
        net = named_encoder(encoder, size, channels, moments)
        console.print(Text(f"features of {encoder}, which has not seen these images"))
    else:
        net = Encoder(own_backbone(encoder, size, channels), size, channels, *moments).eval()
    net.value_range = images.value_range
    return net


def at_hand(image_size: int, channels: int, console: Console) -> Encoder:
    """The best encoder that needs no training on the images, and a line on which it is and what
    would be better.

    That of installed pretrained weights beside edges and colours, else of the net that comes with
    this package; colours and edges alone for images that are neither grayscale nor colour.
    """
    members: list[tuple[Encoder | str, float]] = list(COPIES.items())
    said = "features of colours and edges"
    if channels in (1, 3) and (weights := installed_weights()) is not None:
        members = [(PRETRAINED, 1.0), *BESIDE.items()]
        said = f"features of {weights.encoder}, trained on ImageNet, beside edges and colours"
    elif channels in (1, 3):
        simple = join_encoders(members, image_size, channels)
        members = [(simple, 1.0), (named_encoder(OWN, image_size, channels), 1.0)]
        said += f" and of the net that comes with nearfar; {BETTER}"
    console.print(Text(said), soft_wrap=True)
    return join_encoders(members, image_size, channels)


def pretrained_encoder(channels: int) -> Encoder | None:
    """The net of installed pretrained weights as it is; None without any, and for images that are
    neither grayscale nor colour.
    """
    if channels not in (1, 3) or installed_weights() is None:
        return None
    return named_encoder(PRETRAINED, SIDE, channels)


def side_at_hand(source: Any, console: Console) -> int | None:
    """The size at which images are opened for features at once: their own if it is small; None: as
    they are.
    """
    table = scan(source)
    return None if table is None else min(usual_side(table), SIDE)


def _beside(
    run: WithoutRun,
    data: Any,
    split: str | None,
    encoder: Any,
    console: Console,
    label_column: str | None,
) -> Featured:
    """Vectors with the images of `data`, by their names or in their order; without data with grey
    stand-ins.
    """
    found, of_images = _vectors_labelled(run, label_column, data)
    vectors, names, labels = found.features, found.names, found.labels
    if encoder is not None:
        raise ValueError(f"{run.path} holds vectors: no encoder is needed")
    if data is None and split not in (None, "all"):
        raise ValueError(f"{run.path} holds vectors, which have no splits: leave --split out")
    if data is None:
        numbers, classes = _numbered(labels, list(range(len(vectors))))
        images = Images(
            torch.full((1, 1, 8, 8), 128, dtype=torch.uint8).expand(len(vectors), -1, -1, -1),
            names=[f"{row:06d}" for row in range(len(vectors))]
            if names is None
            else list(map(printable, names)),
            labels=numbers,
            class_names=classes,
            source=found.source,
        )
        return Featured(images, None, None, console, vectors, pictured=False)
    images = open_shown(
        data,
        console,
        split=split or "all",
        label_column=of_images,
        image_size=side_at_hand(data, console),
    )
    if names is None:
        if texts := found.texts:
            raise ValueError(
                f"{run.path} has no column of a usual name, such as 'path', with the names "
                f"of its images: rename the "
                f"right one of {', '.join(texts)}, or give the vectors alone, in the order "
                f"of the images"
            )
        if len(images) != len(vectors):
            raise ValueError(
                f"{len(vectors)} vectors without names cannot be those of {len(images)} images"
            )
        of = {row: row for row in range(len(images))}
        console.print(
            Text(f"the vectors have no names: they are taken in the order of {images.source}")
        )
    else:
        of, how = match(names, images.names, Featured(images, None, None, console).paths)
        if not of:
            raise ValueError(
                f"no name in {run.path} is that of an image in {images.source}: first "
                f"{names[0]!r:.300}, and "
                f"{images.names[0]!r:.300} there (folder and file must agree)"
            )
        if how:
            console.print(Text(how))
        if len(of) < max(len(images), len(vectors)):
            said = f"{len(of)} of {len(images)} images have one of the {len(vectors)} vectors"
            console.print(Text(f"{said}; the others are left out"))
    kept, rows = map(list, zip(*sorted(of.items()), strict=True))
    images = images.subset(kept)
    if images.labels is None or label_column != of_images:
        images.labels, images.class_names = _numbered(labels, rows)
    elif labels is not None:
        console.print(Text(f"labels are those of {images.source}, not those of {run.path}"))
    return Featured(images, None, None, console, vectors[rows])


def _vectors_labelled(
    run: WithoutRun, label_column: str | None, data: Any
) -> tuple[Vectors, str | None]:
    """Vectors with the labels in a column, if it is one of theirs, and None; else the column that
    the images are to have.
    """
    assert run.vectors is not None
    if label_column is None or label_column not in run.vectors.columns:
        if label_column is not None and data is None:
            there = ", ".join(run.vectors.columns) or "none"
            raise ValueError(
                f"{run.path} has no column '{label_column}' for labels; its columns: {there}"
            )
        return run.vectors, label_column
    vectors = find_vectors(run.source, label_column)
    assert vectors is not None
    return vectors, None


def _numbered(
    labels: list[str | None] | None, rows: Sequence[int]
) -> tuple[np.ndarray | None, list[str] | None]:
    """The labels of some rows as numbers, and the names of the classes."""
    if labels is None:
        return None, None
    numbers, classes = numbered(labels)
    if numbers.null_count == len(numbers):
        return None, None
    return numbers.fill_null(-1).to_numpy()[list(rows)], classes


def nearest_shown(
    features: Float[Tensor, "rows dim"],
    k: int,
    console: Console | None,
    queries: Float[Tensor, "queries dim"] | None = None,
    own: Int64[Tensor, " queries"] | None = None,
    approximate: bool = False,
) -> Nearest:
    """Find the k nearest rows of each query; see `find_nearest`."""
    return find_nearest(features, queries, k, own=own, approximate=approximate)


def features_shown(
    encoder: nn.Module | Callable[[Tensor], Tensor], images: Images, console: Console, title: str
) -> Tensor:
    """Compute the features of all images [images, dim], on a GPU if there is one, and show how far
    that is.

    Raises ValueError for features that are not finite.
    """
    with waiting(title):
        features = extract(encoder, images, device=find_device())
    if bad := int((~features.isfinite()).any(1).sum()):
        raise ValueError(
            f"the features of {bad} of {len(images)} images are not finite: the encoder's "
            f"weights are bad"
        )
    return features


def open_shown(source: Any, console: Console, **options: Any) -> Images:
    """Open images as `nearfar.data.open_images` does, show how far that is, and say what was read
    and left out.
    """
    images = open_images(source, **options)
    say_read(images, console)
    return images


def sampled_shown(images: Any, limit: int, seed: int, console: Console) -> Any:
    """Return at most `limit` of the images, or of others that can be sampled, and say so where it
    is a sample.
    """
    if limit < len(images):
        console.print(
            Text(f"--limit: {limit} of {len(images)} images, a random sample (seed {seed})")
        )
    return images.sampled(limit, seed)


@dataclass(frozen=True)
class Queries:
    """Query images. `own`: their positions in the data, -1 for others; `pixels`: as the encoder
    takes them.
    """

    names: list[str]
    features: Float[Tensor, "queries dim"]
    own: Int64[Tensor, " queries"]
    pixels: list[Shaped[Tensor, "channels side side"]]


def queries_of(given: Any, data: Featured) -> Queries:
    """Find images by what is given: words, or anything else that `nearfar.data.open_images` takes
    in memory.

    A word is the name of an image of the data; a file, which is looked up in the data first; or a
    text file of names and files, one a line or with a zero byte between them. ValueError for a word
    that is nothing of this, for files that are no images, and where nothing is given.
    """
    words = [given] if isinstance(given, (str, os.PathLike)) else given
    if not (
        isinstance(words, (list, tuple))
        and all(isinstance(word, (str, os.PathLike)) for word in words)
    ):
        net = _needed(data)
        size, channels, value_range = net.image_size, net.channels, net.value_range or EIGHT_BITS
        others = open_images(given, image_size=size, channels=channels, value_range=value_range)
        pixels = list(others.gather(torch.arange(len(others))))
        return Queries(
            others.names, extract(net, torch.stack(pixels)), torch.full((len(others),), -1), pixels
        )
    names, rows, pixels = [], [], []
    for word, row in places_of(words, data):
        names.append(printable(word) if row < 0 else data.images.names[row])
        rows.append(row)
        pixels.append(
            _decoded(word, data) if row < 0 else data.images.gather(torch.tensor([row]))[0]
        )
    if not names:
        raise ValueError(
            "name the images to look for: their names in the data, files, or a text file of either"
        )
    features = [
        data.features[row] if row >= 0 else extract(_needed(data), x[None])[0]
        for row, x in tracked(list(zip(rows, pixels, strict=True)), "computing features")
    ]
    return Queries(names, torch.stack(features), torch.tensor(rows), pixels)


def _needed(data: Featured) -> Encoder:
    if data.encoder is None:
        raise ValueError(
            "other images need the encoder that made these vectors: name images of the data"
        )
    return data.encoder


def places_of(words: Sequence[Any], data: Featured) -> list[tuple[str, int]]:
    """Names and files, those in text files too, each with its position in the data, or -1 where it
    is not of it.

    A file is found by whatever path leads to it, through links too. A word that is no file is a
    name, or the end of one path (`nearfar.data.names.match`).
    """
    names, paths = data.images.names, data.paths
    place = {plain_name(name): row for row, name in reversed(list(enumerate(names)))}
    place |= {name: row for row, name in enumerate(names)}
    real = cache(os.path.realpath)  # of folders
    files = {
        (real(folder), name): row
        for row, (folder, name) in enumerate(map(os.path.split, paths or []))
    }
    found = _words(words, place)
    rows = []
    for word in found:
        row = place.get(word, -1)
        for written in spellings(word):
            folder, name = os.path.split(written)
            row = files.get((real(folder), name), -1) if row < 0 else row
        rows.append(row)
    rows = _by_links(found, rows, paths or [])
    left = [n for n, row in enumerate(rows) if row < 0 and not os.path.exists(found[n])]
    meant, _ = match([found[n] for n in left], names, paths) if left else ({}, "")
    for row, n in meant.items():
        rows[left[n]] = row
    return list(zip(found, rows, strict=True))


def _by_links(words: Sequence[str], rows: list[int], paths: Sequence[str]) -> list[int]:
    """The rows, with those of words that are the same file by a link where none is known."""
    left = [n for n, row in enumerate(rows) if row < 0 and os.path.isfile(words[n])]
    if not left or not paths:
        return rows
    known: dict[tuple[int, int] | str, int] = {}
    for row, path in enumerate(paths):
        known.setdefault(file_identity(path), row)
    found = list(rows)
    for place in left:
        found[place] = known.get(file_identity(words[place]), -1)
    return found


def _words(words: Sequence[Any], known: dict[str, int]) -> list[str]:
    """The words, with what text files hold in their places."""
    out = []
    for word in map(os.fspath, words):
        if word in known or Path(word).suffix.lower() not in LISTS or not Path(word).is_file():
            out.append(word)
            continue
        content = Path(word).read_bytes()
        if encoding_of(content) == "cp1252":  # or names of files in whatever bytes they have
            escaped = content.decode("utf-8", "surrogateescape")
            lines = lines_of(escaped)
            there = any(
                line in known or os.path.exists(line) for line in lines if not _is_text(line)
            )
            out += lines if there else lines_of(text_of(content))
        else:
            out += lines_of(text_of(content))
    return out


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8."""
    return not any("\udc80" <= char <= "\udcff" for char in name)


def _decoded(word: str, data: Featured) -> Shaped[Tensor, "channels side side"]:
    if not Path(word).is_file():
        near = did_you_mean(word, data.images.names[:COMPARED], "see `nearfar embed` for the names")
        raise ValueError(f"{printable(word)!r} is neither an image of the data nor a file: {near}")
    with one_line(f"cannot read {printable(word)!r} as an image"):
        net = _needed(data)
        return pixels_of(word, Form(net.image_size, net.channels, net.value_range))
