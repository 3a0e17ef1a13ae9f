"""torchvision's Faster, Mask and Keypoint R-CNN on the feature maps of an encoder, and their
settings by name.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import initLevelMapper

from nearfar.messages import check_known, raise_as_value_error
from nearfar.networks import Backbone, Encoder, SmallNet

TASKS = {"detect": "bbox", "segment": "segm", "keypoints": "keypoints"}
"""What can be found, and what COCO's evaluation calls it."""
RATIOS = (0.5, 1.0, 2.0)
SIDES = (640, 672, 704, 736, 768, 800)
PROBE = 256  # pixels; a multiple of the strides of all of timm's nets
HINT = "detectors take small, ResNets, ConvNeXts and others with stages"


@dataclass(frozen=True)
class DetectorSettings:
    """Settings of building and training a detector.

    neck: "fpn" (feature pyramid with batch normalisation) or "c4" (the last stage of the net is
    applied to each region). sides: pixels of an image's shorter side, one drawn for each image; the
    test takes the last. longest: at most so many pixels for the longer side. epochs, or steps:
    length of the training. batch_size: images of a step. optimizer: "sgd" with momentum 0.9, or
    "adamw". clip: gradient clipping norm. warmup: steps of a linear warmup, a tenth of all at most.
    drops: shares of the steps after which the rate falls to a tenth. channels: of the pyramid.
    hidden: units of the box head. anchors: sides, as multiples of a map's stride. pooled: whether
    the pyramid ends in one more map, of half the last one's size. regions: sampled of each image
    for the heads. proposals: looked at on each map, in training and in the test. kept: of these,
    for an image. workers: data-loading workers. name: in the list of settings.
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
    channels: int = 256
    hidden: int = 1024
    anchors: tuple[float, ...] = (8,)
    pooled: bool = True
    regions: int = 512
    proposals: tuple[int, int] = (2000, 1000)
    kept: tuple[int, int] = (1000, 1000)
    workers: int = 8
    name: str = ""


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
    # LORAC, Section 6.1: FPN with batch normalisation, batches of 16, 90 000 steps, the rest as
    # MoCo (He et al. 2020, Section 4.2 and Detectron2's R50-FPN at its 1x schedule).
    "lorac": DetectorSettings("fpn", SIDES, 1333, batch_size=16, lr=0.02, steps=90_000),
    # SCE, Table 11 and its text: Mask R-CNN on C4 by the protocol of Truncated-Triplet, which is
    # MoCo's (coco_R_50_C4_2x.yaml): the table's first row is that of MoCo's 2x schedule, 180 000
    # steps.
    "sce": DetectorSettings(
        "c4",
        SIDES,
        1333,
        batch_size=16,
        lr=0.02,
        steps=180_000,
        anchors=(2, 4, 8, 16, 32),
        proposals=(12_000, 6000),
        kept=(2000, 1000),
    ),
    # For a CPU: a small pyramid, few regions, all stages trained; docs/detection.md has what it
    # costs and gives.
    "small": DetectorSettings(
        "fpn", channels=64, hidden=256, anchors=(4, 8), pooled=False, regions=64, **ON_A_CPU
    ),
    "small-c4": DetectorSettings("c4", anchors=(2, 4, 8, 16), regions=32, **ON_A_CPU),
}


def detector_settings(name: str, epochs: float | None = None) -> DetectorSettings:
    """Return settings by name, of another length where `epochs` are given; ValueError for an
    unknown name.
    """
    check_known("detector", name, DETECTORS)
    settings = replace(DETECTORS[name], name=name)
    if epochs is None:
        return settings
    if not 0 < epochs < math.inf:
        raise ValueError(f"`epochs` must be a finite number above 0, not {epochs}")
    return replace(settings, epochs=epochs, steps=None)


class FeatureMaps(nn.Module):
    """A backbone that gives its feature maps, largest first: images [batch, c, h, w] -> list of
    [batch, dim, h', w'].

    One map for each stride, the deepest, and of those the last four. `strides` and `channels` list
    what they are. The weights are the backbone's own, not a copy. in_chans: channels of the images.
    Raises ValueError for a backbone without maps at two strides or more, such as a vision
    transformer.
    """

    def __init__(self, backbone: Backbone, in_chans: int) -> None:
        super().__init__()
        self.backbone = backbone
        net: Any = backbone.net
        if not hasattr(net, "forward_intermediates"):
            raise ValueError(f"encoder {backbone.name!r} gives no feature maps: {HINT}")
        strides, widths = (
            [stage[key] for stage in net.feature_info] for key in ("reduction", "num_chs")
        )
        self.taken = [
            strides.index(stride) + strides.count(stride) - 1 for stride in sorted(set(strides))
        ][-4:]
        if len(self.taken) < 2:
            raise ValueError(f"encoder {backbone.name!r} has feature maps of one size only: {HINT}")
        self.strides, self.channels = (
            [strides[i] for i in self.taken],
            [widths[i] for i in self.taken],
        )
        with (
            raise_as_value_error(
                f"encoder {backbone.name!r} takes no images of other sizes ({HINT})"
            ),
            torch.no_grad(),
        ):
            training = net.training
            self.eval()(torch.zeros(1, in_chans, PROBE, PROBE))
            self.train(training)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> list[Tensor]:
        """Return the maps."""
        net: Any = self.backbone.net
        return list(
            net.forward_intermediates(
                images, indices=self.taken, intermediates_only=True, stop_early=True
            )
        )

    def split_last(self) -> tuple[nn.Module, int]:
        """Let the maps end before the last stage, and return that stage with its number of output
        channels.

        As C4 detectors do, which apply it to each region. Raises ValueError but for the small net
        and timm's ResNets.
        """
        net = self.backbone.net
        if not isinstance(net, SmallNet) and not hasattr(net, "layer4"):
            raise ValueError(
                f"a C4 detector takes small or a ResNet, not {self.backbone.name!r}: use "
                f"one with FPN"
            )
        stage: Any = net.blocks[-1] if isinstance(net, SmallNet) else net.layer4
        outputs = self.channels[-1]
        self.taken, self.strides, self.channels = (
            self.taken[:-1],
            self.strides[:-1],
            self.channels[:-1],
        )
        return stage, outputs


class Neck(nn.Module):
    """Backbone in the sense of torchvision: the maps of the trunk, through a pyramid where there is
    one.
    """

    def __init__(
        self, maps: FeatureMaps, pyramid: FeaturePyramidNetwork | None, out_channels: int
    ) -> None:
        super().__init__()
        self.maps, self.pyramid, self.out_channels = maps, pyramid, out_channels

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> dict[str, Tensor]:
        """Return the maps by name, largest first: "0", "1", ..."""
        maps = self.maps(images)
        if self.pyramid is None:
            return {"0": maps[-1]}
        return self.pyramid({str(level): feature_map for level, feature_map in enumerate(maps)})


class LastStage(nn.Module):
    """The last stage of a net on regions; `flat` for the box head: the mean over each region."""

    def __init__(self, stage: nn.Module, norm: nn.Module, flat: bool) -> None:
        super().__init__()
        self.stage, self.norm, self.flat = stage, norm, flat

    def forward(self, regions: Float[Tensor, "regions channels side side"]) -> Tensor:
        """Apply the stage, and the normalisation that is new behind it."""
        out = self.norm(self.stage(regions))
        return (
            out.mean((2, 3)) if self.flat else out.contiguous()
        )  # the order that torchvision's losses take


def build_detector(
    encoder: Encoder,
    settings: DetectorSettings,
    task: str,
    num_classes: int,
    num_keypoints: int = 0,
) -> GeneralizedRCNN:
    """Build a detector on a copy of the encoder's backbone; the rest has random weights (torch's
    global generator).

    It takes a list of images [channels, height, width] in 0..1, and in training targets in
    torchvision's form. task: "detect", "segment" or "keypoints". num_classes: without the
    background. num_keypoints: of an object, for that task. Raises ValueError for an encoder of
    other channels than 1 or 3, without feature maps, or without the stages that the settings take.
    """
    if (channels := encoder.channels) not in (1, 3):
        raise ValueError(f"detectors take grayscale images or colour, not {channels} channels")
    backbone = copy.deepcopy(encoder.backbone)
    backbone.requires_grad_(True)
    maps, wide = FeatureMaps(backbone, encoder.channels), settings.channels
    trunk = _c4(maps) if settings.neck == "c4" else _pyramid(maps, settings)
    neck, strides, into_heads = trunk.neck, trunk.strides, trunk.into_heads
    levels = [*strides, 2 * strides[-1]] if settings.neck == "fpn" and settings.pooled else strides
    sizes = tuple(tuple(round(stride * anchor) for anchor in settings.anchors) for stride in levels)
    common: dict[str, Any] = dict(  # the same for all three kinds
        min_size=settings.sides,
        max_size=settings.longest,
        image_mean=encoder.mean.flatten().tolist(),
        image_std=encoder.std.flatten().tolist(),
        size_divisible=max(32, maps.strides[-1]),  # so that anchors and maps agree where they are
        rpn_anchor_generator=AnchorGenerator(sizes, (RATIOS,) * len(sizes)),
        rpn_pre_nms_top_n_train=settings.proposals[0],
        rpn_post_nms_top_n_train=settings.kept[0],
        rpn_pre_nms_top_n_test=settings.proposals[1],
        rpn_post_nms_top_n_test=settings.kept[1],
        rpn_batch_size_per_image=min(256, 2 * settings.regions),
        box_roi_pool=_pool(strides, trunk.side),
        box_head=trunk.box_head,
        box_predictor=FastRCNNPredictor(trunk.box_features, num_classes + 1),
        box_batch_size_per_image=settings.regions,
    )
    if task == "segment":
        layers = (
            MaskRCNNHeads(trunk.head_channels, (wide,) * 4, 1) if into_heads is None else into_heads
        )
        predictor = MaskRCNNPredictor(
            wide if into_heads is None else trunk.head_channels, wide, num_classes + 1
        )
        return MaskRCNN(
            neck,
            mask_roi_pool=_pool(strides, 14),
            mask_head=layers,
            mask_predictor=predictor,
            **common,
        )
    if task == "keypoints":
        narrow = KeypointRCNNHeads(trunk.head_channels, (2 * wide,) * 8)
        layers = narrow if into_heads is None else nn.Sequential(into_heads, narrow)
        return KeypointRCNN(
            neck,
            num_keypoints=None,
            keypoint_roi_pool=_pool(strides, 14),
            keypoint_head=layers,
            keypoint_predictor=KeypointRCNNPredictor(2 * wide, num_keypoints),
            **common,
        )
    return FasterRCNN(neck, **common)


class _Trunk(NamedTuple):
    """The trunk with its neck, and the heads of boxes.

    strides: of the maps that regions are pooled from; side: of a pooled region. into_heads: stands
    before the other heads, which take `head_channels`.
    """

    neck: Neck
    strides: list[int]
    side: int
    box_head: nn.Module
    box_features: int
    head_channels: int
    into_heads: nn.Module | None = None


def _c4(maps: FeatureMaps) -> _Trunk:
    """Apply the last stage of the net to each region, instead of to the image."""
    stage, outputs = maps.split_last()
    norm = nn.BatchNorm2d(outputs)
    neck = Neck(maps, None, maps.channels[-1])
    box_head, into_heads = (LastStage(stage, norm, flat=flat) for flat in (True, False))
    return _Trunk(neck, [maps.strides[-1]], 14, box_head, outputs, outputs, into_heads)


def _pyramid(maps: FeatureMaps, settings: DetectorSettings) -> _Trunk:
    """Put a feature pyramid with batch normalisation on the maps."""
    pooled, wide = LastLevelMaxPool() if settings.pooled else None, settings.channels
    pyramid = FeaturePyramidNetwork(maps.channels, wide, pooled, norm_layer=nn.BatchNorm2d)
    neck, side = Neck(maps, pyramid, wide), 7
    box_head = TwoMLPHead(wide * side**2, settings.hidden)
    return _Trunk(neck, maps.strides, side, box_head, settings.hidden, wide)


def channels_of(detector: GeneralizedRCNN) -> int:
    """Return the channels of the images that a detector takes."""
    return len(detector.transform.image_mean)


def _pool(strides: list[int], side: int) -> MultiScaleRoIAlign:
    """Pool regions to side x side from the maps of these strides.

    torchvision would take each stride for the nearest power of two; the small net's can be others.
    A region with a side of 14 strides is pooled from the map of that stride, as in the paper of the
    pyramid (224 px on stride 16).
    """
    pool = MultiScaleRoIAlign([str(level) for level in range(len(strides))], side, sampling_ratio=2)
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = initLevelMapper(
        0, len(strides) - 1, canonical_scale=14 * strides[0], canonical_level=0
    )
    return pool
