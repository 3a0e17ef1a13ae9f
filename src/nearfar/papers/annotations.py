"""Images with annotated objects, in one form whether COCO json or VOC xml described them.

faster-coco-eval reads COCO's json and all masks, torchvision VOC's xml; what they leave open is checked here.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets import VOCDetection

from nearfar.data.decoding import to_array, to_pil
from nearfar.data.formats import formats
from nearfar.messages import one_line

BROKEN = (
    AssertionError, AttributeError, ElementTree.ParseError, LookupError, OverflowError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
Mask = dict[str, Any]
"""COCO's compressed runs, {"size": [height, width], "counts": bytes}, for `faster_coco_eval.core.mask`."""
Target = dict[str, Any]
"""Boxes, labels, and where there are any masks and keypoints, as torchvision's detectors take them."""


@dataclass(frozen=True)
class AnnotatedImage:
    """An image file and the objects in it, in pixels of the image.

    boxes: left, top, right, bottom, inside the image. labels: from 1 on; class n is `class_names[n - 1]`. areas: in
    square pixels. crowd: neither trained on nor counted (COCO's crowds, VOC's difficult objects). masks: one for each
    object. keypoints: x, y and visibility (0 not annotated, 1 hidden, 2 visible). Both empty where there are none.
    """

    path: Path
    width: int
    height: int
    boxes: Float32[np.ndarray, "objects 4"]
    labels: Int64[np.ndarray, " objects"]
    areas: Float32[np.ndarray, " objects"]
    crowd: Bool[np.ndarray, " objects"]
    masks: tuple[Mask, ...] = ()
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


def check_library() -> None:
    """Raise ValueError where faster-coco-eval is not installed."""
    if importlib.util.find_spec("faster_coco_eval") is None:
        raise ValueError("this protocol takes faster-coco-eval: pip install 'nearfar[detection]'")


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
    path = Path(data)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    jsons = _coco_files(path, keypoints)
    if {"train", "test"} <= set(jsons):
        return _same_classes(_read_coco(jsons["train"]), _read_coco(jsons["test"]))
    whole = _read_coco(next(iter(jsons.values()))) if jsons else _read_voc(path)
    if not jsons and (splits := _voc_splits(path)):
        rows = {one.path.stem: row for row, one in enumerate(whole.images)}
        if missing := [name for names in splits for name in names if name not in rows]:
            raise ValueError(f"{path / 'ImageSets'} names {missing[0]!r}, which has no xml in Annotations")
        train, test = (whole.subset(rows[name] for name in names) for names in splits)
        return train, test
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


def _coco_files(path: Path, keypoints: bool) -> dict[str, Path]:
    """The json files of a COCO folder by split ("train", "test" or "all"), or the file itself under "all"."""
    if path.is_file():
        return {"all": path}
    prefix = "person_keypoints" if keypoints else "instances"
    files = sorted([*path.glob("*.json"), *path.glob("*/*.json")], key=lambda one: not one.name.startswith(prefix))
    found: dict[str, Path] = {}
    for split, words in (("train", ("train",)), ("test", ("test", "val"))):
        for word in words:
            named = [one for one in files if one.stem.removeprefix(f"{prefix}_").startswith(word)]
            named += [one for one in files if one.parent.name.startswith(word) and one.parent != path]
            if named:
                found.setdefault(split, named[0])
    return found or ({"all": files[0]} if len(files) == 1 else {})


def _read_coco(file: Path) -> AnnotatedImages:
    check_library()
    from faster_coco_eval.core import COCO

    with one_line(f"cannot read {file} as COCO json", *BROKEN):
        coco = COCO(file)
        categories = sorted(coco.dataset["categories"], key=lambda one: one["id"])
        named = {tuple(map(str, one["keypoints"])) for one in categories if one.get("keypoints")}
        if len(named) > 1:
            raise ValueError("categories with different keypoints are more than one detector can learn")
        if lost := sorted(set(coco.imgToAnns) - set(coco.imgs)):
            raise ValueError(f"it has annotations of image {lost[0]}, which it does not list")
        points = next(iter(named), ())
        numbers = {one["id"]: label for label, one in enumerate(categories, 1)}
        images = (_coco_image(file, one, coco.imgToAnns[one["id"]], numbers, len(points)) for one in coco.imgs.values())
        return AnnotatedImages(tuple(images), tuple(str(one["name"]) for one in categories), points)


