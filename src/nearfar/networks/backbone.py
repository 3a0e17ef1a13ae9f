"""Backbones by name, with a stem that suits the image size."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.networks.pretrained import load_pretrained
from nearfar.networks.small import SmallNet
from nearfar.networks.stem import shrink_stem, stem_of

log = logging.getLogger("nearfar")

SMALL_STEM_BELOW = 64  # pixels


@dataclass(frozen=True)
class Architecture:
    """What it takes to build a net again, without weights.

    `name` is "small" or timm's, `arguments` those of the net's constructor. `small_stem`: the first convolution is 3x3
    with stride 1 and no max-pool follows; timm has no argument for that, and all but that convolution fits its net.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    small_stem: bool = False

    def build(self, image_size: int) -> Backbone:
        """Build the backbone with random weights; raises ValueError for images that it cannot take."""
        return _finished(_create(self.name, self.arguments), self, image_size)


class Backbone(nn.Module):
    """A net without classifier: normalised images [batch, channels, size, size] -> features [batch, num_features].

    `net` is timm's own module or a SmallNet, `architecture` what it takes to build it again. Convolution weights are
    kept in channels-last order: the maps then follow, which takes a third less time on a CPU and is as good on a GPU.
    """

    def __init__(self, net: nn.Module, architecture: Architecture, num_features: int) -> None:
        super().__init__()
        self.net = net.to(memory_format=torch.channels_last)
        self.architecture, self.num_features = architecture, num_features

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """Apply the net."""
        return self.net(images)


def build_backbone(name: str, *, image_size: int, channels: int, pretrained_file: str | Path | None = None) -> Backbone:
    """Build a backbone by name.

    name: "small" or any timm backbone. image_size: pixels; below 64 px a ResNet-like net gets a 3x3 stem with stride 1
    and no max-pool (SimCLR, Appendix B.9), and a vision transformer is built for the size. The choice is logged.
    channels: of the images. pretrained_file: starting weights, see `load_pretrained`; never from the network.
    Raises ValueError for an unknown name or an image size that the backbone cannot take, FileNotFoundError for a
    missing file.
    """
    if image_size < 1 or channels < 1:
        raise ValueError(f"image size and channels must be 1 or more, got {image_size} px and {channels} channels")
    _check_name(name)
    net, arguments = _fitted(name, image_size, channels)
    small_stem = image_size < SMALL_STEM_BELOW and stem_of(net) is not None
    backbone = _finished(net, Architecture(name, arguments, small_stem), image_size)
    log.info("%s: %d features, %s", name, backbone.num_features, _choice(backbone, image_size))
    if pretrained_file is not None:
        log.info(load_pretrained(backbone.net, pretrained_file))
    return backbone


def _check_name(name: str) -> None:
    if name != "small" and not timm.is_model(name):
        close = difflib.get_close_matches(name, ["small", *timm.list_models()], n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "use small or a timm backbone such as resnet18"
        raise ValueError(f"unknown encoder {name!r}: {hint}")


def _fitted(name: str, image_size: int, channels: int) -> tuple[nn.Module, dict[str, Any]]:
    """Create a net with those arguments for the image size that its constructor knows."""
    sized: dict[str, Any] = {"img_size": image_size}
    choices = [{**sized, "dynamic_img_size": True}, sized, {}]  # dynamic: crops of other sizes are taken too
    for sizes in [{"image_size": image_size}] if name == "small" else choices:
        arguments = {"in_chans": channels, **sizes}
        try:
            return _create(name, arguments), arguments
        except TypeError as error:
            refused = error
    raise ValueError(f"encoder {name!r} cannot be built for {channels} channels: {refused}")


def _create(name: str, arguments: dict[str, Any]) -> nn.Module:
    _check_name(name)
    if name == "small":
        return SmallNet(**arguments)
    try:
        return timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise ValueError(f"encoder {name!r} cannot be built with {arguments}: {_first_line(error)}") from error


def _finished(net: nn.Module, architecture: Architecture, image_size: int) -> Backbone:
    """Adapt the stem, and try the net on a blank image to see how many features it gives."""
    if architecture.small_stem:
        shrink_stem(net)
    net.eval()
    try:
        with torch.no_grad():
            out = net(torch.zeros(1, architecture.arguments["in_chans"], image_size, image_size))
    except Exception as error:  # a net of someone else's can fail in any way
        raise ValueError(
            f"encoder {architecture.name!r} cannot take images of {image_size} px: {_first_line(error)}"
        ) from error
    if not isinstance(out, Tensor) or out.ndim != 2:
        raise ValueError(f"encoder {architecture.name!r} does not give one row of features for an image")
    return Backbone(net.train(), architecture, out.shape[1])


def _choice(backbone: Backbone, image_size: int) -> str:
    if backbone.architecture.small_stem:
        return f"3x3 stem with stride 1 and no max-pool, as images of {image_size} px are below {SMALL_STEM_BELOW} px"
    if isinstance(backbone.net, SmallNet):
        stride = backbone.net.conv.stride[0]
        return f"a stem of stride {stride} without pooling, {len(backbone.net.blocks)} blocks for {image_size} px"
    if "img_size" in backbone.architecture.arguments:
        return f"built for images of {image_size} px"
    return f"its own stem, for images of {image_size} px"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
