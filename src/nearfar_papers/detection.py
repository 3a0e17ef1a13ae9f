"""The protocols "detect", "segment" and "keypoints": train detectors on the encoder, measure them,
and draw a page.
"""

from __future__ import annotations

import base64
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.ops import box_convert
from torchvision.ops._utils import split_normalization_params
from torchvision.transforms.functional import resize, to_pil_image
from torchvision.utils import draw_bounding_boxes, draw_keypoints, draw_segmentation_masks

from nearfar import Run
from nearfar.atomic import write_file
from nearfar.data.left_out import Count
from nearfar.device import find_device
from nearfar.messages import listed_names, read_json
from nearfar.networks import Encoder, first_encoder
from nearfar.pages import render_page, write_page, write_report
from nearfar.progress import Table, log, say_read, tracked
from nearfar.tools.evaluate.rows import encoders_by_row
from nearfar_papers.annotations import (
    AnnotatedImage,
    AnnotatedImages,
    DetectionSet,
    Target,
    check_library,
    flipped,
    mirrored,
    open_annotated,
    read_pixels,
)
from nearfar_papers.detector import (
    TASKS,
    DetectorSettings,
    build_detector,
    channels_of,
)

SIGMA = 0.05  # spread of a keypoint, where they are not COCO's 17, whose spreads are known
# images on a page, pixels of their longer side, least score that is drawn
SHOWN, SIDE, CERTAIN = 6, 480, 0.5
QUALITY = 90  # of JPEG
NO_OBJECT = "no annotated object to learn from"
COLOURS = ("#ffb000", "#d81b60", "#1e88e5", "#00a676", "#8e44ec", "#e4572e", "#17becf", "#7f7f00")
Detections = list[dict[str, Any]]
"""The objects found in an image, most certain first, in COCO's form: as those of `AnnotatedImage`,
with a "score".
"""


DETECTION = "detection.json"
"""In a run folder, of detectors by task: settings, and "results" by where they started."""
STARTS = {
    "untrained": "random weights",
    "starting_weights": "starting weights",
    "trained": "this run",
}
"""What a detector started from, in words."""


def read_detection(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what `transfer` wrote of detectors by task; empty before, ValueError for a damaged
    file.
    """
    path = folder / DETECTION
    if not path.is_file():
        return {}
    remedy = "remove it and run nearfar transfer again"
    written = read_json(path, remedy)
    if not all(map(_is_complete, written.values())):
        raise ValueError(f"{path} is damaged: what it says of detectors is incomplete; {remedy}")
    return written


def _is_complete(about: Any) -> bool:
    """Return whether that is what `transfer` notes of detectors on one task."""
    known = isinstance(about, dict) and {"detector", "train_images", "test_images"} <= about.keys()
    rows = about.get("results") if known else None
    return (
        isinstance(rows, dict)
        and bool(rows)
        and all(
            isinstance(row, dict)
            and all(isinstance(number, (int, float)) for number in row.values())
            for row in rows.values()
        )
    )


def report_section(folder: Path) -> str:
    """Return the report's section on detectors; "" for a run without any."""
    tables = []
    for task, about in read_detection(folder).items():
        columns = {
            key: key for key in next(iter(about["results"].values())) if "minutes" not in key
        }
        names = STARTS | {row: row for row in about["results"] if row not in STARTS}
        tables.append({**about, "task": task, "columns": columns, "names": names})
    return render_page("detection.html", package="nearfar_papers", tables=tables) if tables else ""


def steps_of(settings: DetectorSettings, images: int) -> int:
    """Return the steps that a detector trains for, on so many images."""
    if settings.steps is not None:
        return settings.steps
    return max(1, math.ceil((settings.epochs or 1) * images / settings.batch_size))


def fit_detector(
    detector: GeneralizedRCNN,
    train: AnnotatedImages,
    settings: DetectorSettings,
    *,
    seed: int = 0,
) -> None:
    """Train a detector, in place. Images are flipped half of the time.

    train: each image with an object. seed: of the order of images and their flips. Raises
    RuntimeError where the loss is no longer finite.
    """
    torch.manual_seed(seed)
    steps, device = steps_of(settings, len(train)), find_device()
    detector.to(device).train()
    optimizer = detector_optimizer(detector, settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_factor(step, steps, settings)
    )
    source = DetectionSet(
        train, channels_of(detector), getattr(detector.roi_heads, "mask_roi_pool", None) is not None
    )
    swaps = mirrored(train.keypoint_names)
    batches = tracked(_batches(source, settings, steps, seed), "training the detector", steps)
    for step, batch in enumerate(batches, 1):
        turned = [
            flipped(*example, swaps) if torch.rand(()) < 0.5 else example for example in batch
        ]
        images = [image.to(device) for image, _ in turned]
        losses = detector(
            images,
            [{key: value.to(device) for key, value in target.items()} for _, target in turned],
        )
        loss = sum(losses.values())
        if not torch.isfinite(loss):
            raise RuntimeError(
                f"the detector's loss is {loss.item()} at step {step}: lower the learning rate"
            )
        optimizer.zero_grad()
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(
                (parameter for parameter in detector.parameters() if parameter.requires_grad),
                settings.clip,
            )
        optimizer.step()
        schedule.step()


def detector_optimizer(detector: nn.Module, settings: DetectorSettings) -> torch.optim.Optimizer:
    """Return the optimiser, which gives normalisation layers a weight decay of their own."""
    norms, weights = split_normalization_params(detector)
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": settings.weight_decay},
        {"params": norms, "weight_decay": settings.norm_weight_decay},
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, settings.lr)
    return torch.optim.SGD(groups, settings.lr, momentum=0.9)


