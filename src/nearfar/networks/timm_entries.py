"""Our nets and small stems among timm's models: importing this file registers them with `timm.create_model`."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import timm
from jaxtyping import Float
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from nearfar.networks.small import OWN_NETS, SmallNet
from nearfar.networks.stems import shrink_stem
from nearfar.networks.timm_names import ENTRIES, SMALL_STEM

_STRIDE = 4  # of the usual stem of a ResNet, which a small one lacks

default_cfgs = generate_default_cfgs(
    {
        **{name: dict(num_classes=0, input_size=(3, 224, 224), first_conv="conv", classifier="fc") for name in ENTRIES},
        SMALL_STEM: dict(num_classes=0, input_size=(3, 32, 32), crop_pct=1.0),
    }
)


class TimmSmallNet(SmallNet):
    """A SmallNet with what timm expects of its models: a classifier (none for 0 classes) and feature maps by number."""

    def __init__(
        self, image_size: int = 224, in_chans: int = 3, num_classes: int = 0, drop_rate: float = 0.0, **form: Any
    ) -> None:
        super().__init__(image_size, in_chans, **form)
        self.in_chans, self.head_hidden_size = in_chans, self.num_features
        self.reset_classifier(num_classes)
        self.drop = nn.Dropout(drop_rate)
        blocks: Any = self.blocks
        channels = [self.norm.num_features, *(block.norm2.num_features for block in blocks)]
        modules = ["norm", *(f"blocks.{i}" for i in range(len(blocks)))]
        self.feature_info = [
            dict(num_chs=count, reduction=self.conv.stride[0] * 2**i, module=module)
            for i, (count, module) in enumerate(zip(channels, modules, strict=True))
        ]

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put a new last layer in; features are always averaged, so that `global_pool` changes nothing."""
        self.num_classes = num_classes
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward_features(self, images: Float[Tensor, "batch c height width"]) -> Float[Tensor, "batch dim h w"]:
        """Return the last feature map."""
        return self.feature_maps(images)[-1]

    def forward_head(self, maps: Float[Tensor, "batch dim h w"], pre_logits: bool = False) -> Tensor:
        """Average a feature map and classify it."""
        features = self.drop(maps.mean((2, 3)))
        return features if pre_logits else self.fc(features)

    def forward(self, images: Float[Tensor, "batch c height width"]) -> Tensor:
        """Return the logits [batch, num_classes], or the features where there are no classes."""
        return self.fc(self.drop(super().forward(images)))

    def forward_intermediates(
        self, x: Tensor, indices: Any = None, intermediates_only: bool = False, **_: Any
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the feature maps with these numbers, all for None, after the last one unless `intermediates_only`."""
        maps = self.feature_maps(x)
        count = len(maps) if indices is None else indices
        chosen = maps[-count:] if isinstance(count, int) else [maps[i] for i in count]
        return chosen if intermediates_only else (maps[-1], chosen)


def _own(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    form = getattr(OWN_NETS[ENTRIES[name]], "keywords", {})
    options.pop("global_pool", None)
    maps = len(form.get("widths", inspect.signature(SmallNet).parameters["widths"].default))
    taken = dict(feature_cls="getter", out_indices=tuple(range(maps)))
    return build_model_with_cfg(partial(TimmSmallNet, **form), name, pretrained, feature_cfg=taken, **options)


@register_model
def nearfar_small(pretrained: bool = False, **options: Any) -> nn.Module:
    """Our encoder "small"; takes image_size, which decides the stem, in_chans and num_classes."""
    return _own("nearfar_small", pretrained, options)


@register_model
def nearfar_tiny(pretrained: bool = False, **options: Any) -> nn.Module:
    """Our encoder "tiny"; see `nearfar_small`."""
    return _own("nearfar_tiny", pretrained, options)


@register_model
def nearfar_medium(pretrained: bool = False, **options: Any) -> nn.Module:
    """Our encoder "medium"; see `nearfar_small`."""
    return _own("nearfar_medium", pretrained, options)


@register_model
def nearfar_small_stem(pretrained: bool = False, base: str = "resnet18", **options: Any) -> nn.Module:
    """A ResNet of timm's, `base`, whose first convolution is 3x3 with stride 1 and which has no max-pool."""
    return build_model_with_cfg(
        partial(_with_small_stem, base), SMALL_STEM, pretrained, feature_cfg=dict(feature_cls="getter"), **options
    )


def _with_small_stem(base: str, **options: Any) -> nn.Module:
    if not timm.is_model(base):  # such as "hf-hub:owner/name" in a file, which would be fetched
        raise ValueError(f"{SMALL_STEM} is built on a net of timm's own, not on {base!r}")
    net: Any = timm.create_model(base, pretrained=False, **options)
    shrink_stem(net)
    for info in net.feature_info:
        info["reduction"] = max(1, info["reduction"] // _STRIDE)
    return net
