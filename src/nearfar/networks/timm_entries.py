"""Our nets and small stems among timm's models: importing this file registers them with
`timm.create_model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import timm
import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import ResNet
from timm.models.resnetv2 import ResNetV2
from torch import nn

from nearfar.networks.small import OWN_NETS, SmallNet

SMALL_STEM = "nearfar_small_stem"
SMALL = "-small-stem"  # at the end of a ResNet's name
JOINED = "joined"  # encoders side by side, see `networks.joined`
ENTRIES = {f"nearfar_{name}": name for name in (*OWN_NETS, JOINED)}
"""Our nets by the names that timm knows them by."""

default_cfgs = generate_default_cfgs(
    {
        **{
            f"nearfar_{name}": dict(
                num_classes=0, input_size=(3, 224, 224), first_conv="conv", classifier="fc"
            )
            for name in OWN_NETS
        },
        SMALL_STEM: dict(num_classes=0, input_size=(3, 32, 32), crop_pct=1.0),
    }
)


def timm_name(
    name: str, arguments: Mapping[str, Any], small_stem: bool
) -> tuple[str, dict[str, Any]]:
    """Return the name by which `timm.create_model` builds a net of an `Architecture`, and its
    arguments.
    """
    if name in ENTRIES.values():
        return f"nearfar_{name}", dict(arguments)
    name = name.partition(".")[0]  # without the tag of weights
    return (SMALL_STEM, {"base": name, **arguments}) if small_stem else (name, dict(arguments))


def own_name(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any], bool | None]:
    """Return name, arguments and small stem of an `Architecture` for a name of timm's: the inverse
    of `timm_name`.

    The stem is None for nets that are timm's own, which leave it open.
    """
    arguments = {key: value for key, value in arguments.items() if key != "num_classes"}
    if name == SMALL_STEM:
        return str(arguments.pop("base", "resnet18")), arguments, True
    return ENTRIES.get(name, name), arguments, False if name in ENTRIES else None


def stem_of(net: nn.Module) -> tuple[nn.Conv2d, nn.Module, str] | None:
    """Find the first convolution, and the module and name of the max-pool, of a ResNet-like net;
    None for others.
    """
    parent: nn.Module = net
    pool = "maxpool"
    if isinstance(net, ResNetV2):
        parent, pool = net.stem, "pool"
    elif not isinstance(net, ResNet):
        return None
    first = next(module for module in parent.modules() if isinstance(module, nn.Conv2d))
    return (first, parent, pool) if hasattr(parent, pool) else None


def shrink_stem(net: Any) -> None:
    """Make the first convolution 3x3 with stride 1, re-initialised, and remove the max-pool; other
    nets are left alone.

    Source: SimCLR (Chen et al. 2020), Appendix B.9.
    """
    stem = stem_of(net)
    if stem is None:
        return
    conv, parent, pool = stem
    conv.stride = (1, 1)
    if conv.kernel_size != (3, 3):
        conv.kernel_size, conv.padding = (3, 3), (1, 1)
        conv.weight = nn.Parameter(torch.empty(*conv.weight.shape[:2], 3, 3))
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    setattr(parent, pool, nn.Identity())
    for info in net.feature_info:
        info["reduction"] = max(1, info["reduction"] // 4)


def _own(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    form = OWN_NETS[ENTRIES[name]]
    options.pop("global_pool", None)
    maps = dict(feature_cls="getter", out_indices=tuple(range(len(form["widths"]))))
    return build_model_with_cfg(
        partial(SmallNet, **form), name, pretrained, feature_cfg=maps, **options
    )


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
def nearfar_small_stem(
    pretrained: bool = False, base: str = "resnet18", **options: Any
) -> nn.Module:
    """A ResNet of timm's, `base`, whose first convolution is 3x3 with stride 1 and which has no
    max-pool.
    """
    return build_model_with_cfg(
        partial(_with_small_stem, base),
        SMALL_STEM,
        pretrained,
        feature_cfg=dict(feature_cls="getter"),
        **options,
    )


def _with_small_stem(base: str, **options: Any) -> nn.Module:
    if not timm.is_model(base):  # such as "hf-hub:owner/name" in a file, which would be fetched
        raise ValueError(f"{SMALL_STEM} is built on a net of timm's own, not on {base!r}")
    net = timm.create_model(base, pretrained=False, **options)
    shrink_stem(net)
    return net
