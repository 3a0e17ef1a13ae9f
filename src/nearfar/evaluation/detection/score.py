"""Average precision as COCO defines it, by faster-coco-eval."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from nearfar.data.annotations import AnnotatedImage, AnnotatedImages
from nearfar.evaluation.detection.fit import Found

SIGMA = 0.05
"""Spread of a keypoint, where they are not COCO's 17, whose spreads are known."""


def check_scorer() -> None:
    """Raise ValueError where faster-coco-eval is not installed."""
    if importlib.util.find_spec("faster_coco_eval") is None:
        raise ValueError("this protocol takes faster-coco-eval: pip install 'nearfar[detection]'")


def average_precision(truth: AnnotatedImages, found: Sequence[Found], kind: str = "bbox") -> dict[str, float]:
    """Return AP (mean over IoU .5 to .95), AP50 and AP75, 0..1, and the AP of each class as "AP NAME".

    found: for each image, in order. kind: "bbox", "segm" or "keypoints". Classes without an object are left out.
    Raises ValueError where the images hold no object of that kind.
    """
    check_scorer()
    from faster_coco_eval.core import COCO, COCOeval_faster

    objects = [one for image in range(len(truth)) for one in _true(truth.images[image], image, kind)]
    if not any(not one["iscrowd"] for one in objects):
        raise ValueError("the test images hold no annotated object")
    categories = [{"id": number, "name": name} for number, name in enumerate(truth.class_names, 1)]
    images = [{"id": i, "width": one.width, "height": one.height} for i, one in enumerate(truth.images)]
    numbered = [{**one, "id": i} for i, one in enumerate(objects, 1)]
    gold = COCO({"images": images, "annotations": numbered, "categories": categories})
    given = gold.loadRes([one for image, here in enumerate(found) for one in _found(here, image, kind)])
    sigmas = None
    if kind == "keypoints" and len(truth.keypoint_names) != 17:
        sigmas = [SIGMA] * len(truth.keypoint_names)
    scorer = COCOeval_faster(gold, given, kind, print_function=_silent, kpt_oks_sigmas=sigmas)
    scorer.evaluate()
    scorer.accumulate()
    precision = scorer.eval["precision"][..., 0, -1]  # [IoU, recall, class] for all areas, with the most detections
    precision = np.where(precision < 0, np.nan, precision)
    ious = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}
    numbers = {name: float(np.nanmean(precision[rows])) for name, rows in ious.items()}
    for number, name in enumerate(truth.class_names):
        if not np.isnan(precision[..., number]).all():
            numbers[f"AP {name}"] = float(np.nanmean(precision[..., number]))
    return numbers


def _silent(*said: Any) -> None:
    pass


def _true(one: AnnotatedImage, image: int, kind: str) -> list[dict[str, Any]]:
    rows = []
    for i, (left, top, right, bottom) in enumerate(one.boxes.tolist()):
        row: dict[str, Any] = {
            "image_id": image,
            "category_id": int(one.labels[i]),
            "bbox": [left, top, right - left, bottom - top],
            "area": float(one.areas[i]),
            "iscrowd": int(one.crowd[i]),
        }
        if kind == "segm":
            row["segmentation"] = one.segmentations[i]
        if kind == "keypoints" and one.keypoints is not None:
            row["keypoints"] = one.keypoints[i].flatten().tolist()
            row["num_keypoints"] = int((one.keypoints[i, :, 2] > 0).sum())
        rows.append(row)
    return rows


def _found(here: Found, image: int, kind: str) -> list[dict[str, Any]]:
    rows = []
    for i, (left, top, right, bottom) in enumerate(here["boxes"].tolist()):
        row: dict[str, Any] = {
            "image_id": image,
            "category_id": int(here["labels"][i]),
            "score": float(here["scores"][i]),
        }
        if kind == "bbox":
            row["bbox"] = [left, top, right - left, bottom - top]
        elif kind == "segm":
            row["segmentation"] = _compressed(here["masks"][i])
        else:
            row["keypoints"] = np.asarray(here["keypoints"][i]).flatten().tolist()
        rows.append(row)
    return rows


def _compressed(runs: dict[str, Any]) -> dict[str, Any]:
    from faster_coco_eval.core import mask

    return mask.frPyObjects(runs, *runs["size"])