def _coco_image(
    file: Path, about: Mapping[str, Any], objects: list[dict[str, Any]], numbers: Mapping[Any, int], points: int
) -> AnnotatedImage:
    split, roots = file.stem.rpartition("_")[2], (file.parent, file.parent.parent)
    folders = [roots[0], *(root / name for root in roots for name in (split, f"images/{split}", "images")), roots[1]]
    path = _existing([folder / str(about["file_name"]) for folder in folders])
    width, height = _checked_size(path, about)
    boxes, rows = [], []
    for one in objects:
        where = f"annotation {one.get('id')}"
        x, y, w, h = _numbers(one["bbox"], 4, f"{where}: bbox")
        if w < 0 or h < 0:
            raise ValueError(f"{where}: bbox has a negative size")
        if one["category_id"] not in numbers:
            raise ValueError(f"{where} has the unknown category {one['category_id']!r}")
        marks = _numbers(one.get("keypoints", [0] * 3 * points), 3 * points, f"{where}: keypoints") if points else []
        mask = _mask(one.get("segmentation"), width, height, where)
        boxes.append((x, y, x + w, y + h))
        rows.append((numbers[one["category_id"]], float(one.get("area") or 0), bool(one.get("iscrowd")), mask, marks))
    inside, good = _clipped(boxes, width, height)
    kept = [row for row, fine in zip(rows, good, strict=True) if fine]
    labels, areas, crowd, masks, points_of = zip(*kept, strict=True) if kept else ((),) * 5
    return AnnotatedImage(
        path,
        width,
        height,
        inside,
        np.asarray(labels, np.int64),
        np.where(areas, np.asarray(areas, np.float32), (inside[:, 2:] - inside[:, :2]).prod(1)),
        np.asarray(crowd, bool),
        masks if all(masks) else (),
        np.asarray(points_of, np.float32).reshape(len(inside), points, 3) if points else None,
    )


def _mask(given: Any, width: int, height: int, where: str) -> Mask | None:
    """Check and compress a segmentation; None where there is none."""
    from faster_coco_eval.core import mask

    if not given:
        return None
    with one_line(f"{where}: segmentation", ValueError, RuntimeError, TypeError, KeyError):
        if not isinstance(given, dict):
            polygons = [_numbers(polygon, None, "a polygon") for polygon in given]
            if any(len(flat) < 6 or len(flat) % 2 for flat in polygons):
                raise ValueError("a polygon needs three points or more")
            inside = [np.reshape(flat, (-1, 2)).clip(0, (width, height)).flatten().tolist() for flat in polygons]
            return mask.merge(mask.frPyObjects(inside, height, width))
        if given["size"] != [height, width]:
            raise ValueError("it is of another size than the image")
        runs = mask.frPyObjects(given, height, width) if isinstance(given["counts"], list) else given
        mask.decode(runs)  # checks that the runs fill the image
        return runs


def _voc_splits(folder: Path) -> tuple[list[str], list[str]] | None:
    """The names to train on and to test on, from ImageSets/Main; None where it does not say.

    trainval and test where there are both (VOC2007), else train and test, or train and val (VOC2012).
    """
    for pair in (("trainval", "test"), ("train", "test"), ("train", "val")):
        files = [folder / "ImageSets" / "Main" / f"{name}.txt" for name in pair]
        if all(file.is_file() for file in files):
            texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
            train, test = ([line.split()[0] for line in text.splitlines() if line.strip()] for text in texts)
            if both := set(train) & set(test):
                raise ValueError(f"{files[1]} and {files[0].name} both list {min(both)!r}")
            return train, test
    return None


class _NoEntities(ElementTree.TreeBuilder):
    """Refuses a document type, the one place where entities are declared: none is expanded, and no other file read."""

    def doctype(self, *declared: object) -> None:
        raise ElementTree.ParseError("it declares a document type, which annotations have no need of")


def _read_voc(folder: Path) -> AnnotatedImages:
    files = sorted((folder / "Annotations").glob("*.xml")) or sorted(folder.glob("*.xml"))
    if not files:
        raise FileNotFoundError(
            f"no annotations in {folder}: give a folder with Annotations/*.xml and JPEGImages/ (VOC), "
            "or with annotations/*.json, or one .json (COCO)"
        )
    images, names = [], []
    for file in files:
        with one_line(f"cannot read {file} as VOC xml", *BROKEN):
            root = ElementTree.fromstring(file.read_bytes(), ElementTree.XMLParser(target=_NoEntities()))
            image, own = _voc_image(folder, file, VOCDetection.parse_voc_xml(root)["annotation"])
        images.append(image)
        names.append(own)
    classes = sorted({name for own in names for name in own})
    if not classes:
        raise ValueError(f"{folder}: no xml names an object")
    numbers = [np.asarray([classes.index(name) + 1 for name in own], np.int64) for own in names]
    labelled = (replace(image, labels=own) for image, own in zip(images, numbers, strict=True))
    return AnnotatedImages(tuple(labelled), tuple(classes))


