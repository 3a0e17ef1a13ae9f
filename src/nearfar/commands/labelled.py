"""Labelled images for the protocols, split by split, and their features by several encoders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.text import Text
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Subset

from nearfar.commands.opening import features_shown, open_shown, shown
from nearfar.data import Images, list_splits, open_images
from nearfar.data.images import sample
from nearfar.data.standard_sets import Split, StandardSet, open_standard, standard_set
from nearfar.evaluation import FOR_MANY_LABELS, extract

CHUNK = 1024  # images of a data set of torchvision that are in memory at a time

Encoders = Mapping[str, Callable[[Tensor], Tensor]]
Labelled = dict[str, tuple[Tensor, np.ndarray | None]]  # features and labels by split


@dataclass(frozen=True)
class LabelledSets:
    """The splits "train", "test" and perhaps "validation". name: of a data set of torchvision, else empty."""

    splits: Mapping[str, Images | Split]
    fitted: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    standard: StandardSet | None = None

    def count(self, split: str) -> int:
        """Images of a split."""
        images = self.splits[split]
        return len(images) if isinstance(images, Images) else len(images.images)  # type: ignore[arg-type]

    def limited(self, limit: int | None, seed: int, console: Console) -> LabelledSets:
        """The same with a random sample of so many training images."""
        train = self.splits["train"]
        if limit is None or limit >= self.count("train"):
            return self
        console.print(Text(f"--limit: {limit} of {self.count('train')} training images, a random sample (seed {seed})"))
        if isinstance(train, Images):
            return LabelledSets({**self.splits, "train": train.sampled(limit, seed)}, self.fitted)
        rows = sample(self.count("train"), limit, seed)
        some = Split(Subset(train.images, rows.tolist()), None if train.matrix is None else train.matrix[rows])
        return LabelledSets({**self.splits, "train": some}, self.fitted, self.name, self.standard)

    def held_out(self, limit: int | None, seed: int, count: int) -> LabelledSets:
        """The same with the last `count` training images beyond the random sample in place of the test images."""
        train = self.splits["train"]
        if not isinstance(train, Images):
            raise ValueError("--held-out is for images of your own, not for a data set of torchvision")
        left = np.setdiff1d(np.arange(len(train)), sample(len(train), limit, seed))
        if len(left) < count:
            raise ValueError(f"--held-out {count}: {len(left)} training images are left; lower it, or lower --limit")
        return LabelledSets({**self.splits, "test": train.subset(left[-count:])}, self.fitted)

    def images(self, split: str, console: Console) -> Images:
        """All images of a split in memory."""
        images = self.splits[split]
        return images if isinstance(images, Images) else open_shown(images.images, console, **self.fitted)

    def must_suit(self, protocols: Sequence[str]) -> None:
        """Raise ValueError for images with several labels and a protocol that needs one an image."""
        alone = [one for one in protocols if one not in FOR_MANY_LABELS]
        if self.standard is not None and self.standard.metric == "eleven_point_map" and alone:
            raise ValueError(
                f"{alone[0]} needs one label an image, those of {self.name} have several: choose transfer or low-shot"
            )

    def features(self, encoders: Encoders, console: Console) -> Iterator[tuple[str, Labelled]]:
        """Features and labels of every split, encoder by encoder; images in no memory are read once for all of them."""
        streamed = {
            split: _streamed(images, encoders, self.fitted, console, f"{split} images")
            for split, images in self.splits.items()
            if isinstance(images, Split)
        }
        for name, encoder in encoders.items():
            title = name.replace("_", " ")
            found: Labelled = {}
            for split, images in self.splits.items():
                if isinstance(images, Images):
                    found[split] = features_shown(encoder, images, console, title), images.labels
                else:
                    found[split] = streamed[split][name]
            yield name, found


def open_labelled(
    source: Any,
    console: Console,
    fitted: Mapping[str, Any],
    *,
    root: str | os.PathLike[str] | None,
    share: float,
    seed: int,
    validation: bool,
    label_column: str | None = None,
) -> LabelledSets:
    """Open labelled images; both splits of the data, or a stratified cut of all of it; or "torchvision:NAME".

    fitted: image size and channels. validation: whether to open that split too, where there is one.
    """
    standard = standard_set(source) if isinstance(source, str) else None
    if standard is not None:
        name, chosen = standard
        splits: dict[str, Images | Split] = dict(open_standard(chosen, root, seed))
        if not validation:
            splits.pop("validation", None)
        return LabelledSets(splits, fitted, name, chosen)
    if root is not None:
        raise ValueError("--root is for data sets of torchvision: name one, such as torchvision:flowers102")
    asked = {**fitted, "label_column": label_column}
    there = set(list_splits(source))
    if {"train", "test"} <= there:
        parts = ["train", *(["validation"] if validation and "validation" in there else []), "test"]
        opened = {part: open_shown(source, console, split=part, **asked) for part in parts}
    else:
        images = _with_labels(open_shown(source, console, **asked), console)
        opened = dict(zip(("train", "test"), _stratified(images, share, seed, console), strict=True))
    return LabelledSets({part: _with_labels(images, console) for part, images in opened.items()}, fitted)


def _with_labels(images: Images, console: Console) -> Images:
    """The images that have a label."""
    if images.labels is None or (known := images.labels >= 0).sum() < 1:
        what = f"the {images.split} images" if images.split else "these images"
        raise ValueError(f"{what} have no labels to evaluate with; the report's verdict needs none")
    if known.all():
        return images
    console.print(Text(f"{(~known).sum()} of {len(images)} images have no label and are left out"))
    return images.subset(np.flatnonzero(known))


def _stratified(images: Images, share: float, seed: int, console: Console) -> tuple[Images, Images]:
    """A training and a test part with the same shares of each class; a class with a single image is not tested."""
    assert images.labels is not None
    _, number, counts = np.unique(images.labels, return_inverse=True, return_counts=True)
    alone, several = np.flatnonzero(counts[number] == 1), np.flatnonzero(counts[number] > 1)
    try:
        train, test = train_test_split(several, test_size=share, random_state=seed, stratify=number[several])
    except ValueError as error:  # fewer images than classes in one of the parts
        raise ValueError(
            f"{len(images)} images of {len(counts)} classes are too few for --test-share {share}: "
            "both parts need as many images as there are classes"
        ) from error
    if len(alone):
        console.print(Text(f"{len(alone)} of {len(counts)} classes have a single image, which is not tested on"))
    return images.subset(np.concatenate([train, alone])), images.subset(test)


def _streamed(split: Split, encoders: Encoders, fitted: Mapping[str, Any], console: Console, title: str) -> Labelled:
    """Features by encoder, and labels, of images that are read a piece at a time; unreadable ones are left out."""
    parts: dict[str, list[Tensor]] = {name: [] for name in encoders}
    labels: list[np.ndarray] = []
    device = "cuda" if torch.cuda.is_available() else None
    with shown(console, title) as progress:
        for rows in torch.arange(len(split.images)).split(CHUNK):  # type: ignore[arg-type]
            images = open_images(Subset(split.images, rows.tolist()), **fitted)
            for name, encoder in encoders.items():
                parts[name].append(extract(encoder, images, device=device))
            kept = rows[[int(name) for name in images.names]].numpy()
            labels.append(images.labels if split.matrix is None else split.matrix[kept])  # type: ignore[arg-type]
            progress(int(rows[-1]) + 1, len(split.images))  # type: ignore[arg-type]
    return {name: (torch.cat(pieces), np.concatenate(labels)) for name, pieces in parts.items()}
