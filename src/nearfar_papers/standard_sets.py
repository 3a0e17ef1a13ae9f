"""The labelled data sets of the transfer tables, from torchvision by name: splits, metrics and
features.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
import torchvision.datasets
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset, Subset

from nearfar.data import open_images
from nearfar.data.left_out import Count
from nearfar.device import find_device
from nearfar.evaluation import extract
from nearfar.messages import check_known, first_line
from nearfar.progress import progress, say_read
from nearfar.tools.evaluate.labelled_sets import LabelledSets
from nearfar_papers.protocols import Metric

PREFIX = "torchvision:"
Encoders = Mapping[str, Callable[[Tensor], Tensor]]
"""Encoders by row."""
Labelled = dict[str, tuple[Tensor, np.ndarray | None]]
"""Features and labels by split."""
CHUNK = 1024  # images that are in memory at a time
VOC_CLASSES = (
    *(
        "aeroplane",
        "bicycle",
        "bird",
        "boat",
        "bottle",
        "bus",
        "car",
        "cat",
        "chair",
        "cow",
        "diningtable",
        "dog",
    ),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


@dataclass(frozen=True)
class StandardSet:
    """A data set of torchvision as the transfer tables use it.

    kind: class in torchvision.datasets. train, test, validation: arguments that give these splits;
    no validation split: a random fifth of the training split is used. metric: of SCE's Table 9.
    steps: of LORAC's Table 2, None for 100 epochs. drawn: where torchvision has one split only, the
    images of a class that are drawn for training and for the test (None: all others).
    """

    kind: str
    train: Mapping[str, Any]
    test: Mapping[str, Any]
    validation: Mapping[str, Any] | None = None
    metric: Metric = "accuracy"
    steps: int | None = 5_000
    drawn: tuple[int, int | None] | None = None
    common: Mapping[str, Any] = field(default_factory=dict)


def _by_split(
    kind: str, train: str, test: str, validation: str | None = None, key: str = "split", **rest: Any
) -> StandardSet:
    return StandardSet(
        kind, {key: train}, {key: test}, None if validation is None else {key: validation}, **rest
    )


STANDARD_SETS = {
    "aircraft": _by_split("FGVCAircraft", "train", "test", "val", metric="mean_per_class"),
    "caltech101": StandardSet("Caltech101", {}, {}, metric="mean_per_class", drawn=(30, None)),
    "cars": _by_split("StanfordCars", "train", "test", steps=30_000),
    "cifar10": StandardSet("CIFAR10", {"train": True}, {"train": False}, steps=30_000),
    "cifar100": StandardSet("CIFAR100", {"train": True}, {"train": False}, steps=30_000),
    "dtd": _by_split("DTD", "train", "test", "val"),
    "flowers102": _by_split("Flowers102", "train", "test", "val", metric="mean_per_class"),
    "food101": _by_split("Food101", "train", "test", steps=30_000),
    "pets": _by_split("OxfordIIITPet", "trainval", "test", metric="mean_per_class"),
    "places365": _by_split(
        "Places365", "train-standard", "val", steps=None, common={"small": True}
    ),
    "sun397": StandardSet("SUN397", {}, {}, steps=30_000, drawn=(50, 50)),
    "voc2007": _by_split(
        "VOCDetection",
        "train",
        "test",
        "val",
        "image_set",
        metric="eleven_point_map",
        common={"year": "2007"},
    ),
}
OWN_DATA = StandardSet("", {}, {})
"""How other data is measured: by accuracy, with LORAC's steps for small data sets."""


@dataclass(frozen=True)
class Split:
    """Images with labels that are read one by one; `matrix` [images, classes] holds several labels
    an image.
    """

    images: Dataset[Any]
    matrix: Int[np.ndarray, "images classes"] | None = None

    def __len__(self) -> int:
        return len(self.images)  # type: ignore[arg-type]

    def sampled(self, limit: int, seed: int) -> Split:
        """The same with a random sample of so many images."""
        rows = np.sort(np.random.default_rng(seed).permutation(len(self))[:limit])
        return Split(
            Subset(self.images, rows.tolist()), None if self.matrix is None else self.matrix[rows]
        )


