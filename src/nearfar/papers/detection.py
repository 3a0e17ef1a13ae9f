"""The protocols "detect", "segment" and "keypoints": train detectors on the encoder, measure them, and draw a page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

from nearfar.data import describe
from nearfar.data.images import sample
from nearfar.maps.thumbnails import data_url
from nearfar.networks import Encoder
from nearfar.pages.report import STARTS, write_report
from nearfar.pages.template import write_page
from nearfar.papers.annotations import (
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
from nearfar.papers.detector import TASKS, DetectorSettings, build_detector, detector_settings
from nearfar.run import Run
from nearfar.run_evaluation import encoders_by_row
from nearfar.training.progress import Pace, TrainingProgress, shown

SIGMA = 0.05  # spread of a keypoint, where they are not COCO's 17, whose spreads are known
SHOWN, SIDE, CERTAIN = 6, 480, 0.5  # images on a page, pixels of their longer side, least score that is drawn
COLOURS = ("#ffb000", "#d81b60", "#1e88e5", "#00a676", "#8e44ec", "#e4572e", "#17becf", "#7f7f00")
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
Found = dict[str, Any]
"""What was found in an image, most certain first: boxes, labels, scores as arrays; masks as COCO's runs, keypoints."""


def trainable(train: AnnotatedImages) -> AnnotatedImages:
    """Return the images that hold something to learn from."""
    rows = [
        i
        for i, one in enumerate(train.images)
        if not one.crowd.all() and (one.keypoints is None or (one.keypoints[..., 2] > 0).any())
    ]
    if not rows:
        raise ValueError("no training image has an annotated object")
    return train.subset(rows)


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
    channels: int,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int, float, float, float], None] | None = None,
) -> None:
    """Train a detector, in place. Images are flipped half of the time.

    channels: of the images. seed: of their order and their flips. progress: called with the steps done, the loss, the
    images a second and the share of the time spent on waiting for images. Raises RuntimeError where the loss is no
    longer finite.
    """
    train = trainable(train)
    torch.manual_seed(seed)
    steps = steps_of(settings, len(train))
    detector.to(device).train()
    optimizer = detector_optimizer(detector, settings)
    source = DetectionSet(train, channels, getattr(detector.roi_heads, "mask_roi_pool", None) is not None)
    swaps = mirrored(train.keypoint_names)
    began = asked = time.perf_counter()
    waited = 0.0
    for step, batch in enumerate(_batches(source, settings, steps, seed)):
        waited += time.perf_counter() - asked
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * rate_factor(step, steps, settings)
        turned = [flipped(*one, swaps) if torch.rand(()) < 0.5 else one for one in batch]
        images = [image.to(device) for image, _ in turned]
        losses = detector(images, [{key: value.to(device) for key, value in one.items()} for _, one in turned])
        loss = sum(losses.values())
        if not torch.isfinite(loss):
            raise RuntimeError(f"the detector's loss is {loss.item()} at step {step}: lower the learning rate")
        optimizer.zero_grad()
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_((one for one in detector.parameters() if one.requires_grad), settings.clip)
        optimizer.step()
        if progress is not None:
            seconds = time.perf_counter() - began
            progress(step + 1, loss.item(), (step + 1) * len(batch) / seconds, waited / seconds)
        asked = time.perf_counter()


def detector_optimizer(detector: nn.Module, settings: DetectorSettings) -> torch.optim.Optimizer:
    """Return the optimiser, which gives normalisation layers a weight decay of their own."""
    norms = {id(one) for module in detector.modules() if isinstance(module, NORMS) for one in module.parameters()}
    weights = [one for one in detector.parameters() if one.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [one for one in weights if id(one) not in norms], "weight_decay": settings.weight_decay},
        {"params": [one for one in weights if id(one) in norms], "weight_decay": settings.norm_weight_decay},
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, settings.lr)
    return torch.optim.SGD(groups, settings.lr, momentum=0.9)


