"""A page of test images with their annotated objects, beside what each detector found."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from nearfar.commands.page import whole_page
from nearfar.data.annotations import AnnotatedImage, AnnotatedImages
from nearfar.data.run_lengths import to_mask
from nearfar.evaluation.detection.batches import read_pixels
from nearfar.evaluation.detection.fit import Found
from nearfar.maps.thumbnails import data_url

ROWS = {"untrained": "random weights", "starting_weights": "starting weights", "trained": "this run"}
"""What a detector started from, in words."""
IMAGES, SIDE = 6, 480  # images on the page, and pixels of the longer side
CERTAIN = 0.5  # what is found with a lower score is not drawn
COLOURS = ("#ffb000", "#d81b60", "#1e88e5", "#00a676", "#8e44ec", "#e4572e", "#17becf", "#7f7f00")
"""Of the classes, in turn."""

STYLE = """
.found { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 12px; margin: 0 0 20px; }
.found img { display: block; width: 100%; height: auto; border-radius: 4px; margin-top: 6px; }
.found figcaption { color: var(--quiet); font-size: 14px; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 6px 0 14px; }
"""


def detection_page(task: str, test: AnnotatedImages, found: dict[str, list[Found]]) -> str:
    """Return a page with a few test images: what is annotated, then what each row of `found` holds."""
    keys = "".join(
        f'<span class="swatch" style="background:{_colour(label)}"></span>{html.escape(name)}'
        for label, name in enumerate(test.class_names, 1)
    )
    figures = ""
    for row in np.linspace(0, len(test) - 1, min(IMAGES, len(test))).round().astype(int).tolist():
        one = test.images[row]
        truth: Found = {"boxes": one.boxes, "labels": one.labels, "scores": np.ones(len(one.labels))}
        truth |= {"masks": list(one.segmentations)} if one.segmentations else {}
        truth |= {"keypoints": one.keypoints} if one.keypoints is not None else {}
        columns = {"annotated": truth} | {ROWS[key]: all_[row] for key, all_ in found.items()}
        shown = "".join(
            f"<figure><figcaption>{html.escape(title)}, {int((objects['scores'] >= CERTAIN).sum())} objects"
            f'</figcaption><img alt="{html.escape(one.path.name)}, {html.escape(title)}" src="{_drawn(one, objects)}">'
            "</figure>"
            for title, objects in columns.items()
        )
        figures += f'<div class="found">{shown}</div>'
    about = (
        f"{len(test)} test images, {min(IMAGES, len(test))} of them shown; objects with a score of {CERTAIN:g} or more"
    )
    return whole_page(
        f"What was found: {task}", about, f"<section><style>{STYLE}</style><p>{keys}</p>{figures}</section>"
    )


def detection_section(detection: dict[str, dict[str, Any]]) -> str:
    """Return a section of the report with a table for each task; see `Run.detection`. Empty without any."""
    tables = ""
    for task, about in detection.items():
        results = about["results"]
        columns = [name for name in next(iter(results.values())) if "minutes" not in name]
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
        rows = "".join(
            f'<tr class="{html.escape(row)}"><th scope="row">{html.escape(ROWS.get(row, row))}</th>'
            + "".join(f"<td>{100 * numbers[name]:.1f}</td>" for name in columns)
            + "</tr>"
            for row, numbers in results.items()
        )
        said = f"{about['detector']}, {about['train_images']} images to fit, {about['test_images']} to test"
        tables += (
            f'<h3>{html.escape(f"{task}: {said}")}</h3><div class="scroll"><table class="numbers"><thead><tr><td></td>'
            f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )
    note = '<p class="note">Average precision in percent, of detectors that started from these weights.</p>'
    return f"<section><h2>Objects found</h2>{tables}{note}</section>" if tables else ""


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
