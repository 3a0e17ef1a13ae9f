"""Encoders for data without a run: weights by name, and the best features that need no training."""

from __future__ import annotations

from typing import Any

from torch import nn

from nearfar.data import Images, scan
from nearfar.data.images import divisors
from nearfar.data.table import most_common_side
from nearfar.neighbours.duplicates import MANY
from nearfar.networks import Encoder, join_encoders, named_encoder
from nearfar.networks.backbone import own_backbone
from nearfar.networks.joined import SIDE
from nearfar.networks.pretrained import INSTALL, OWN, PRETRAINED, installed_weights
from nearfar.progress import log

COPIES = {"colours": 1.0, "edges": 1.5}
"""Weights of the features that find the most copies, of those that need no training
(docs/neighbours.md)."""
BESIDE = {"edges": 0.5, "colours": 0.5}
"""Weights of simple features beside a pretrained net of weight 1 (docs/starting-weights.md)."""
BESIDE_GRAY = {"edges": 1.0, "colours": 0.25}
"""The same for grayscale images, where edges tell more and brightness less (docs/kinds.md)."""
SIDE_OF_MANY = 64  # pixels at which one walk opens more than `MANY` images
BETTER = (
    f"{INSTALL} brings better ones: kNN accuracy 87 % for 71 on photographs of flowers, "
    "82 for 52 on CIFAR-10 (docs/starting-weights.md)"
)


def encoder_for(images: Images, encoder: nn.Module | str | None) -> Encoder:
    """Return an encoder for images without a run, and log a line on which it is.

    encoder: weights by name, a user's module, or None for the best features at hand.
    """
    size, channels = images.image_size, images.channels
    moments = (images.mean, divisors(images.std))
    if encoder is None:
        net = untrained_encoder(size, channels)
    elif isinstance(encoder, str):
        net = named_encoder(encoder, size, channels, moments)
        log.info("features of %s, which has not seen these images", encoder)
    else:
        net = Encoder(own_backbone(encoder, size, channels), size, channels, *moments).eval()
    net.value_range = images.value_range
    return net


def encoder_for_copies(images: Images) -> Encoder:
    """Return colours and edges, which find the most copies without training."""
    net = join_encoders(list(COPIES.items()), images.image_size, images.channels)
    net.value_range = images.value_range
    log.info("features of colours and edges, which find the most copies")
    return net


def encoder_for_many(images: Images) -> Encoder:
    """Return colours and edges beside the net that comes with this package, which is faster than a
    pretrained one, and log a line.
    """
    if images.channels not in (1, 3):
        return encoder_for_copies(images)
    net = _with_own_net(images.image_size, images.channels)
    net.value_range = images.value_range
    log.info(
        "features of colours and edges and of the net that comes with nearfar, at %d pixels, since "
        "there are more than %d images: `encoder` chooses others",
        images.image_size,
        MANY,
    )
    return net


def _with_own_net(image_size: int, channels: int) -> Encoder:
    """Colours and edges and the net that comes with this package, of the same weight."""
    simple = join_encoders(list(COPIES.items()), image_size, channels)
    own = named_encoder(OWN, image_size, channels)
    return join_encoders([(simple, 1.0), (own, 1.0)], image_size, channels)


def untrained_encoder(image_size: int, channels: int) -> Encoder:
    """Return the best encoder that needs no training on the images, and log a line on which it is
    and what would be better.

    That of installed pretrained weights beside edges and colours, else of the net that comes with
    this package; colours and edges alone for images that are neither grayscale nor colour.
    """
    members: list[tuple[Encoder | str, float]] = list(COPIES.items())
    features = "features of colours and edges"
    if channels in (1, 3) and (weights := installed_weights()) is not None:
        beside = BESIDE_GRAY if channels == 1 else BESIDE
        members = [(PRETRAINED, 1.0), *beside.items()]
        features = f"features of {weights.encoder}, trained on ImageNet, beside edges and colours"
    elif channels in (1, 3):
        log.info("%s and of the net that comes with nearfar; %s", features, BETTER)
        return _with_own_net(image_size, channels)
    log.info("%s", features)
    return join_encoders(members, image_size, channels)


def pretrained_encoder(channels: int) -> Encoder | None:
    """Return the net of installed pretrained weights as it is; None without any, and for images
    that are neither grayscale nor colour.
    """
    if channels not in (1, 3) or installed_weights() is None:
        return None
    return named_encoder(PRETRAINED, SIDE, channels)


def size_untrained(source: Any, split: str | None = None, fewer_pixels: bool = False) -> int | None:
    """Return the size at which images are opened for features at hand: their own if it is small;
    None: as they are. fewer_pixels: of more than 20 000 images at most 64 pixels.
    """
    table = scan(source, split, digests=False)
    if table is None:
        return None
    most = SIDE_OF_MANY if fewer_pixels and len(table) > MANY else SIDE
    return min(most_common_side(table), most)
