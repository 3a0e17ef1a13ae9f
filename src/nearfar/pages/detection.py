"""A page of test images with their annotated objects, beside what each detector found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from nearfar.data.annotations import AnnotatedImage, AnnotatedImages
from nearfar.data.run_lengths import to_mask
from nearfar.evaluation.detection.batches import read_pixels
from nearfar.evaluation.detection.fit import Found
from nearfar.maps.thumbnails import data_url
from nearfar.pages.template import write_page

ROWS = {"untrained": "random weights", "starting_weights": "starting weights", "trained": "this run"}
"""What a detector started from, in words."""
IMAGES, SIDE = 6, 480  # images on the page, and pixels of the longer side
CERTAIN = 0.5  # what is found with a lower score is not drawn
COLOURS = ("#ffb000", "#d81b60", "#1e88e5", "#00a676", "#8e44ec", "#e4572e", "#17becf", "#7f7f00")
"""Of the classes, in turn."""


def write_detection_page(path: Path, task: str, test: AnnotatedImages, found: dict[str, list[Found]]) -> None:
    """Write a page with a few test images: what is annotated, then what each row of `found` holds."""
    images = []
    for row in np.linspace(0, len(test) - 1, min(IMAGES, len(test))).round().astype(int).tolist():
        one = test.images[row]
        truth: Found = {"boxes": one.boxes, "labels": one.labels, "scores": np.ones(len(one.labels))}
        truth |= {"masks": list(one.segmentations)} if one.segmentations else {}
        truth |= {"keypoints": one.keypoints} if one.keypoints is not None else {}
        columns = {"annotated": truth} | {ROWS[key]: all_[row] for key, all_ in found.items()}
        images.append(
            [
                {
                    "title": title,
                    "name": one.path.name,
                    "count": int((objects["scores"] >= CERTAIN).sum()),
                    "url": _drawn(one, objects),
                }
                for title, objects in columns.items()
            ]
        )
    shown = f"{len(test)} test images, {len(images)} of them shown; objects with a score of {CERTAIN:g} or more"
    classes = [(name, _colour(label)) for label, name in enumerate(test.class_names, 1)]
    title = f"What was found: {task}"
    write_page(path, "found.html", title=title, about=shown, classes=classes, images=images)


def _colour(label: int) -> str:
    return COLOURS[(label - 1) % len(COLOURS)]


def _drawn(one: AnnotatedImage, objects: Found) -> str:
    """Draw objects on their image; the last one drawn is the most certain."""
    pixels = (read_pixels(one, 3) * 255).byte().permute(1, 2, 0).numpy()
    scale = min(1.0, SIDE / max(one.width, one.height))
    size = (max(1, round(one.width * scale)), max(1, round(one.height * scale)))
    image = Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS)
    order = [int(i) for i in np.argsort(objects["scores"], kind="stable") if objects["scores"][i] >= CERTAIN]
    for i in order if "masks" in objects else ():
        mask = Image.fromarray(to_mask(objects["masks"][i], one.width, one.height) * 110).resize(size)
        image.paste(Image.new("RGB", size, _colour(int(objects["labels"][i]))), mask=mask)
    draw = ImageDraw.Draw(image)
    for i in order:
        colour = _colour(int(objects["labels"][i]))
        draw.rectangle([float(x) * scale for x in objects["boxes"][i]], outline=colour, width=2)
        for x, y, visible in _points(objects, i):
            if visible:
                x, y = x * scale, y * scale
                draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour, outline="white")
    return data_url(torch.from_numpy(np.array(image)).permute(2, 0, 1))


def _points(objects: dict[str, Any], i: int) -> Sequence[Sequence[float]]:
    return objects["keypoints"][i].tolist() if "keypoints" in objects else []
