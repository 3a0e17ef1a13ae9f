"""The layers of a backbone by depth: stages that stay as they are, learning rates that fall towards the input."""

from __future__ import annotations

from typing import Any

from timm.models import group_modules, group_parameters
from timm.optim import param_groups_layer_decay
from torch import nn


def first_stages(net: nn.Module, count: int, name: str) -> tuple[list[str], list[str]]:
    """Return the names of the parameters, and of the modules that own them, in the first stages of a net.

    A stage is one of timm's coarse groups: the stem, the stages of a ResNet or ConvNeXt, the blocks of a transformer.
    Raises ValueError for a net without such groups, or where none would be left to train.
    """
    group_matcher: Any = getattr(net, "group_matcher", None)
    if group_matcher is None:
        raise ValueError(f"the encoder {name!r} has no stages that timm knows: use --frozen 0")
    matcher = group_matcher(coarse=True)
    groups = group_parameters(net, matcher)
    if count >= len(groups):
        raise ValueError(f"--frozen {count} leaves nothing of {name!r} to train: it has {len(groups)} stages")
    still = {key for group in range(count) for key in groups[group]}
    owners = {key for keys in group_modules(net, matcher).values() for key in keys}
    return sorted(still), sorted(owners & {key.rpartition(".")[0] for key in still})


def layer_scales(net: nn.Module, decay: float) -> dict[int, float]:
    """Return the factor on the learning rate of every parameter that trains, by its id: decay ** depth.

    The depth is counted in timm's layers (blocks) from the projector, which has 0: the last block has 1, the stem most.
    Nets without timm's `group_matcher` count a layer for every twelve parameters.
    Source: ULMFiT (Howard & Ruder 2018), Section 3.2; per block as in BEiT (Bao et al. 2022) and timm.
    """
    if decay == 1:
        return {}
    groups = param_groups_layer_decay(net, layer_decay=decay)
    return {id(weights): decay * group["lr_scale"] for group in groups for weights in group["params"]}