def rate_factor(step: int, steps: int, settings: DetectorSettings) -> float:
    """Return the learning rate of a step, as a multiple of the peak."""
    warmup = min(settings.warmup, steps // 10)
    rising = min(1.0, 1e-3 + step / warmup) if warmup else 1.0
    return rising * 0.1 ** sum(step >= share * steps for share in settings.drops)


def _batches(
    source: DetectionSet, settings: DetectorSettings, steps: int, seed: int
) -> Iterator[list[tuple[Tensor, Target]]]:
    """Yield so many batches, in a new order each epoch; a last batch that is not full is left
    out.
    """
    loader: DataLoader = DataLoader(
        source,
        min(settings.batch_size, len(source)),
        shuffle=True,
        drop_last=True,
        collate_fn=list,
        num_workers=settings.workers,
        persistent_workers=settings.workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )
    while steps > 0:
        for batch, _ in zip(loader, range(steps), strict=False):
            yield batch
        steps -= len(loader)


def find_objects(detector: GeneralizedRCNN, test: AnnotatedImages) -> list[Detections]:
    """Let a detector find the objects in every image, at most 100 of each."""
    from faster_coco_eval.core import mask

    detections, device = list[Detections](), find_device()
    detector.to(device).eval()
    for image in tracked(test.images, "finding objects"):
        with torch.inference_mode():
            [given] = detector([read_pixels(image, channels_of(detector)).to(device)])
        given = {key: value.cpu() for key, value in given.items()}
        boxes = box_convert(given["boxes"], "xyxy", "xywh").tolist()
        objects: Detections = [
            {"bbox": box, "category_id": label, "score": score}
            for box, label, score in zip(
                boxes, given["labels"].tolist(), given["scores"].tolist(), strict=True
            )
        ]
        for i, item in enumerate(objects):
            if "masks" in given:
                item["segmentation"] = mask.encode(
                    np.asfortranarray((given["masks"][i, 0] > 0.5).byte().numpy())
                )
            if "keypoints" in given:
                item["keypoints"] = given["keypoints"][i].flatten().tolist()
        detections.append(objects)
    return detections


def average_precision(
    truth: AnnotatedImages, detections: Sequence[Detections], kind: str = "bbox"
) -> dict[str, float]:
    """Return COCO's AP (mean over IoU .5 to .95), AP50 and AP75, 0..1, and the AP of each class as
    "AP NAME".

    detections: for each image, in order. kind: "bbox", "segm" or "keypoints". Classes without an
    object are left out. Raises ValueError where the images hold no object.
    """
    check_library()
    from faster_coco_eval.core import COCO, COCOeval_faster

    if not any(image.counted for image in truth.images):
        raise ValueError("the test images hold no annotated object")
    objects = [
        {**each, "image_id": number}
        for number, image in enumerate(truth.images)
        for each in image.objects
    ]
    gold = COCO(
        {
            "images": [
                {"id": i, "width": image.width, "height": image.height}
                for i, image in enumerate(truth.images)
            ],
            "annotations": [{**item, "id": i} for i, item in enumerate(objects, 1)],
            "categories": [
                {"id": number, "name": name} for number, name in enumerate(truth.class_names, 1)
            ],
        }
    )
    given = gold.loadRes(
        [{**each, "image_id": image} for image, here in enumerate(detections) for each in here]
    )
    points = len(truth.keypoint_names)
    sigmas = [SIGMA] * points if kind == "keypoints" and points != 17 else None
    scorer = COCOeval_faster(
        gold, given, kind, print_function=lambda *printed: None, kpt_oks_sigmas=sigmas
    )
    scorer.evaluate()
    scorer.accumulate()
    precision = scorer.eval["precision"][
        ..., 0, -1
    ]  # [IoU, recall, class] for all areas, with the most detections
    precision = np.where(precision < 0, np.nan, precision)
    ious = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}
    numbers = {name: float(np.nanmean(precision[rows])) for name, rows in ious.items()}
    for number, name in enumerate(truth.class_names):
        if not np.isnan(precision[..., number]).all():
            numbers[f"AP {name}"] = float(np.nanmean(precision[..., number]))
    return numbers


