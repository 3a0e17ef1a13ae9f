"""Several encoders side by side as one encoder, which saves, loads and exports as any other."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import hypot, isfinite
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from nearfar.isolation import isolated
from nearfar.messages import check_range
from nearfar.networks.backbone import Architecture, Backbone, build_backbone
from nearfar.networks.encoder import Encoder, are_shares, normalised
from nearfar.networks.pretrained import named_weights
from nearfar.networks.simple_features import colour_histogram, hog, raw_pixels
from nearfar.networks.timm_entries import JOINED
from nearfar.progress import log
from nearfar.views import resize_square, with_channels

SIMPLE = {"edges": hog, "colours": colour_histogram, "pixels": raw_pixels}
"""Features that need no training, by the names of members."""
SIDE = 128  # pixels: what pretrained weights see, and a joined encoder without another size
LARGEST_MEMBER, MOST_MEMBERS = (
    2**12,
    64,
)  # pixels of a side; members. Files that say more are refused

default_cfgs = generate_default_cfgs(
    {f"nearfar_{JOINED}": dict(num_classes=0, first_conv=None, classifier="fc")}
)


class Simple(nn.Module):
    """A simple feature as a net without weights; name: one of `SIMPLE`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the feature of images in 0..1."""
        return SIMPLE[self.name](images)


class Member(nn.Module):
    """A net with its own preprocessing: images in 0..1 -> rows of length `weight`.

    architecture: the net's form, None for a user's own module. image_size: pixels of a side, to
    which images are resized. mean, std: one number for each channel of the net, in units of 0..1;
    grayscale images are repeated for a net of three. Raises ValueError for sizes and numbers out of
    range.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        architecture: Architecture | None,
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        weight: float,
    ) -> None:
        super().__init__()
        if type(image_size) is not int or not 1 <= image_size <= LARGEST_MEMBER:
            raise ValueError(
                f"a member's image_size must be 1 to {LARGEST_MEMBER}, not {image_size!r:.40}"
            )
        mean, std = [float(number) for number in mean], [float(number) for number in std]
        if not mean or len(mean) != len(std) or not all(map(isfinite, mean + std)) or min(std) <= 0:
            raise ValueError(
                f"a member needs as many means as stds (above 0), got {mean!s:.60}, {std!s:.60}"
            )
        if not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
            raise ValueError(f"the weight of a member must be above 0, not {weight!r:.40}")
        self.net, self.architecture = net, architecture
        self.image_size, self.weight = image_size, float(weight)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.takes_shares = are_shares(mean, std)

    @classmethod
    def built(
        cls,
        name: str,
        *,
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        weight: float,
        arguments: Mapping[str, Any] | None = None,
        small_stem: bool = False,
    ) -> Member:
        """Build a member with random weights from plain values, as `described` returns them.

        Raises ValueError for a name that is neither in `SIMPLE` nor a net of ours or timm's.
        """
        form = Architecture(str(name), dict(arguments or {}), bool(small_stem))
        if name == JOINED:
            raise ValueError("a member cannot be joined itself")
        net = Simple(name) if name in SIMPLE else form.create()
        return cls(net, form, image_size, mean, std, weight)

    @property
    def name(self) -> str:
        """Its architecture's name, or that of a user's class."""
        return type(self.net).__name__ if self.architecture is None else self.architecture.name

    def described(self) -> dict[str, Any] | None:
        """Return the plain values that `built` takes; None for a user's own module."""
        if self.architecture is None:
            return None
        return {
            "name": self.architecture.name,
            "arguments": self.architecture.arguments,
            "small_stem": self.architecture.small_stem,
            "image_size": self.image_size,
            "mean": self.mean.flatten().tolist(),
            "std": self.std.flatten().tolist(),
            "weight": self.weight,
        }

    def forward(
        self, images: Float[Tensor, "batch channels side side"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the rows; of length 0 where the net gives zeros."""
        images = resize_square(with_channels(images, len(self.mean)), self.image_size)
        images = normalised(images, self.mean, self.std, self.takes_shares)
        return self.weight * F.normalize(self.net(images), dim=1)


class Joined(nn.Module):
    """Encoders side by side, in the form of timm's models: images in 0..1 [batch, in_chans, side,
    side] -> [batch, num_features], the members' rows one after the other; or the classes.

    members: at least one; plain values, as `Member.described` returns them, become members with
    random weights. num_classes: of a classifier as timm's models have it; none for 0 classes.
    Raises ValueError for members that cannot be built.

    >>> halves = dict(image_size=32, mean=[0.0] * 3, std=[1.0] * 3, weight=0.5)
    >>> net = Joined([{"name": "edges", **halves}, {"name": "colours", **halves}])
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 836])
    """

    def __init__(
        self,
        members: Sequence[Member | Mapping[str, Any]] = (),
        in_chans: int = 3,
        num_classes: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(members, Sequence) or not 1 <= len(members) <= MOST_MEMBERS:
            raise ValueError(f"a joined encoder has 1 to {MOST_MEMBERS} members (nearfar.join)")
        self.members = nn.ModuleList(
            member if isinstance(member, Member) else Member.built(**member) for member in members
        )
        self.in_chans = in_chans
        self.reset_classifier(num_classes)

    @property
    def num_features(self) -> int:
        """Features of an image, found out with a blank one."""
        device = next(self.buffers()).device
        modes = [(module, module.training) for module in self.modules()]
        try:
            with torch.no_grad():
                blank = torch.zeros(1, self.in_chans, SIDE, SIDE, device=device)
                return self.eval().forward_features(blank).shape[1]
        finally:
            for module, mode in modes:
                module.training = mode

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put a new last layer in; `global_pool` changes nothing."""
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward_features(
        self, images: Float[Tensor, "batch channels side side"]
    ) -> Float[Tensor, "batch features"]:
        """Return the members' rows side by side."""
        return torch.cat([member(images) for member in self.members], 1)

    def forward(
        self, images: Float[Tensor, "batch channels side side"]
    ) -> Float[Tensor, "batch features"]:
        """Return the features, classified where there are classes."""
        return self.fc(self.forward_features(images))


