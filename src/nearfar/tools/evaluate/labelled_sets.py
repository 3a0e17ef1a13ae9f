"""Labelled images to fit and to test on: the splits of the data, or a share of each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped
from sklearn.model_selection import train_test_split
from torch import Tensor

from nearfar.data import Images, describe
from nearfar.data.images import sample, say_sample
from nearfar.embeddings import Embeddings
from nearfar.embeddings.embeddings import compute_features
from nearfar.embeddings.sources import sampled
from nearfar.messages import listed, listed_names
from nearfar.progress import log
from nearfar.tools.evaluate.rows import Encoders

Labelled = dict[str, tuple[Tensor, np.ndarray | None]]
"""Features and labels by split."""
Rows = Int64[np.ndarray, "_"]


@dataclass(frozen=True)
class LabelledSets:
    """The splits "train", "test" and perhaps "validation": `Images`, or others with a length that
    can be sampled.

    data: the source in words. test: which of its images are tested on, in words. limit: of the
    training images. rows: their positions in the embeddings that they are of.
    """

    splits: Mapping[str, Any]
    data: str = ""
    test: str = "the test split"
    limit: int | None = None
    rows: Mapping[str, Rows] = field(default_factory=dict)

    def count(self, split: str) -> int:
        """Return the number of images of a split."""
        return len(self.splits[split])

    def limited(self, limit: int | None, seed: int) -> LabelledSets:
        """Return the same with a random sample of this many training images."""
        train = self.splits["train"]
        some = sampled(train, limit or len(train), seed)
        limit = limit if limit is not None and limit < len(train) else None
        return replace(self, splits={**self.splits, "train": some}, limit=limit)

    def features(self, encoders: Encoders) -> Iterator[tuple[str, Labelled]]:
        """Yield features and labels of every split, encoder by encoder."""
        for row, encoder in encoders.items():
            title = row.replace("_", " ")
            by_split = {
                name: compute_features(encoder, images, title)
                for name, images in self.splits.items()
            }
            yield row, self.labelled(by_split)

    def labelled(self, features: Mapping[str, Tensor]) -> Labelled:
        """Return features by split with the labels of their images."""
        return {name: (of_split, self.splits[name].labels) for name, of_split in features.items()}


def divide(
    photos: Embeddings,
    *,
    share: float = 0.2,
    seed: int = 0,
    limit: int | None = None,
    held_out: int | None = None,
    validation: bool = False,
) -> LabelledSets:
    """Return the training and test images of labelled ones by their splits, with `validation` that
    split too if there is one; else a share of each class is tested on.

    share: of the images for the test. limit: size of a random sample of the training images; None:
    that of a run on its own data. held_out: test on so many of the other training images instead.
    Raises ValueError for images without labels, and for too few.
    """
    images, drawn_by = photos.images, seed
    if limit is None and photos.run is not None and photos.own_data:
        limit, drawn_by = photos.run.settings.limit, photos.run.settings.seed
    if images.labels is None or not (images.labels >= 0).any():
        raise ValueError(_no_labels(photos))
    of_split = np.array(images.split_names)
    wanted = ("train", *(["validation"] if validation else []), "test")
    parts = [part for part in wanted if (of_split == part).any()]
    if {"train", "test"} <= set(parts):
        if others := [split for split in images.splits if split not in parts]:
            log.info("not evaluated: the images of %s", listed(others))
        rows = {part: _with_labels(np.flatnonzero(of_split == part), photos) for part in parts}
        tested = "the test split"
    else:
        if {"train", "test"} <= set(images.splits):
            log.info(
                "a share of these images is tested on, not the test split of %s: "
                "nearfar.embed(..., split='all') opens it too",
                images.source,
            )
        known = _with_labels(np.arange(len(images)), photos)
        train, test = _stratified(images.labels[known], share, seed)
        rows = {"train": known[train], "test": known[test]}
        tested = f"a random {share:.0%} of each class, seed {seed}"
    if held_out is not None:
        rows["test"] = _held_out(images.labels, rows["train"], held_out, limit, drawn_by, seed)
        tested = f"training images held out at random, seed {seed}"
    total = len(rows["train"])
    if limit is not None and limit < total:
        say_sample(limit, total, drawn_by)
        rows["train"] = rows["train"][sample(total, limit, drawn_by)]
    for part in set(rows) - {"train"}:
        _say_unseen(part, images, rows["train"], rows[part])
    splits = {part: images.subset(chosen) for part, chosen in rows.items()}
    limit = limit if limit is not None and limit < total else None
    named = images.source if photos.source is None else describe(photos.source)
    return LabelledSets(splits, named, tested, limit, rows)


def _say_unseen(part: str, images: Images, train: Rows, tested: Rows) -> None:
    """Say which classes of a part have no training image, so that nothing can predict them."""
    assert images.labels is not None
    labels, names = images.labels, images.label_names
    lost = tested[~np.isin(labels[tested], labels[train])]
    if len(lost):
        classes = list(dict.fromkeys(names[row] for row in lost[np.argsort(labels[lost])]))
        log.info(
            "%d of %d %s images are of classes without a training image, and count as wrong: %s",
            len(lost),
            len(tested),
            part,
            listed_names(classes),
        )


def stratified_sample(
    labels: Shaped[np.ndarray, " images"], count: int, seed: int
) -> Int64[np.ndarray, " chosen"]:
    """Return positions of `count` random images, in order, with each class in its share, to within
    one image.

    >>> labels = np.array([0] * 90 + [1] * 10)
    >>> np.bincount(labels[stratified_sample(labels, 20, seed=0)])
    array([18,  2])
    """
    generator = np.random.default_rng(seed)
    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    exact = counts * count / len(labels)
    taken = np.floor(exact + 1e-9).astype(int)
    drawn = generator.permutation(len(counts))  # of equal remainders any class may be the first
    largest = drawn[np.argsort((taken - exact)[drawn], kind="stable")]
    taken[largest[: count - taken.sum()]] += 1
    chosen = [
        generator.permutation(np.flatnonzero(number == label))[:some]
        for label, some in enumerate(taken)
    ]
    return np.sort(np.concatenate(chosen))


def _held_out(
    labels: Shaped[np.ndarray, " images"],
    train: Rows,
    count: int,
    limit: int | None,
    drawn_by: int,
    seed: int,
) -> Rows:
    """Return so many of the training images that the limit leaves, a random share of each class."""
    left = np.setdiff1d(np.arange(len(train)), sample(len(train), limit, drawn_by))
    if len(left) < count:
        raise ValueError(
            f"`held_out={count}`: {len(left)} training images are left; lower it, or lower `limit`"
        )
    log.info(
        "`held_out`: %d of %d other training images, a random share of each class (seed %d)",
        count,
        len(left),
        seed,
    )
    return train[left[stratified_sample(labels[train[left]], count, seed)]]


def _no_labels(photos: Embeddings) -> str:
    """Return the line on embeddings without labels."""
    if not photos.has_pixels:
        return (
            f"the vectors of {photos.name} have no labels to evaluate with: name their column "
            "with `label_column`, give labelled images beside them, or in Python a pair "
            "(vectors, labels)"
        )
    return f"the {photos.images.split or 'given'} images have no labels to evaluate with"


def _with_labels(rows: Rows, photos: Embeddings) -> Rows:
    """Return those of the images at these rows that have a label; ValueError for none."""
    images = photos.images
    assert images.labels is not None
    known = rows[images.labels[rows] >= 0]
    if not len(known):
        split = images.split_names[rows[0]] or "given"
        raise ValueError(f"the {split} images have no labels to evaluate with")
    if len(known) < len(rows):
        missing = len(rows) - len(known)
        log.info("%d of %d images have no label and are left out", missing, len(rows))
    return known


def _stratified(
    labels: Shaped[np.ndarray, " images"], share: float, seed: int
) -> tuple[Rows, Rows]:
    """Return a training and a test part with the same shares of each class; a class with a single
    image is not tested.
    """
    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    alone, several = np.flatnonzero(counts[number] == 1), np.flatnonzero(counts[number] > 1)
    try:
        train, test = train_test_split(
            several, test_size=share, random_state=seed, stratify=number[several]
        )
    except ValueError as error:  # fewer images than classes in one of the parts
        raise ValueError(
            f"{len(labels)} images of {len(counts)} classes are too few for `test_share={share}`: "
            "both parts need as many images as there are classes"
        ) from error
    if len(alone):
        log.info(
            "%d of %d classes have a single image, which is not tested on", len(alone), len(counts)
        )
    return np.concatenate([train, alone]), test
