"""Train a detector, and let it find what is in test images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

from nearfar.data.annotations import AnnotatedImages
from nearfar.data.run_lengths import to_runs
from nearfar.evaluation.detection.batches import DetectionSet, Target, flipped, mirrored
from nearfar.evaluation.detection.settings import DetectorSettings

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
Found = dict[str, Any]
"""What was found in an image, most certain first: boxes, labels, scores as arrays; masks as runs, keypoints."""


def trainable(train: AnnotatedImages) -> AnnotatedImages:
    """Return the images that hold something to learn from."""
    rows = [i for i, one in enumerate(train.images) if not one.crowd.all() and _marked(one.keypoints)]
    if not rows:
        raise ValueError("no training image has an annotated object")
    return train.subset(rows)


def _marked(keypoints: Any) -> bool:
    return keypoints is None or bool((keypoints[..., 2] > 0).any())


def steps_of(settings: DetectorSettings, images: int) -> int:
    """Steps that a detector trains for, on so many images."""
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
    weights = [one for one in detector.parameters() if one.requires_grad]
    optimizer = _optimizer(detector, settings)
    masks = getattr(detector.roi_heads, "mask_roi_pool", None) is not None
    swaps = mirrored(train.keypoint_names)
    source = DetectionSet(train, channels, masks)
    began = asked = time.perf_counter()
    waited = 0.0
    for step, batch in enumerate(_batches(source, settings, steps, seed)):
        waited += time.perf_counter() - asked
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _factor(step, steps, settings)
        turned = [flipped(*one, swaps) if torch.rand(()) < 0.5 else one for one in batch]
        images = [image.to(device) for image, _ in turned]
        losses = detector(images, [{key: value.to(device) for key, value in one.items()} for _, one in turned])
        loss = sum(losses.values())
        if not torch.isfinite(loss):
            raise RuntimeError(f"the detector's loss is {loss.item()} at step {step}: lower the learning rate")
        optimizer.zero_grad()
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(weights, settings.clip)
        optimizer.step()
        if progress is not None:
            seconds = time.perf_counter() - began
            progress(step + 1, loss.item(), (step + 1) * len(batch) / seconds, waited / seconds)
        asked = time.perf_counter()


def _optimizer(detector: nn.Module, settings: DetectorSettings) -> torch.optim.Optimizer:
    norms = {id(one) for module in detector.modules() if isinstance(module, NORMS) for one in module.parameters()}
    weights = [one for one in detector.parameters() if one.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [one for one in weights if id(one) not in norms], "weight_decay": settings.weight_decay},
        {"params": [one for one in weights if id(one) in norms], "weight_decay": settings.norm_weight_decay},
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, settings.lr)
    return torch.optim.SGD(groups, settings.lr, momentum=0.9)


def _factor(step: int, steps: int, settings: DetectorSettings) -> float:
    """The learning rate of a step, as a multiple."""
    warmup = min(settings.warmup, steps // 10)
    rising = min(1.0, 1e-3 + step / warmup) if warmup else 1.0
    return rising * 0.1 ** sum(step >= share * steps for share in settings.drops)


def _batches(
    source: DetectionSet, settings: DetectorSettings, steps: int, seed: int
) -> Iterator[list[tuple[Tensor, Target]]]:
    """Yield batches in a new order each epoch; a last batch that is not full is left out if there are others."""
    generator = torch.Generator().manual_seed(seed)
    size = min(settings.batch_size, len(source))
    loader: DataLoader = DataLoader(
        source, size, shuffle=True, drop_last=True, collate_fn=list, num_workers=settings.workers, generator=generator,
        persistent_workers=settings.workers > 0,
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
    detector.to(device).eval()
    source = DetectionSet(test, channels)
    found = []
    for row in range(len(source)):
        with torch.inference_mode():
            one = detector([source[row][0].to(device)])[0]
        result: Found = {key: one[key].cpu().numpy() for key in ("boxes", "labels", "scores")}
        if "masks" in one:
            result["masks"] = [to_runs(mask[0].cpu().numpy() > 0.5) for mask in one["masks"]]
        if "keypoints" in one:
            result["keypoints"] = one["keypoints"].cpu().numpy()
        found.append(result)
        if progress is not None:
            progress(row + 1, len(source))
    return found
