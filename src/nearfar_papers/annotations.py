"""Images with annotated objects, in COCO's form whether COCO json or VOC xml described them."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets import VOCDetection
from torchvision.ops import box_convert

from nearfar.data.decoding import whole_planes
from nearfar.data.pictures import formats
from nearfar.messages import raise_as_value_error
from nearfar.progress import log

BROKEN = (
    AssertionError,
    AttributeError,
    ElementTree.ParseError,
    LookupError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
VOC_SPLITS = (
    ("trainval", "test"),
    ("train", "test"),
    ("train", "val"),
)  # VOC2007 has the first, VOC2012 the last
Target = dict[str, Any]
"""Boxes, labels, and where there are any masks and keypoints, as torchvision's detectors take them.
"""


@dataclass(frozen=True)
class AnnotatedImage:
    """An image file and the objects in it.

    objects: as in COCO's annotations, in pixels of the image: "bbox" (left, top, width, height,
    inside the image), "category_id" (from 1 on; class n is `class_names[n - 1]`), "area", "iscrowd"
    (neither trained on nor counted: COCO's crowds, VOC's difficult objects), and where they are
    annotated "segmentation" (compressed runs) and "keypoints" (x, y and visibility: 0 not
    annotated, 1 hidden, 2 visible) with "num_keypoints".
    """

    path: Path
    width: int
    height: int
    objects: tuple[dict[str, Any], ...]

    @property
    def counted(self) -> list[dict[str, Any]]:
        """The objects that are no crowds."""
        return [item for item in self.objects if not item["iscrowd"]]


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

    def sampled(self, limit: int, seed: int) -> AnnotatedImages:
        """Return a random sample of so many images."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self.subset(sorted(order[:limit].tolist()))


def check_library() -> None:
    """Raise ValueError where faster-coco-eval is not installed."""
    if importlib.util.find_spec("faster_coco_eval") is None:
        raise ValueError("this protocol takes faster-coco-eval: pip install 'nearfar[detection]'")


def open_annotated(
    data: str | Path, *, keypoints: bool = False, test_share: float = 0.2, seed: int = 0
) -> tuple[AnnotatedImages, AnnotatedImages]:
    """Open annotated images for training and for the test.

    data: a folder in VOC's layout (Annotations/ with xml, JPEGImages/, ImageSets/Main/); one in
    COCO's (json files named for their split, in annotations/ or beside the images); or one COCO
    json. keypoints: of a COCO folder prefer the json files with keypoints. Without a split, a share
    `test_share` is drawn with `seed` for the test. Nothing in the files is run. Raises
    FileNotFoundError where nothing is found, ValueError, naming the file, for bad annotations and
    for an image that is listed twice.
    """
    path = Path(data)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    train, test = _opened(path, keypoints, test_share, seed)
    images = (*train.images, *test.images)
    if twice := _repeated(os.path.abspath(image.path) for image in images):
        raise ValueError(f"{path}: {twice[0]} is listed twice, in a split or in both")
    return train, test


def _repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def _opened(
    path: Path, keypoints: bool, test_share: float, seed: int
) -> tuple[AnnotatedImages, AnnotatedImages]:
    """The images of the two splits; see `open_annotated`."""
    jsons = _coco_files(path, keypoints)
    if "test" in jsons:
        train, test = _read_coco(jsons["train"]), _read_coco(jsons["test"])
        if (train.class_names, train.keypoint_names) != (test.class_names, test.keypoint_names):
            raise ValueError(f"{jsons['train']} and {jsons['test']} list different categories")
        return train, test
    whole = _read_coco(jsons["all"]) if jsons else _read_voc(path)
    if not jsons and (splits := _voc_splits(path)):
        rows = {image.path.stem: row for row, image in enumerate(whole.images)}
        if missing := [name for names in splits for name in names if name not in rows]:
            raise ValueError(
                f"{path / 'ImageSets'} names {missing[0]!r}, which has no xml in Annotations"
            )
        train, test = (whole.subset(rows[name] for name in names) for names in splits)
        return train, test
    if len(whole) < 2:
        raise ValueError(f"{path}: training and testing take two annotated images or more")
    order = np.random.default_rng(seed).permutation(len(whole)).tolist()
    held = min(max(1, round(test_share * len(whole))), len(whole) - 1)
    return whole.subset(sorted(order[held:])), whole.subset(sorted(order[:held]))


