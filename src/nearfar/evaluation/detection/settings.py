"""Named settings of detectors: those of the papers, and small ones for a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearfar.messages import did_you_mean


@dataclass(frozen=True)
class DetectorSettings:
    """How a detector is built and trained.

    neck: "fpn" (feature pyramid with batch normalisation) or "c4" (the last stage of the net is applied to each
    region). sides: pixels of an image's shorter side, one drawn for each image; the test takes the last. longest: at
    most so many pixels for the longer side. epochs, or steps: length of the training. batch_size: images of a step.
    optimizer: "sgd" with momentum 0.9, or "adamw". norm_weight_decay: that of normalisation layers. clip: largest norm
    of the gradient. warmup: steps with a rate that rises from a thousandth, a tenth of all at most. drops: shares of
    the steps after which the rate falls to a tenth. frozen: first stages of the trunk that stay as they are.
    channels: of the pyramid. hidden: units of the box head. anchors: sides, as multiples of a map's stride. pooled:
    whether the pyramid ends in one more map, of half the last one's size. regions: sampled of each image for the heads.
    proposals: looked at on each map, in training and in the test. kept: of these, for an image. workers: processes that
    read images.
    """

    neck: str
    sides: tuple[int, ...]
    longest: int
    batch_size: int
    lr: float
    epochs: float | None = None
    steps: int | None = None
    optimizer: str = "sgd"
    weight_decay: float = 1e-4
    norm_weight_decay: float = 0.0
    clip: float | None = None
    warmup: int = 1000
    drops: tuple[float, ...] = (2 / 3, 8 / 9)
    frozen: int = 0
    channels: int = 256
    hidden: int = 1024
    anchors: tuple[float, ...] = (8,)
    pooled: bool = True
    regions: int = 512
    proposals: tuple[int, int] = (2000, 1000)
    kept: tuple[int, int] = (1000, 1000)
    workers: int = 8


SHORTER_SIDES = (640, 672, 704, 736, 768, 800)
ON_A_CPU: dict[str, Any] = dict(
    sides=(240,),
    longest=320,
    batch_size=4,
    lr=1e-3,
    epochs=4,
    optimizer="adamw",
    weight_decay=1e-2,
    norm_weight_decay=1e-2,
    clip=10.0,
    warmup=50,
    proposals=(300, 150),
    kept=(300, 150),
    workers=0,
)

DETECTORS = {
    # LORAC, Section 6.1: FPN with batch normalisation, batches of 16, 90 000 steps, the rest as MoCo (He et al. 2020,
    # Section 4.2 and Detectron2's R50-FPN at its 1x schedule).
    "lorac": DetectorSettings("fpn", SHORTER_SIDES, 1333, batch_size=16, lr=0.02, steps=90_000),
    # SCE, Table 11 and its text: Mask R-CNN on C4 by the protocol of Truncated-Triplet, which is MoCo's
    # (coco_R_50_C4_2x.yaml): the table's first row is that of MoCo's 2x schedule, 180 000 steps.
    "sce": DetectorSettings(
        "c4",
        SHORTER_SIDES,
        1333,
        batch_size=16,
        lr=0.02,
        steps=180_000,
        anchors=(2, 4, 8, 16, 32),
        proposals=(12_000, 6000),
        kept=(2000, 1000),
    ),
    # For a CPU: a small pyramid, few regions, all stages trained; docs/detection.md has what it costs and gives.
    "small": DetectorSettings("fpn", channels=64, hidden=256, anchors=(4, 8), pooled=False, regions=64, **ON_A_CPU),
    "small-c4": DetectorSettings("c4", anchors=(2, 4, 8, 16), regions=32, **ON_A_CPU),
}


def detector_settings(name: str) -> DetectorSettings:
    """Return settings by name; ValueError for an unknown one."""
    if name not in DETECTORS:
        raise ValueError(f"unknown detector {name!r}: {did_you_mean(name, DETECTORS, 'use ' + ', '.join(DETECTORS))}")
    return DETECTORS[name]
