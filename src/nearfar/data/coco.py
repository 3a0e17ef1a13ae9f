"""COCO's annotations: one json for each split, with boxes, segmentations and keypoints."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.annotations import AnnotatedImage, AnnotatedImages, clipped
from nearfar.data.run_lengths import run_lengths

_TEST = ("test", "val", "valid", "validation")


def coco_files(path: Path, keypoints: bool = False) -> dict[str, Path]:
    """Return the json files of a COCO folder by split ("train", "test" or "all"), or the file itself under "all".

    "test" is a file named for the test, or else for the validation. Of several for a split those with keypoints, if
    wanted, else those of instances come first.
    """
    if path.is_file():
        return {"all": path}
    prefix = "person_keypoints" if keypoints else "instances"
    files = sorted([*path.glob("*.json"), *path.glob("*/*.json")], key=lambda one: not one.name.startswith(prefix))
    found: dict[str, Path] = {}
    for split, words in (("train", ("train",)), ("test", _TEST)):
        for word in words:
            named = [one for one in files if one.stem.removeprefix(f"{prefix}_").startswith(word)]
            named += [one for one in files if one.parent.name.startswith(word) and one.parent != path]
            if named:
                found.setdefault(split, named[0])
    return found or ({"all": files[0]} if len(files) == 1 else {})


def read_coco(file: Path) -> AnnotatedImages:
    """Read a COCO json; see `nearfar.data.annotations.open_annotated`."""
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no json") from error
    try:
        return _read(file, content)
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        if str(file) in str(error):
            raise
        raise ValueError(f"{file} is not in COCO's form: {type(error).__name__} {str(error)[:80]}") from error


def _read(file: Path, content: dict[str, Any]) -> AnnotatedImages:
    if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
        raise ValueError(f"{file} is not in COCO's form: it needs images, annotations and categories")
    categories = sorted(content["categories"], key=lambda one: one["id"])
    numbers = {one["id"]: label for label, one in enumerate(categories, 1)}
    named = {tuple(map(str, one["keypoints"])) for one in categories if one.get("keypoints")}
    if len(named) > 1:
        raise ValueError(f"{file}: categories with different keypoints are more than one detector can learn")
    points = next(iter(named), ())
    objects: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in content["annotations"]:
        if one["category_id"] not in numbers:
            raise ValueError(f"{file}: annotation {one.get('id')} has the unknown category {one['category_id']!r}")
        objects[one["image_id"]].append(one)
    known = {one["id"] for one in content["images"]}
    if lost := sorted(set(objects) - known, key=str):
        raise ValueError(f"{file} has annotations of image {lost[0]!r}, which it does not list")
    folders = _folders(file)
    images = [_image(file, folders, one, objects[one["id"]], numbers, len(points)) for one in content["images"]]
    return AnnotatedImages(tuple(images), tuple(str(one["name"]) for one in categories), points)


def _folders(file: Path) -> list[Path]:
    """Where the images of a json may lie: beside it, in images/, and in the folder of its split, as train2017/."""
    split = file.stem.rpartition("_")[2]
    roots = (file.parent, file.parent.parent)
    return [file.parent, *(root / name for root in roots for name in (split, f"images/{split}", "images")), roots[1]]


def _image(
    file: Path, folders: list[Path], about: dict[str, Any], given: list[dict[str, Any]], numbers: dict[Any, int],
    points: int,
) -> AnnotatedImage:  # fmt: skip
    name, width, height = str(about["file_name"]), int(about["width"]), int(about["height"])
    if not (0 < width < 1e6 and 0 < height < 1e6):
        raise ValueError(f"{file}: the size of image {name} cannot be {width} x {height}")
    path = next((place / name for place in folders if (place / name).is_file()), None)
    if path is None:
        raise ValueError(f"{file} describes {name!r}, which is not beside it, in images/ or in the folder of its split")
    rows = [(f"{file}: annotation {one.get('id')}", one) for one in given]
    corners = [_numbers(where, one, "bbox", 4) for where, one in rows]
    if any(w < 0 or h < 0 for _, _, w, h in corners):
        raise ValueError(f"{file}: a box in {name} has a negative size")
    boxes, fine = clipped([(x, y, x + w, y + h) for x, y, w, h in corners], width, height)
    rows = [row for row, good in zip(rows, fine, strict=True) if good]
    boxes = boxes[fine]
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    areas = [float(one.get("area") or side) for (_, one), side in zip(rows, sides, strict=True)]
    marks = [_numbers(where, one, "keypoints", 3 * points) if "keypoints" in one else [0.0] * 3 * points
             for where, one in rows]  # fmt: skip
    outlines = [_segmentation(where, one.get("segmentation"), width, height) for where, one in rows]
    return AnnotatedImage(
        path,
        width,
        height,
        boxes,
        np.asarray([numbers[one["category_id"]] for _, one in rows], np.int64),
        np.asarray(areas, np.float32),
        np.asarray([bool(one.get("iscrowd", 0)) for _, one in rows], bool),
        tuple(outlines) if all(outlines) else (),
        np.asarray(marks, np.float32).reshape(len(rows), points, 3) if points else None,
    )


def _numbers(where: str, one: dict[str, Any], key: str, count: int | None = None) -> list[float]:
    return _checked(f"{where}: {key}", one[key], count)


def _checked(where: str, values: Any, count: int | None) -> list[float]:
    fine = isinstance(values, list) and all(isinstance(x, (int, float)) and math.isfinite(x) for x in values)
    if not fine or (count is not None and len(values) != count):
        raise ValueError(f"{where} must be {count or 'a list of'} numbers")
    return [float(x) for x in values]


def _segmentation(where: str, given: Any, width: int, height: int) -> Any:
    """Check a segmentation, so that nothing that reads it later can be led astray; None where there is none."""
    if not given:
        return None
    if isinstance(given, dict):
        if given.get("size") != [height, width]:
            raise ValueError(f"{where}: its segmentation is of another size than the image")
        counts = run_lengths(given.get("counts"))
        if counts is None or sum(counts) != width * height:
            raise ValueError(f"{where}: the runs of its segmentation do not fill the image")
        return {"size": [height, width], "counts": counts}
    polygons = []
    for polygon in given:
        flat = _checked(f"{where}: a polygon", polygon, None)
        if len(flat) < 6 or len(flat) % 2:
            raise ValueError(f"{where}: a polygon needs three points or more")
        polygons.append(np.asarray(flat).reshape(-1, 2).clip(0, (width, height)).flatten().tolist())
    return polygons