def _coco_files(path: Path, keypoints: bool) -> dict[str, Path]:
    """The json files of a COCO folder by split ("train" and "test", or "all"), or the file itself
    under "all".
    """
    if path.is_file():
        return {"all": path}
    prefix = "person_keypoints_" if keypoints else "instances_"
    files = sorted([*path.glob("*.json"), *path.glob("*/*.json")])
    named = defaultdict(list)
    for file in files:
        named[_split_of(file, path, prefix)].append(file)
    by_split = {"train": named["train"], "test": named["test"] or named["val"]}
    if not all(by_split.values()):
        return {"all": files[0]} if len(files) == 1 else {}
    chosen = {}
    for split, candidates in by_split.items():
        likely = [file for file in candidates if file.name.startswith(prefix)] or candidates
        if len(likely) > 1:
            raise ValueError(
                f"{likely[0]} and {likely[1]} are both for the {split} split: leave one there"
            )
        chosen[split] = likely[0]
    return chosen


def _split_of(file: Path, root: Path, prefix: str) -> str:
    """The split that a file's name begins with, else its folder's below the root; "" for none."""
    texts = [file.stem.removeprefix(prefix)]
    texts += [file.parent.name] if file.parent != root else []
    splits = (word for text in texts for word in ("train", "test", "val") if text.startswith(word))
    return next(splits, "")


def _read_coco(file: Path) -> AnnotatedImages:
    check_library()
    split, roots = file.stem.rpartition("_")[2], (file.parent, file.parent.parent)
    folders = [
        roots[0],
        *(root / name for root in roots for name in (split, f"images/{split}", "images")),
        roots[1],
    ]
    with raise_as_value_error(f"cannot read {file} as COCO json", *BROKEN):
        content = json.loads(file.read_bytes())
        for key in ("images", "categories"):
            if twice := _repeated(item["id"] for item in content[key]):
                raise ValueError(f"it has two {key} with the id {twice[0]}")
        categories = sorted(content["categories"], key=lambda category: category["id"])
        named = {
            tuple(map(str, category["keypoints"]))
            for category in categories
            if category.get("keypoints")
        }
        if len(named) > 1:
            raise ValueError(
                "categories with different keypoints are more than one detector can learn"
            )
        points = next(iter(named), ())
        labels = {category["id"]: label for label, category in enumerate(categories, 1)}
        objects = defaultdict(list)
        for item in content["annotations"]:
            if item["category_id"] not in labels:
                raise ValueError(
                    f"annotation {item.get('id')} has the unknown category {item['category_id']!r}"
                )
            objects[item["image_id"]].append({**item, "category_id": labels[item["category_id"]]})
        if lost := set(objects) - {image["id"] for image in content["images"]}:
            raise ValueError(f"it has annotations of image {min(lost)}, which it does not list")
        images = [
            _image(
                [folder / str(image["file_name"]) for folder in folders],
                image,
                objects[image["id"]],
                len(points),
            )
            for image in content["images"]
        ]
        _say_outside(file, len(content["annotations"]), images)
        return AnnotatedImages(tuple(images), _class_names(categories), points)