def features_in_pieces(
    sets: LabelledSets, reading: Mapping[str, Any], encoders: Encoders
) -> Iterator[tuple[str, Labelled]]:
    """Features and labels of every split, encoder by encoder; each image is read once, and left out
    if unreadable, which a line says.
    """
    by_row: dict[str, Labelled] = {row: {} for row in encoders}
    device = find_device()
    for name, split in sets.splits.items():
        parts: dict[str, list[Tensor]] = {row: [] for row in encoders}
        labels: list[np.ndarray] = []
        skipped: list[tuple[str, str]] = []
        with progress(f"reading {name} images", len(split)) as bar:
            for rows in torch.arange(len(split)).split(CHUNK):
                images = open_images(Subset(split.images, rows.tolist()), **reading)
                for row, encoder in encoders.items():
                    parts[row].append(extract(encoder, images, device=device))
                known = rows[[int(position) for position in images.names]].numpy()
                known_labels = images.labels if split.matrix is None else split.matrix[known]
                labels.append(known_labels)  # type: ignore[arg-type]
                skipped += images.skipped
                bar.update(int(rows[-1]) + 1)
        read = len(split) - len(skipped)
        say_read(Count(sets.data, read, skipped, name, list(sets.splits)))
        for row in encoders:
            by_row[row][name] = torch.cat(parts[row]), np.concatenate(labels)
    yield from by_row.items()


def standard_set(source: str) -> tuple[str, StandardSet] | None:
    """Name and entry of "torchvision:NAME", None for any other source; ValueError for a name that
    is not known.
    """
    if not source.startswith(PREFIX):
        return None
    name = source.removeprefix(PREFIX).lower()
    kinds = {entry.kind.lower(): key for key, entry in STANDARD_SETS.items()}
    name = kinds.get(name, name)
    check_known("data set of torchvision in the transfer tables called", name, STANDARD_SETS)
    return name, STANDARD_SETS[name]


def open_standard(
    chosen: StandardSet, root: str | os.PathLike[str] | None, seed: int = 0
) -> dict[str, Split]:
    """Open "train", "test" and, where there is one, "validation", from the files that lie in
    `root`.

    Nothing is downloaded. seed: of the splits that are drawn. Raises ValueError without a root,
    FileNotFoundError without the files.
    """
    if root is None:
        raise ValueError(f"say where the files of torchvision's {chosen.kind} are: `root=DIR`")
    if chosen.drawn is not None:
        whole = _open(chosen, {}, root)
        train, test = _draw(
            np.asarray(getattr(whole, "y", None) or whole._labels), chosen.drawn, seed
        )
        return {"train": Split(Subset(whole, train)), "test": Split(Subset(whole, test))}
    parts = {"train": chosen.train, "validation": chosen.validation, "test": chosen.test}
    opened = {
        part: _open(chosen, which, root) for part, which in parts.items() if which is not None
    }
    several = chosen.metric == "eleven_point_map"
    return {
        part: Split(images, _voc_labels(images) if several else None)
        for part, images in opened.items()
    }


def _open(chosen: StandardSet, which: Mapping[str, Any], root: str | os.PathLike[str]) -> Any:
    try:
        if not os.path.isdir(root):
            raise FileNotFoundError("there is no such folder")  # torchvision would make some
        return getattr(torchvision.datasets, chosen.kind)(os.fspath(root), **which, **chosen.common)
    except (RuntimeError, OSError) as error:
        reason = first_line(error).split(". ")[0].rstrip(".")  # the next sentence offers a download
        raise FileNotFoundError(
            f"torchvision.datasets.{chosen.kind} finds no files in '{os.fspath(root)}' "
            f"({reason}): put them there as "
            "torchvision lays them out; nothing is downloaded"
        ) from error


def _draw(
    labels: np.ndarray, numbers: tuple[int, int | None], seed: int
) -> tuple[list[int], list[int]]:
    """Positions of so many images of each class, and of so many others (None: all others)."""
    generator = np.random.default_rng(seed)
    train: list[int] = []
    test: list[int] = []
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label)).tolist()
        train += rows[: numbers[0]]
        test += rows[numbers[0] :][: numbers[1]]
    return train, test


def _voc_labels(dataset: Any) -> Int[np.ndarray, "images classes"]:
    """1 for a class that an image shows, 0 where every object of it is difficult, else -1."""
    labels = np.full((len(dataset), len(VOC_CLASSES)), -1)
    for row, path in zip(labels, dataset.annotations, strict=True):
        for thing in ElementTree.parse(path).iter("object"):
            column = VOC_CLASSES.index(thing.findtext("name", ""))
            row[column] = max(row[column], 0 if thing.findtext("difficult") == "1" else 1)
    return labels


def name_with(result: str, data: str) -> str:
    """Return the key of a result on a data set of torchvision: its name at the end, "_std" of a
    deviation behind.
    """
    end = "_std" if result.endswith("_std") else ""
    return f"{result.removesuffix(end)}_{data}{end}" if data else result