def rate_factor(step: int, steps: int, settings: DetectorSettings) -> float:
    """Return the learning rate of a step, as a multiple of the highest."""
    warmup = min(settings.warmup, steps // 10)
    rising = min(1.0, 1e-3 + step / warmup) if warmup else 1.0
    return rising * 0.1 ** sum(step >= share * steps for share in settings.drops)


def _batches(
    source: DetectionSet, settings: DetectorSettings, steps: int, seed: int
) -> Iterator[list[tuple[Tensor, Target]]]:
    """Yield so many batches, in a new order each epoch; a last batch that is not full is left out."""
    loader: DataLoader = DataLoader(
        source, min(settings.batch_size, len(source)), shuffle=True, drop_last=True, collate_fn=list,
        num_workers=settings.workers, persistent_workers=settings.workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    done = 0
    while True:
        for batch in loader:
            if done == steps:
                return
            done += 1
            yield batch


def find_objects(
    detector: GeneralizedRCNN,
    test: AnnotatedImages,
    *,
    channels: int,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> list[Found]:
    """Let a detector find the objects in every image, at most 100 of each. progress: called with (done, all)."""
    from faster_coco_eval.core import mask

    detector.to(device).eval()
    source = DetectionSet(test, channels)
    found = []
    for row in range(len(source)):
        with torch.inference_mode():
            one = detector([source[row][0].to(device)])[0]
        result: Found = {key: one[key].cpu().numpy() for key in ("boxes", "labels", "scores")}
        if "masks" in one:
            drawn = (one["masks"][:, 0] > 0.5).byte().cpu().numpy()
            result["masks"] = [mask.encode(np.asfortranarray(each)) for each in drawn]
        if "keypoints" in one:
            result["keypoints"] = one["keypoints"].cpu().numpy()
        found.append(result)
        if progress is not None:
            progress(row + 1, len(source))
    return found


def evaluate_detectors(
    run: Run,
    data: Any,
    tasks: Sequence[str],
    *,
    detector: str,
    epochs: float | None,
    limit: int | None,
    test_share: float,
    seed: int,
    baselines: bool,
    encoder: nn.Module | None,
    console: Console,
) -> dict[str, dict[str, float]]:
    """Train a detector from the run's weights, and with `baselines` from random ones, and compare what they find.

    See `nearfar.transfer`; tasks: of "detect", "segment" and "keypoints". Writes results.json, after each training,
    TASK.html and the report. Returns AP, AP50, AP75 and those of each class, 0..1, as "TASK_AP" by "untrained",
    "starting_weights" (for a run with `init`) and "trained".
    """
    check_library()
    settings = detector_settings(detector)
    if epochs is not None:
        if not epochs > 0:
            raise ValueError(f"--epochs must be above 0, got {epochs}")
        settings = replace(settings, epochs=epochs, steps=None)
    source = run.settings.given("data") if data is None else data
    if not isinstance(source, (str, Path)):
        raise ValueError(f"{', '.join(tasks)} take one folder or one .json with annotations as DATA")
    encoders = _encoders(run, encoder, baselines, seed)
    opened = {}
    for task in tasks:  # everything that can be wrong is, before hours of training
        opened[task] = _sets(source, task, limit, test_share, seed)
        _built(encoders["trained"], settings, task, opened[task][0])
    results: dict[str, dict[str, float]] = {row: {} for row in encoders}
    for task, (train, test) in opened.items():
        about = {"detector": detector, "settings": asdict(settings), "data": Path(describe(source)).name, "seed": seed}
        about |= {"train_images": len(train), "test_images": len(test), "steps": steps_of(settings, len(train))}
        about["device"] = "cuda" if torch.cuda.is_available() else "cpu"
        numbers, found = {}, {}
        for row, one in encoders.items():
            title = f"{task}, {STARTS[row]}"
            numbers[row], found[row] = _trained(one, settings, task, train, test, seed, title, console)
            results[row] |= {f"{task}_{name}": value for name, value in numbers[row].items()}
            run.write_results(detection={**run.detection, task: {**about, "results": numbers}})
        page = run.path / f"{task}.html"
        write_detection_page(page, task, test, found)
        console.print(_table(task, numbers, detector, len(train), len(test)))
        console.print(Text(f"what was found -> {page}"))
    write_report(run.path)
    return results


def _encoders(run: Run, own: nn.Module | None, baselines: bool, seed: int) -> dict[str, Encoder]:
    """The encoders to start from, in the order of `STARTS`; random weights are drawn with the seed."""
    rows = encoders_by_row(run, own, baselines, replace(run.settings, init=None, seed=seed))
    if baselines and run.settings.init is not None:
        rows |= encoders_by_row(run, own, baselines)
    return {row: one for row in STARTS if isinstance(one := rows.get(row), Encoder)}


def _sets(
    source: str | Path, task: str, limit: int | None, share: float, seed: int
) -> tuple[AnnotatedImages, AnnotatedImages]:
    sets = open_annotated(source, keypoints=task == "keypoints", test_share=share, seed=seed)
    for images in sets:
        if task == "segment" and any(len(one.boxes) and not one.masks for one in images.images):
            raise ValueError(f"{source} has boxes without segmentations: segment takes COCO json with both")
        if task == "keypoints" and not images.keypoint_names:
            raise ValueError(f"{source} has no keypoints: they are in COCO json whose categories name them")
    train, test = trainable(sets[0]), sets[1]
    if all(one.crowd.all() for one in test.images):
        raise ValueError(f"{source}: the test images hold no annotated object")
    return (train if limit is None else train.subset(sample(len(train), limit, seed).tolist())), test


def _built(encoder: Encoder, settings: DetectorSettings, task: str, images: AnnotatedImages) -> GeneralizedRCNN:
    return build_detector(encoder, settings, task, len(images.class_names), len(images.keypoint_names))


def _trained(
    encoder: Encoder,
    settings: DetectorSettings,
    task: str,
    train: AnnotatedImages,
    test: AnnotatedImages,
    seed: int,
    title: str,
    console: Console,
) -> tuple[dict[str, float], list[Found]]:
    """Train one detector; returns its numbers on the test images and what it found there."""
    torch.manual_seed(seed)  # the heads start alike in every row
    detector = _built(encoder, settings, task, train)
    began, busy, steps = time.perf_counter(), time.process_time(), steps_of(settings, len(train))
    console.print(Text(f"{title}: {steps} steps of {settings.batch_size} images"))
    common: dict[str, Any] = dict(channels=encoder.channels, device="cuda" if torch.cuda.is_available() else "cpu")
    with TrainingProgress(console, Pace(steps), 0, max(1, len(train) // settings.batch_size)) as bar:

        def advance(step: int, loss: float, rate: float, waiting: float) -> None:
            bar.advance(step)
            bar.update(step, loss, rate, waiting)

        fit_detector(detector, train, settings, seed=seed, progress=advance, **common)
    with shown(console, f"{title}: testing") as tested:
        found = find_objects(detector, test, progress=tested, **common)
    numbers = average_precision(test, found, TASKS[task])
    if task != "detect":
        numbers["box AP"] = average_precision(test, found)["AP"]
    spent = {"minutes": time.perf_counter() - began, "cpu minutes": time.process_time() - busy}
    return numbers | {key: round(seconds / 60, 2) for key, seconds in spent.items()}, found


def _table(task: str, numbers: dict[str, dict[str, float]], detector: str, train: int, test: int) -> Table:
    columns = list(numbers["trained"])
    table = Table("", *columns, title=f"{task} ({detector}): AP in percent, {train} images to fit, {test} to test")
    for row, own in numbers.items():
        cells = (f"{own[c]:.1f}" if "minutes" in c else f"{100 * own[c]:.1f}" for c in columns)
        table.add_row(STARTS[row], *cells)
    return table


def average_precision(truth: AnnotatedImages, found: Sequence[Found], kind: str = "bbox") -> dict[str, float]:
    """Return COCO's AP (mean over IoU .5 to .95), AP50 and AP75, 0..1, and the AP of each class as "AP NAME".

    found: for each image, in order. kind: "bbox", "segm" or "keypoints". Classes without an object are left out.
    Raises ValueError where the images hold no object of that kind.
    """
    check_library()
    from faster_coco_eval.core import COCO, COCOeval_faster

    objects = [one for image, each in enumerate(truth.images) for one in _true(each, image, kind)]
    if all(one["iscrowd"] for one in objects):
        raise ValueError("the test images hold no annotated object")
    gold = COCO(
        {
            "images": [{"id": i, "width": one.width, "height": one.height} for i, one in enumerate(truth.images)],
            "annotations": [{**one, "id": i} for i, one in enumerate(objects, 1)],
            "categories": [{"id": number, "name": name} for number, name in enumerate(truth.class_names, 1)],
        }
    )
    given = gold.loadRes([one for image, here in enumerate(found) for one in _found(here, image, kind)])
    points = len(truth.keypoint_names)
    sigmas = [SIGMA] * points if kind == "keypoints" and points != 17 else None
    scorer = COCOeval_faster(gold, given, kind, print_function=lambda *said: None, kpt_oks_sigmas=sigmas)
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


def _true(one: AnnotatedImage, image: int, kind: str) -> Iterator[dict[str, Any]]:
    for i, (left, top, right, bottom) in enumerate(one.boxes.tolist()):
        row: dict[str, Any] = {"image_id": image, "category_id": int(one.labels[i]), "iscrowd": int(one.crowd[i])}
        row |= {"bbox": [left, top, right - left, bottom - top], "area": float(one.areas[i])}
        if kind == "segm":
            row["segmentation"] = one.masks[i]
        if kind == "keypoints" and one.keypoints is not None:
            row["keypoints"] = one.keypoints[i].flatten().tolist()
            row["num_keypoints"] = int((one.keypoints[i, :, 2] > 0).sum())
        yield row


def _found(here: Found, image: int, kind: str) -> Iterator[dict[str, Any]]:
    for i, (left, top, right, bottom) in enumerate(here["boxes"].tolist()):
        row: dict[str, Any] = {"image_id": image, "category_id": int(here["labels"][i])}
        row["score"] = float(here["scores"][i])
        if kind == "bbox":
            row["bbox"] = [left, top, right - left, bottom - top]
        elif kind == "segm":
            row["segmentation"] = here["masks"][i]
        else:
            row["keypoints"] = np.asarray(here["keypoints"][i]).flatten().tolist()
        yield row


def write_detection_page(path: Path, task: str, test: AnnotatedImages, found: dict[str, list[Found]]) -> None:
    """Write a page with a few test images: what is annotated, then what each row of `found` holds."""
    images = []
    for row in np.linspace(0, len(test) - 1, min(SHOWN, len(test))).round().astype(int).tolist():
        one = test.images[row]
        truth: Found = {"boxes": one.boxes, "labels": one.labels, "scores": np.ones(len(one.labels))}
        truth |= {"masks": one.masks} if one.masks else {}
        truth |= {"keypoints": one.keypoints} if one.keypoints is not None else {}
        columns = {"annotated": truth} | {STARTS[key]: all_[row] for key, all_ in found.items()}
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
    write_page(path, "found.html", title=f"What was found: {task}", about=shown, classes=classes, images=images)


def _colour(label: int) -> str:
    return COLOURS[(label - 1) % len(COLOURS)]


def _drawn(one: AnnotatedImage, objects: Found) -> str:
    """Draw objects on their image; the last one drawn is the most certain."""
    from faster_coco_eval.core import mask

    pixels = (read_pixels(one, 3) * 255).byte().permute(1, 2, 0).numpy()
    scale = min(1.0, SIDE / max(one.width, one.height))
    size = (max(1, round(one.width * scale)), max(1, round(one.height * scale)))
    image = Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS)
    order = [int(i) for i in np.argsort(objects["scores"], kind="stable") if objects["scores"][i] >= CERTAIN]
    for i in order if "masks" in objects else ():
        covered = Image.fromarray(mask.decode(objects["masks"][i]) * 110).resize(size)
        image.paste(Image.new("RGB", size, _colour(int(objects["labels"][i]))), mask=covered)
    draw = ImageDraw.Draw(image)
    for i in order:
        colour = _colour(int(objects["labels"][i]))
        draw.rectangle([float(x) * scale for x in objects["boxes"][i]], outline=colour, width=2)
        for x, y, visible in objects["keypoints"][i].tolist() if "keypoints" in objects else []:
            if visible:
                draw.ellipse((x * scale - 3, y * scale - 3, x * scale + 3, y * scale + 3), fill=colour, outline="white")
    return data_url(torch.from_numpy(np.array(image)).permute(2, 0, 1))