def _class_names(categories: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of categories, with the number behind a name that several have."""
    names = [str(category["name"]) for category in categories]
    return tuple(
        f"{name} ({category['id']})" if names.count(name) > 1 else name
        for name, category in zip(names, categories, strict=True)
    )


def _say_outside(source: Path, boxes: int, images: Iterable[AnnotatedImage]) -> None:
    """Log how many of so many boxes no image has kept."""
    if outside := boxes - sum(len(image.objects) for image in images):
        words = "%s: %d of %d boxes lie outside their images or have no area, and are left out"
        log.info(words, source, outside, boxes)


def _voc_splits(folder: Path) -> list[list[str]] | None:
    """The names for training and for the test, from ImageSets/Main; None where it does not say."""
    for pair in VOC_SPLITS:
        files = [folder / "ImageSets" / "Main" / f"{name}.txt" for name in pair]
        if all(file.is_file() for file in files):
            texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
            splits = [
                [line.split()[0] for line in text.splitlines() if line.strip()] for text in texts
            ]
            return splits
    return None


class _NoEntities(ElementTree.TreeBuilder):
    """Refuses a document type, the one place where entities are declared: none is expanded, and no
    other file read.
    """

    def doctype(self, *declared: object) -> None:
        raise ElementTree.ParseError(
            "it declares a document type, which annotations have no need of"
        )


def _read_voc(folder: Path) -> AnnotatedImages:
    files = sorted((folder / "Annotations").glob("*.xml")) or sorted(folder.glob("*.xml"))
    if not files:
        raise FileNotFoundError(
            f"no annotations in {folder}: give a folder with Annotations/*.xml and "
            f"JPEGImages/ (VOC), "
            "or with annotations/*.json, or one .json (COCO)"
        )
    read = {}
    for file in files:
        with raise_as_value_error(f"cannot read {file} as VOC xml", *BROKEN):
            root = ElementTree.fromstring(
                file.read_bytes(), ElementTree.XMLParser(target=_NoEntities())
            )
            about = VOCDetection.parse_voc_xml(root)["annotation"]
            read[file] = about, [_voc_object(item) for item in about["object"]]
    classes = sorted({item["name"] for _, objects in read.values() for item in objects})
    if not classes:
        raise ValueError(f"{folder}: no xml names an object")
    images = []
    for file, (about, objects) in read.items():
        names = f"{file.stem}.jpg", f"{file.stem}.png", str(about.get("filename"))
        with raise_as_value_error(f"cannot read {file} as VOC xml", *BROKEN):
            labelled = [
                {**item, "category_id": classes.index(item["name"]) + 1} for item in objects
            ]
            paths = [
                folder / place / name for place in ("JPEGImages", "images", ".") for name in names
            ]
            images.append(_image(paths, about["size"], labelled, 0))
    _say_outside(folder, sum(len(objects) for _, objects in read.values()), images)
    return AnnotatedImages(tuple(images), tuple(classes))


def _voc_object(given: Mapping[str, Any]) -> dict[str, Any]:
    """An object in COCO's form; VOC counts pixels from 1, and the last one belongs to the box."""
    left, top, right, bottom = (
        float(given["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax")
    )
    box = [left - 1, top - 1, right - left + 1, bottom - top + 1]
    return {"name": str(given["name"]), "bbox": box, "iscrowd": given.get("difficult") == "1"}


def _image(
    places: Sequence[Path],
    about: Mapping[str, Any],
    objects: Iterable[Mapping[str, Any]],
    points: int,
) -> AnnotatedImage:
    """Find the file of an image, look at its head, and check its objects."""
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ValueError(
            f"its image {places[-1].name!r} is not there, neither in {places[0].parent} "
            f"nor around it"
        )
    width, height = int(about["width"]), int(about["height"])
    with raise_as_value_error(f"cannot read {path}"), Image.open(path, formats=formats()) as image:
        size = image.size
    if sorted(size) != sorted((width, height)):  # EXIF may turn it
        raise ValueError(
            f"{path} has {size[0]} x {size[1]} pixels, the annotations say {width} x {height}"
        )
    inside = []
    for item in objects:
        with raise_as_value_error(f"annotation {item.get('id', item.get('name'))}", *BROKEN):
            inside += _inside(item, width, height, points)
    return AnnotatedImage(path, width, height, tuple(inside))


def _inside(given: Mapping[str, Any], width: int, height: int, points: int) -> list[dict[str, Any]]:
    """Check an object and clip it to its image; none where nothing of its box is left."""
    left, top, w, h = _numbers(given["bbox"], 4, "bbox")
    if w < 0 or h < 0:
        raise ValueError("bbox has a negative size")
    left, right = np.clip([left, left + w], 0, width).tolist()
    top, bottom = np.clip([top, top + h], 0, height).tolist()
    box = [left, top, right - left, bottom - top]
    item = {
        "bbox": box,
        "category_id": given["category_id"],
        "iscrowd": int(bool(given.get("iscrowd"))),
    }
    item["area"] = float(given.get("area") or 0) or box[2] * box[3]
    if given.get("segmentation"):
        item["segmentation"] = _mask(given["segmentation"], width, height)
    if points:
        item["keypoints"] = _numbers(
            given.get("keypoints", [0] * 3 * points), 3 * points, "keypoints"
        )
        item["num_keypoints"] = sum(visible > 0 for visible in item["keypoints"][2::3])
    return [item] if min(box[2:]) > 0.5 else []


def _mask(given: Any, width: int, height: int) -> dict[str, Any]:
    """Compress a segmentation, after checks for what would stop the library or fill the memory."""
    from faster_coco_eval.core import mask

    if isinstance(given, list):
        polygons = [_numbers(polygon, None, "a polygon") for polygon in given]
        if any(len(flat) < 6 or len(flat) % 2 for flat in polygons):
            raise ValueError("segmentation: a polygon needs three points or more")
        inside = [
            np.reshape(flat, (-1, 2)).clip(0, (width, height)).flatten().tolist()
            for flat in polygons
        ]
        return mask.merge(mask.frPyObjects(inside, height, width))
    if given["size"] != [height, width]:
        raise ValueError("segmentation: it is of another size than the image")
    runs = mask.frPyObjects(given, height, width) if isinstance(given["counts"], list) else given
    mask.decode(runs)  # checks that the runs fill the image
    return runs


def _numbers(values: Any, count: int | None, name: str) -> list[float]:
    fine = isinstance(values, list) and all(
        isinstance(x, (int, float)) and math.isfinite(x) for x in values
    )
    if not fine or (count is not None and len(values) != count):
        raise ValueError(f"{name} must be {count or 'a list of'} numbers")
    return [float(x) for x in values]


class DetectionSet(Dataset):
    """Annotated images as torchvision's detectors take them: (image [channels, height, width] in
    0..1, target).

    channels: 1 or 3. masks: whether the targets hold them. Raises ValueError, naming the file, for
    an image that cannot be read or is of another size than the annotations say.
    """

    def __init__(self, annotated: AnnotatedImages, channels: int, masks: bool = False) -> None:
        self.images, self.channels, self.masks = annotated.images, channels, masks

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, Target]:
        annotated = self.images[row]
        boxes = torch.tensor([each["bbox"] for each in annotated.counted]).reshape(-1, 4)
        labels = torch.tensor(
            [each["category_id"] for each in annotated.counted], dtype=torch.int64
        )
        target: Target = {"boxes": box_convert(boxes, "xywh", "xyxy"), "labels": labels}
        if self.masks:
            from faster_coco_eval.core import mask

            drawn = mask.decode([each["segmentation"] for each in annotated.counted])
            target["masks"] = torch.from_numpy(drawn).permute(2, 0, 1)
        if annotated.counted and "keypoints" in annotated.counted[0]:
            points = torch.tensor([each["keypoints"] for each in annotated.counted])
            target["keypoints"] = points.reshape(len(labels), -1, 3)
        return read_pixels(annotated, self.channels), target


def read_pixels(annotated: AnnotatedImage, channels: int) -> Float[Tensor, "channels height width"]:
    """Read an image whole, in 0..1."""
    with raise_as_value_error(f"cannot read {annotated.path}"):
        image = whole_planes(str(annotated.path), channels, None) / 255
    height, width = image.shape[1:]
    if (width, height) != (annotated.width, annotated.height):
        raise ValueError(
            f"{annotated.path} has {width} x {height} pixels, the annotations say "
            f"{annotated.width} x {annotated.height}"
        )
    return image


def flipped(image: Tensor, target: Target, swaps: Sequence[int]) -> tuple[Tensor, Target]:
    """Flip an image left to right with its target. swaps: for each keypoint the one that stands in
    its place then.
    """
    width, boxes = image.shape[-1], target["boxes"]
    out = {
        **target,
        "boxes": torch.stack(
            [width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1
        ),
    }
    if "masks" in target:
        out["masks"] = target["masks"].flip(-1)
    if "keypoints" in target:
        points = target["keypoints"][:, swaps].clone()
        points[..., 0] = width - points[..., 0]
        points[points[..., 2] == 0] = 0
        out["keypoints"] = points
    return image.flip(-1), out


def mirrored(names: Sequence[str]) -> list[int]:
    """Return for each keypoint the number of the one that it becomes in the mirror: left_eye for
    right_eye.
    """
    other = [
        name.replace("left", "\0").replace("right", "left").replace("\0", "right") for name in names
    ]
    return [names.index(name) if name in names else i for i, name in enumerate(other)]
