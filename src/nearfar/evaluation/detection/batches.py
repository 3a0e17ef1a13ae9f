"""Annotated images as torchvision's detectors take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nearfar.data.annotations import AnnotatedImage, AnnotatedImages
from nearfar.data.decode import formats, to_array, to_pil
from nearfar.data.run_lengths import to_mask
from nearfar.messages import one_line

Target = dict[str, Any]


class DetectionSet(Dataset):
    """Annotated images, read as they are asked for: (image [channels, height, width] in 0..1, target).

    channels: 1 or 3. masks: whether the targets hold them. Raises ValueError, naming the file, for an image that cannot
    be read or is of another size than the annotations say.
    """

    def __init__(self, annotated: AnnotatedImages, channels: int, masks: bool = False) -> None:
        self.images, self.channels, self.masks = annotated.images, channels, masks

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, Target]:
        one = self.images[row]
        pixels = read_pixels(one, self.channels)  # first: it finds out whether the size is right
        kept = ~one.crowd
        target: Target = {"boxes": torch.from_numpy(one.boxes[kept]), "labels": torch.from_numpy(one.labels[kept])}
        if self.masks:
            drawn = [to_mask(one.segmentations[i], one.width, one.height) for i in np.flatnonzero(kept)]
            empty = np.zeros((0, one.height, one.width), np.uint8)
            target["masks"] = torch.from_numpy(np.stack(drawn) if drawn else empty)
        if one.keypoints is not None:
            target["keypoints"] = torch.from_numpy(one.keypoints[kept])
        return pixels, target


def check_files(annotated: AnnotatedImages) -> None:
    """Read the head of every image, so that training does not come upon a wrong one; raises as `DetectionSet` does."""
    for one in annotated.images:
        with one_line(f"cannot read {one.path}"), Image.open(one.path, formats=formats()) as image:
            size = image.size
        if sorted(size) != sorted((one.width, one.height)):  # it may lie on its side
            raise ValueError(_other_size(one, size))


def _other_size(one: AnnotatedImage, size: tuple[int, int]) -> str:
    said = f"the annotations say {one.width} x {one.height}"
    return f"{one.path} has {size[0]} x {size[1]} pixels, {said}"


def read_pixels(one: AnnotatedImage, channels: int) -> Float[Tensor, "channels height width"]:
    """Read an image whole, in 0..1."""
    with one_line(f"cannot read {one.path}"):
        image, _ = to_pil(str(one.path), at_least=max(one.width, one.height))
    if image.size != (one.width, one.height):
        raise ValueError(_other_size(one, image.size))
    image = image.convert("L") if channels == 1 else image
    return torch.from_numpy(np.array(to_array(image, channels))) / 255


def flipped(image: Tensor, target: Target, swaps: list[int]) -> tuple[Tensor, Target]:
    """Flip an image left to right with its target. swaps: for each keypoint the one that stands in its place then."""
    width = image.shape[-1]
    boxes = target["boxes"]
    out = {**target, "boxes": torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)}
    if "masks" in target:
        out["masks"] = target["masks"].flip(-1)
    if "keypoints" in target:
        points = target["keypoints"][:, swaps].clone()
        points[..., 0] = width - points[..., 0]
        points[points[..., 2] == 0] = 0
        out["keypoints"] = points
    return image.flip(-1), out


def mirrored(names: tuple[str, ...]) -> list[int]:
    """For each keypoint the number of the one that it becomes in the mirror: left_eye for right_eye."""
    other = [name.replace("left", "\0").replace("right", "left").replace("\0", "right") for name in names]
    return [names.index(name) if name in names else i for i, name in enumerate(other)]