def detector_encoders(
    run: Run, encoder: nn.Module | None, baselines: bool, seed: int
) -> dict[str, Encoder]:
    """Return what detectors start from, by row: the run's weights, with `baselines` random ones,
    and for a run with `init` its starting weights.

    encoder: the module of a run whose encoder was an object of the user's own. seed: of the random
    weights.
    """
    rows = encoders_by_row(run, encoder, baselines, replace(run.settings, init=None, seed=seed))
    if baselines and run.settings.init is not None:
        rows |= encoders_by_row(run, encoder, baselines)
    return {
        row: first_encoder(start) for row in STARTS if isinstance(start := rows.get(row), Encoder)
    }


def evaluate_detectors(
    run: Run,
    encoders: Mapping[str, Encoder],
    data: Any,
    tasks: Sequence[str],
    settings: DetectorSettings,
    *,
    limit: int | None,
    test_share: float,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Train a detector from each encoder, and compare what they find.

    encoders: by row, see `detector_encoders`. tasks: of "detect", "segment" and "keypoints". The
    others are those of `transfer`. Writes detection.json after each training, TASK.html and the
    report. Returns AP, AP50, AP75 and those of each class, 0..1, as "TASK_AP" by row.
    """
    check_library()
    read_detection(run.path)  # refused before anything is computed, where it is damaged
    source = run.settings.given("data") if data is None else data
    if not isinstance(source, (str, Path)):
        raise ValueError(
            f"{', '.join(tasks)} take one folder or one .json with annotations as DATA"
        )
    opened = {}
    for task in tasks:  # everything that can be wrong is, before hours of training
        opened[task] = _sets(source, task, limit, test_share, seed)
        _built(encoders["trained"], settings, task, opened[task][0])
    results: dict[str, dict[str, float]] = {row: {} for row in encoders}
    for task, (train, test) in opened.items():
        about = {
            "detector": settings.name,
            "settings": asdict(settings),
            "data": Path(source).name,
            "seed": seed,
            "train_images": len(train),
            "test_images": len(test),
            "steps": steps_of(settings, len(train)),
            "device": find_device().type,
        }
        numbers, detections = dict[str, dict[str, float]](), dict[str, list[Detections]]()
        for row, encoder in encoders.items():
            title = f"{task}, {STARTS[row]}"
            log.info("%s: %d steps of %d images", title, about["steps"], settings.batch_size)
            numbers[row], detections[row] = _measure(encoder, settings, task, train, test, seed)
            results[row] |= {f"{task}_{name}": value for name, value in numbers[row].items()}
            written = read_detection(run.path) | {task: {**about, "results": numbers}}
            write_file(run.path / DETECTION, json.dumps(written, indent=2) + "\n")
        write_detection_page(run.path / f"{task}.html", task, test, detections)
        sizes = f"{len(train)} images to fit, {len(test)} to test"
        log.info(_table(f"{task} ({settings.name}): AP in percent, {sizes}", numbers))
        log.info("what was found -> %s", run.path / f"{task}.html")
    write_report(run.path)
    return results


def _measure(
    encoder: Encoder,
    settings: DetectorSettings,
    task: str,
    train: AnnotatedImages,
    test: AnnotatedImages,
    seed: int,
) -> tuple[dict[str, float], list[Detections]]:
    """Train a detector and test it; returns its precisions and minutes, and what it found."""
    torch.manual_seed(seed)  # the heads start alike in every row
    model = _built(encoder, settings, task, train)
    began, busy = time.perf_counter(), time.process_time()
    fit_detector(model, train, settings, seed=seed)
    detections = find_objects(model, test)
    numbers = average_precision(test, detections, TASKS[task])
    if task != "detect":
        numbers["box AP"] = average_precision(test, detections)["AP"]
    numbers["minutes"] = round((time.perf_counter() - began) / 60, 2)
    numbers["cpu minutes"] = round((time.process_time() - busy) / 60, 2)
    return numbers, detections


def _table(title: str, numbers: Mapping[str, Mapping[str, float]]) -> Table:
    """Lay out precisions in percent and minutes, a row for each start."""
    table = Table("", *numbers["trained"], title=title)
    for row, own in numbers.items():
        shown = (value if "minutes" in name else 100 * value for name, value in own.items())
        table.add(STARTS[row], *(f"{value:.1f}" for value in shown))
    return table


def _sets(
    source: str | Path, task: str, limit: int | None, share: float, seed: int
) -> tuple[AnnotatedImages, AnnotatedImages]:
    """The images for training that hold something to learn from, a sample of them, and those for
    the test. A line says how many were read and left out.
    """
    train, test = open_annotated(source, keypoints=task == "keypoints", test_share=share, seed=seed)
    objects = [
        item for images in (train, test) for image in images.images for item in image.objects
    ]
    if task == "segment" and any("segmentation" not in item for item in objects):
        raise ValueError(
            f"{source} has boxes without segmentations: segment takes COCO json with both"
        )
    if task == "keypoints" and not train.keypoint_names:
        raise ValueError(
            f"{source} has no keypoints: they are in COCO json whose categories name them"
        )
    learned = [
        row
        for row, image in enumerate(train.images)
        if any(item.get("num_keypoints", 1) for item in image.counted)
    ]
    if not learned or not any(image.counted for image in test.images):
        raise ValueError(
            f"{source}: the images for {'the test' if learned else 'training'} hold no "
            f"annotated object"
        )
    empty = [str(train.images[row].path) for row in sorted({*range(len(train))} - {*learned})]
    read = len(learned) + len(test)
    say_read(Count(str(source), read, [(name, NO_OBJECT) for name in empty]))
    if limit is not None and limit < len(learned):
        drawn = "`limit`: %d of %d images, a random sample (seed %d)"
        log.info(drawn, limit, len(learned), seed)
    train = train.subset(learned).sampled(limit or len(learned), seed)
    _say_unseen(train, test)
    return train, test


def _say_unseen(train: AnnotatedImages, test: AnnotatedImages) -> None:
    """Say which classes have test objects and no training object, so that none is found."""
    learned, tested = (
        [item["category_id"] for image in images.images for item in image.counted]
        for images in (train, test)
    )
    lost = [label for label in tested if label not in {*learned}]
    if lost:
        names = [test.class_names[label - 1] for label in sorted({*lost})]
        words = "%d of %d test objects are of classes without a training object: %s"
        log.info(words, len(lost), len(tested), listed_names(names))


def _built(
    encoder: Encoder, settings: DetectorSettings, task: str, images: AnnotatedImages
) -> GeneralizedRCNN:
    return build_detector(
        encoder, settings, task, len(images.class_names), len(images.keypoint_names)
    )


def write_detection_page(
    path: Path, task: str, test: AnnotatedImages, detections: dict[str, list[Detections]]
) -> None:
    """Write a page with a few test images: what is annotated, then what each row of
    `detections` holds.
    """
    images = []
    for row in np.linspace(0, len(test) - 1, min(SHOWN, len(test))).round().astype(int).tolist():
        image, columns = test.images[row], {"annotated": list(test.images[row].objects)}
        for key, each in detections.items():
            columns[STARTS[key]] = [found_ for found_ in each[row] if found_["score"] >= CERTAIN]
        drawn = (
            (title, len(objects), _drawn(image, objects)) for title, objects in columns.items()
        )
        images.append(
            [
                {"name": image.path.name, "title": title, "count": count, "url": url}
                for title, count, url in drawn
            ]
        )
    about = (
        f"{len(test)} test images, {len(images)} of them shown; objects with a score "
        f"of {CERTAIN:g} or more"
    )
    classes = list(zip(test.class_names, cycle(COLOURS), strict=False))
    write_page(
        path,
        "detected_objects.html",
        package="nearfar_papers",
        title=f"What was found: {task}",
        about=about,
        classes=classes,
        images=images,
    )


def _drawn(annotated: AnnotatedImage, objects: Detections) -> str:
    from faster_coco_eval.core import mask

    image = (255 * read_pixels(annotated, 3)).round().to(torch.uint8)
    objects, scale = objects[::-1], max(1.0, max(annotated.width, annotated.height) / SIDE)
    width, colours = (
        round(2 * scale),
        [COLOURS[(each["category_id"] - 1) % len(COLOURS)] for each in objects],
    )
    if objects and "segmentation" in objects[0]:
        masks = (
            torch.from_numpy(mask.decode([each["segmentation"] for each in objects]))
            .permute(2, 0, 1)
            .bool()
        )
        image = draw_segmentation_masks(image, masks, alpha=0.4, colors=colours)
    if objects:
        boxes = torch.tensor([each["bbox"] for each in objects])
        image = draw_bounding_boxes(
            image, box_convert(boxes, "xywh", "xyxy"), colors=colours, width=width
        )
    if objects and "keypoints" in objects[0]:
        points = torch.tensor([each["keypoints"] for each in objects]).reshape(len(objects), -1, 3)
        image = draw_keypoints(
            image, points[..., :2], visibility=points[..., 2] > 0, colors="white", radius=width
        )
    sides = [max(1, round(annotated.height / scale)), max(1, round(annotated.width / scale))]
    file = io.BytesIO()
    to_pil_image(resize(image, sides)).save(file, "JPEG", quality=QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