@register_model
def nearfar_joined(pretrained: bool = False, **options: Any) -> nn.Module:
    """Encoders side by side; takes members, in_chans and num_classes, see `Joined`."""
    options.pop("global_pool", None)
    return build_model_with_cfg(Joined, f"nearfar_{JOINED}", pretrained, **options)


def named_encoder(
    name: str,
    image_size: int,
    channels: int,
    moments: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Encoder:
    """Build an encoder by the name of its weights, as they are, for images of a size.

    name: "pretrained", "nearfar", a timm model, "hf:owner/name", a folder or a file. moments: mean
    and std of images whose weights do not say theirs. Raises ValueError without these, and all that
    `find_weights` and `build_backbone` raise.
    """
    weights = named_weights(name)
    stated = weights.moments(channels) or moments
    if stated is None:
        raise ValueError(f"the weights of {name} do not say how images are normalised")
    backbone = build_backbone(
        weights.encoder or name,
        image_size=image_size,
        channels=channels,
        init=weights.source,
    )
    return Encoder(backbone, image_size, channels, *stated).eval()


@isolated()
def join_encoders(
    members: Sequence[tuple[Encoder | str, float]] | Sequence[tuple[str, float]],
    image_size: int | None = None,
    channels: int | None = None,
) -> Encoder:
    """Put encoders side by side, each with its weight; see `nearfar.join`."""
    check_range("image_size", image_size, 1, LARGEST_MEMBER)
    check_range("channels", channels, 1)
    encoders = [encoder for encoder, _ in members if isinstance(encoder, Encoder)]
    taken = {encoder.channels for encoder in encoders}
    channels = min(taken, default=3) if channels is None else channels
    if not taken <= {channels} | ({3} if channels == 1 else set()):  # gray is repeated for colour
        raise ValueError(
            f"the encoders are for images of {' and '.join(map(str, sorted(taken)))} channels, "
            f"and cannot be joined for {channels}"
        )
    if channels == 1 and len(taken) > 1:
        log.warning(
            "one of the encoders is for grayscale: colour images become gray for all of them"
        )
    ranges = [list(encoder.value_range) for encoder in encoders if encoder.value_range is not None]
    if any(value_range != ranges[0] for value_range in ranges):
        raise ValueError(f"the encoders have different value ranges: {ranges[0]} and {ranges[-1]}")
    encoders_or_names = [
        (
            named_encoder(member, SIDE, channels)
            if isinstance(member, str) and member not in SIMPLE
            else member
        )
        for member, _ in members
    ]
    size = image_size or max(
        [encoder.image_size for encoder in encoders_or_names if isinstance(encoder, Encoder)]
        or [SIDE]
    )
    parts: list[Member] = []
    for member, (_, weight) in zip(encoders_or_names, members, strict=True):
        parts += _members(member, weight, size, channels)
    plain = [part.described() for part in parts]
    if all(plain):
        architecture = Architecture(JOINED, {"members": plain, "in_chans": channels})
        backbone = architecture.build(size)
        backbone.net.load_state_dict(Joined(parts, channels).state_dict())
    else:
        net = Joined(parts, channels)
        backbone = Backbone(net, None, net.num_features)
    moments = [0.0] * channels, [1.0] * channels
    return Encoder(backbone, size, channels, *moments, ranges[0] if ranges else None).eval()


def first_encoder(encoder: Encoder) -> Encoder:
    """Return the first member of a joined encoder as an encoder, which shares its weights; any
    other as it is.

    What a run saves has the net that was trained in the first place.

    >>> joined = nearfar.join(["nearfar", "edges"])
    >>> joined.num_features > first_encoder(joined).num_features
    True
    """
    net = encoder.backbone.net
    if not isinstance(net, Joined):
        return encoder
    first = net.members[0]
    assert isinstance(first, Member)
    with torch.no_grad():
        blank = first.mean.new_zeros(1, len(first.mean), first.image_size, first.image_size)
        width = first.net.eval()(blank).shape[1]
    mean, std = first.mean.flatten().tolist(), first.std.flatten().tolist()
    backbone = Backbone(first.net, first.architecture, width)
    shape = first.image_size, len(first.mean)
    return Encoder(backbone, *shape, mean, std, encoder.value_range).eval()


def _members(encoder: Encoder | str, weight: float, size: int, channels: int) -> list[Member]:
    """The members of one encoder or simple feature; those of a joined encoder get its weight
    together.
    """
    if isinstance(encoder, str):
        mean, std = [0.0] * channels, [1.0] * channels
        return [Member.built(encoder, image_size=size, mean=mean, std=std, weight=weight)]
    net = copy.deepcopy(encoder.backbone.net).cpu()
    if not isinstance(net, Joined):
        mean, std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
        return [Member(net, encoder.backbone.architecture, encoder.image_size, mean, std, weight)]
    members = [member for member in net.members if isinstance(member, Member)]
    whole = hypot(*(member.weight for member in members))
    for member in members:
        member.weight *= weight / whole
    return members
