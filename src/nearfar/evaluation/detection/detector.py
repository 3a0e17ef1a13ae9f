"""torchvision's Faster, Mask and Keypoint R-CNN on the feature maps of an encoder."""

from __future__ import annotations

import copy
from collections import OrderedDict

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

from nearfar.evaluation.detection.settings import DetectorSettings
from nearfar.networks import Encoder, FeatureMaps

TASKS = {"detect": "bbox", "segment": "segm", "keypoints": "keypoints"}
"""What can be found, and what COCO's evaluation calls it."""
RATIOS = (0.5, 1.0, 2.0)


class Neck(nn.Module):
    """What torchvision calls the backbone: the maps of the trunk, through a pyramid where there is one."""

    def __init__(self, maps: FeatureMaps, pyramid: FeaturePyramidNetwork | None, out_channels: int) -> None:
        super().__init__()
        self.maps, self.pyramid, self.out_channels = maps, pyramid, out_channels

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> dict[str, Tensor]:
        """Return the maps by name, largest first: "0", "1", ..."""
        maps = self.maps(images)
        if self.pyramid is None:
            return {"0": maps[-1]}
        return self.pyramid(OrderedDict((str(level), one) for level, one in enumerate(maps)))


class LastStage(nn.Module):
    """The last stage of a net on regions; `flat` for the box head: the mean over each region."""

    def __init__(self, stage: nn.Module, norm: nn.Module, flat: bool) -> None:
        super().__init__()
        self.stage, self.norm, self.flat = stage, norm, flat

    def forward(self, regions: Float[Tensor, "regions channels side side"]) -> Tensor:
        """Apply the stage, and the normalisation that is new behind it."""
        out = self.norm(self.stage(regions))
        return out.mean((2, 3)) if self.flat else out.contiguous()  # the order that torchvision's losses take


def build_detector(
    encoder: Encoder, settings: DetectorSettings, task: str, num_classes: int, num_keypoints: int = 0
) -> GeneralizedRCNN:
    """Build a detector on a copy of the encoder's backbone; the rest has random weights (torch's global generator).

    It takes a list of images [channels, height, width] in 0..1, and in training targets in torchvision's form. task:
    "detect", "segment" or "keypoints". num_classes: without the background. num_keypoints: of an object, for that task.
    Raises ValueError for an encoder of other channels than 1 or 3, without feature maps, or without the stages that
    the settings take.
    """
    if encoder.channels not in (1, 3):
        raise ValueError(f"detectors take grey images or colour, not {encoder.channels} channels")
    backbone = copy.deepcopy(encoder.backbone)
    backbone.requires_grad_(True)
    backbone.freeze(settings.frozen)
    maps = FeatureMaps(backbone, encoder.channels)
    if settings.neck == "c4":
        stage, outputs = maps.split_last()
        norm = nn.BatchNorm2d(outputs)
        neck, strides = Neck(maps, None, maps.channels[-1]), [maps.strides[-1]]
        side, box_head = 14, LastStage(stage, norm, flat=True)
        into_heads: nn.Module | None = LastStage(stage, norm, flat=False)
        head_channels = box_features = outputs
    else:
        pooled = LastLevelMaxPool() if settings.pooled else None
        channels = settings.channels
        pyramid = FeaturePyramidNetwork(maps.channels, channels, pooled, norm_layer=nn.BatchNorm2d)
        neck, strides, side = Neck(maps, pyramid, channels), maps.strides, 7
        box_head, into_heads = TwoMLPHead(channels * side**2, settings.hidden), None
        head_channels, box_features = channels, settings.hidden
    levels = [*strides, 2 * strides[-1]] if settings.neck == "fpn" and settings.pooled else strides
    sizes = tuple(tuple(round(stride * anchor) for anchor in settings.anchors) for stride in levels)
    common = dict(
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
        box_roi_pool=_pool(strides, side),
        box_head=box_head,
        box_predictor=FastRCNNPredictor(box_features, num_classes + 1),
        box_batch_size_per_image=settings.regions,
    )
    wide = settings.channels
    if task == "segment":
        layers = MaskRCNNHeads(head_channels, (wide,) * 4, 1) if into_heads is None else into_heads
        predictor = MaskRCNNPredictor(wide if into_heads is None else head_channels, wide, num_classes + 1)
        pool = _pool(strides, 14)
        return MaskRCNN(neck, mask_roi_pool=pool, mask_head=layers, mask_predictor=predictor, **common)
    if task == "keypoints":
        narrow: nn.Module = KeypointRCNNHeads(head_channels, (2 * wide,) * 8)
        layers = narrow if into_heads is None else nn.Sequential(into_heads, narrow)
        predictor = KeypointRCNNPredictor(2 * wide, num_keypoints)
        pool = _pool(strides, 14)
        heads = dict(keypoint_roi_pool=pool, keypoint_head=layers, keypoint_predictor=predictor)
        return KeypointRCNN(neck, num_keypoints=None, **heads, **common)
    return FasterRCNN(neck, **common)


def _pool(strides: list[int], side: int) -> MultiScaleRoIAlign:
    """Pool regions to side x side from the maps of these strides.

    torchvision would take each stride for the nearest power of two; the small net's can be others. A region with a
    side of 14 strides is pooled from the map of that stride, as in the paper of the pyramid (224 px on stride 16).
    """
    pool = MultiScaleRoIAlign([str(level) for level in range(len(strides))], side, sampling_ratio=2)
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = initLevelMapper(0, len(strides) - 1, canonical_scale=14 * strides[0], canonical_level=0)
    return pool