def _voc_image(folder: Path, file: Path, about: Mapping[str, Any]) -> tuple[AnnotatedImage, list[str]]:
    """An image without labels yet, and the names of its objects."""
    stems = [*(file.stem + end for end in (".jpg", ".jpeg", ".png", ".bmp", ".tif")), str(about.get("filename"))]
    path = _existing([folder / place / name for place in ("JPEGImages", "images", ".") for name in stems])
    width, height = _checked_size(path, about["size"])
    boxes = []
    for one in about["object"]:
        sides = [float(one["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax")]
        left, top, right, bottom = _numbers(sides, 4, "bndbox")
        if right < left or bottom < top:
            raise ValueError(f"a box ends before it begins, at {left:g}, {top:g}, {right:g}, {bottom:g}")
        boxes.append((left - 1, top - 1, right, bottom))  # VOC counts pixels from 1, the last one included
    inside, good = _clipped(boxes, width, height)
    difficult = np.asarray([one.get("difficult") == "1" for one in about["object"]], bool)[good]
    names = [str(one["name"]) for one, fine in zip(about["object"], good, strict=True) if fine]
    areas = (inside[:, 2:] - inside[:, :2]).prod(1)
    return AnnotatedImage(path, width, height, inside, np.zeros(len(names), np.int64), areas, difficult), names


def _existing(places: Sequence[Path]) -> Path:
    for path in places:
        if path.is_file():
            return path
    raise ValueError(f"its image {places[-1].name!r} is not there, neither in {places[0].parent} nor around it")


def _checked_size(path: Path, about: Mapping[str, Any]) -> tuple[int, int]:
    """Return width and height as annotated, after a look at the head of the file."""
    width, height = int(about["width"]), int(about["height"])
    with one_line(f"cannot read {path}"), Image.open(path, formats=formats()) as image:
        size = image.size
    if sorted(size) != sorted((width, height)):  # it may lie on its side
        raise ValueError(f"{path} has {size[0]} x {size[1]} pixels, the annotations say {width} x {height}")
    return width, height


def _numbers(values: Any, count: int | None, what: str) -> list[float]:
    fine = isinstance(values, list) and all(isinstance(x, (int, float)) and math.isfinite(x) for x in values)
    if not fine or (count is not None and len(values) != count):
        raise ValueError(f"{what} must be {count or 'a list of'} numbers")
    return [float(x) for x in values]


def _clipped(
    boxes: Sequence[Sequence[float]], width: int, height: int
) -> tuple[Float32[np.ndarray, "kept 4"], Bool[np.ndarray, " objects"]]:
    """Clip boxes to their image; returns those that have an area then, and which they are."""
    inside = np.asarray(boxes, np.float32).reshape(-1, 4).clip(0, np.asarray([width, height] * 2, np.float32))
    good = np.asarray((inside[:, 2:] - inside[:, :2] > 0.5).all(1))
    return inside[good], good


class DetectionSet(Dataset):
    """Annotated images as torchvision's detectors take them: (image [channels, height, width] in 0..1, target).

    channels: 1 or 3. masks: whether the targets hold them. Raises ValueError, naming the file, for an image that cannot
    be read or is of another size than the annotations say.
    """

    def __init__(self, annotated: AnnotatedImages, channels: int, masks: bool = False) -> None:
        self.images, self.channels, self.masks = annotated.images, channels, masks

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, Target]:
        one = self.images[row]
        kept = ~one.crowd
        target: Target = {"boxes": torch.from_numpy(one.boxes[kept]), "labels": torch.from_numpy(one.labels[kept])}
        if self.masks:
            from faster_coco_eval.core import mask

            drawn = [mask.decode(one.masks[i]) for i in np.flatnonzero(kept)]
            target["masks"] = torch.from_numpy(np.reshape(drawn, (-1, one.height, one.width)).astype(np.uint8))
        if one.keypoints is not None:
            target["keypoints"] = torch.from_numpy(one.keypoints[kept])
        return read_pixels(one, self.channels), target


def read_pixels(one: AnnotatedImage, channels: int) -> Float[Tensor, "channels height width"]:
    """Read an image whole, in 0..1."""
    with one_line(f"cannot read {one.path}"):
        image = to_pil(str(one.path), at_least=max(one.width, one.height))
    if image.size != (one.width, one.height):
        raise ValueError(f"{one.path} has {image.size} pixels, the annotations say {one.width} x {one.height}")
    image = image.convert("L") if channels == 1 else image
    return torch.from_numpy(np.array(to_array(image, channels))) / 255


def flipped(image: Tensor, target: Target, swaps: list[int]) -> tuple[Tensor, Target]:
    """Flip an image left to right with its target. swaps: for each keypoint the one that stands in its place then."""
    width, boxes = image.shape[-1], target["boxes"]
    out = {**target, "boxes": torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)}
    if "masks" in target:
        out["masks"] = target["masks"].flip(-1)
    if "keypoints" in target:
        points = target["keypoints"][:, swaps].clone()
        points[..., 0] = width - points[..., 0]
        points[points[..., 2] == 0] = 0
        out["keypoints"] = points
    return image.flip(-1), out


def mirrored(names: tuple[str, ...]) -> list[int]:
    """Return for each keypoint the number of the one that it becomes in the mirror: left_eye for right_eye."""
    other = [name.replace("left", "\0").replace("right", "left").replace("\0", "right") for name in names]
    return [names.index(name) if name in names else i for i, name in enumerate(other)]
