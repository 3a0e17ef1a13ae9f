"""Images with annotated objects, in one form whether COCO json or VOC xml described them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64

Segmentation = Any
"""COCO's form, checked: a list of polygons [x, y, x, y, ...], or runs {"size": [height, width], "counts": ...}."""


@dataclass(frozen=True)
class AnnotatedImage:
    """An image file and the objects in it, in pixels of the image.

    boxes: left, top, right, bottom, inside the image. labels: from 1 on; class n is `class_names[n - 1]`. areas: in
    square pixels. crowd: neither trained on nor counted (COCO's crowds, VOC's difficult objects). segmentations: one
    for each object. keypoints: x, y and visibility (0 not annotated, 1 hidden, 2 visible). Both empty where there are
    none.
    """

    path: Path
    width: int
    height: int
    boxes: Float32[np.ndarray, "objects 4"]
    labels: Int64[np.ndarray, " objects"]
    areas: Float32[np.ndarray, " objects"]
    crowd: Bool[np.ndarray, " objects"]
    segmentations: tuple[Segmentation, ...] = ()
    keypoints: Float32[np.ndarray, "objects points 3"] | None = None


@dataclass(frozen=True)
class AnnotatedImages:
    """Annotated images with the names of the classes, and of the keypoints if there are any."""

    images: tuple[AnnotatedImage, ...]
    class_names: tuple[str, ...]
    keypoint_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, rows: Iterable[int]) -> AnnotatedImages:
        """Return some of the images."""
        return replace(self, images=tuple(self.images[row] for row in rows))


def clipped(
    boxes: Sequence[Sequence[float]], width: int, height: int
) -> tuple[Float32[np.ndarray, "objects 4"], Bool[np.ndarray, " objects"]]:
    """Clip boxes to their image; returns them and which of them have an area then."""
    inside = np.asarray(boxes, np.float32).reshape(-1, 4).clip(0, np.asarray([width, height] * 2, np.float32))
    return inside, np.asarray((inside[:, 2:] - inside[:, :2] > 0.5).all(1))


def open_annotated(
    data: str | Path, *, keypoints: bool = False, test_share: float = 0.2, seed: int = 0
) -> tuple[AnnotatedImages, AnnotatedImages]:
    """Open annotated images to train on and to test on.

    data: a folder in VOC's layout (Annotations/ with xml, JPEGImages/, ImageSets/Main/); one in COCO's (json files
    named for their split, in annotations/ or beside the images); or one COCO json. keypoints: of a COCO folder prefer
    the json files with keypoints. Where no split is given, a share `test_share` is drawn with `seed` for the test.
    Nothing in the files is run. Raises FileNotFoundError where nothing is found, ValueError, naming the file, for bad
    annotations.
    """
    from nearfar.data.coco import coco_files, read_coco
    from nearfar.data.voc import read_voc, voc_splits

    path = Path(data)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    jsons = coco_files(path, keypoints)
    if {"train", "test"} <= set(jsons):
        return _same_classes(read_coco(jsons["train"]), read_coco(jsons["test"]))
    if jsons:
        whole = read_coco(next(iter(jsons.values())))
    elif splits := voc_splits(path):
        whole, train, test = read_voc(path), *splits
        rows = {one.path.stem: row for row, one in enumerate(whole.images)}
        missing = [name for name in (*train, *test) if name not in rows]
        if missing:
            raise ValueError(f"{path / 'ImageSets'} names {missing[0]!r}, which has no xml in Annotations")
        return whole.subset(rows[name] for name in train), whole.subset(rows[name] for name in test)
    else:
        whole = read_voc(path)
    if len(whole) < 2:
        raise ValueError(f"{path}: training and testing take two annotated images or more")
    order = np.random.default_rng(seed).permutation(len(whole)).tolist()
    held = min(max(1, round(test_share * len(whole))), len(whole) - 1)
    return whole.subset(sorted(order[held:])), whole.subset(sorted(order[:held]))


def _same_classes(train: AnnotatedImages, test: AnnotatedImages) -> tuple[AnnotatedImages, AnnotatedImages]:
    """Number the classes of the test as those of the training; the two files may list them in any order."""
    if train.keypoint_names != test.keypoint_names:
        raise ValueError("the annotations to train on and to test on have other keypoints")
    names = (*train.class_names, *(name for name in test.class_names if name not in train.class_names))
    number = np.asarray([0, *(names.index(name) + 1 for name in test.class_names)])
    images = tuple(replace(one, labels=number[one.labels]) for one in test.images)
    return replace(train, class_names=names), replace(test, images=images, class_names=names)
