"""Optimisers with their parameter groups, LARS in the form of the papers, and the learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.messages import did_you_mean
from nearfar.training.muon import Muon

OPTIMIZERS = ("sgd", "adam", "adamw", "lars", "larc", "larc-clip", "muon")


def build_optimizer(
    name: str,
    modules: nn.Module | Iterable[nn.Module],
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    decay_all: bool = False,
    vector_lr: float = 1.0,
    constant: Iterable[nn.Module] = (),
    lr_scales: Mapping[int, float] | None = None,
) -> torch.optim.Optimizer:
    """Build an optimiser over all parameters of modules that take a gradient.

    name: "sgd" (with momentum), "adam" (decay as part of the gradient) and "adamw" (`momentum` is their first beta; the
    second is 0.999), "lars", "larc" and "larc-clip" (LARS as NVIDIA's apex and as solo-learn have it, see `LARS`) or
    "muon".
    weight_decay: left off for parameters with one dimension or none (biases, normalisation, learnable temperatures),
    unless `decay_all` or "larc" is chosen. vector_lr: factor on the learning rate of those parameters.
    constant: modules within `modules` whose learning rate the schedule leaves alone; their groups hold
    `constant_lr` True (the predictor of SimSiam).
    lr_scales: factors on the learning rate by the id of a parameter, 1 for all others; `lr_scale` in the groups.
    Raises ValueError for an unknown name, a number out of range, or modules without a parameter to train.
    """
    if name not in OPTIMIZERS:
        raise ValueError(
            f"unknown optimizer {name!r}: {did_you_mean(name, OPTIMIZERS, 'use ' + ', '.join(OPTIMIZERS))}"
        )
    if not (lr >= 0 and weight_decay >= 0 and 0 <= momentum < 1):
        raise ValueError(
            f"lr and weight decay must be 0 or more and momentum in [0, 1), got {lr}, {weight_decay} and {momentum}"
        )
    decay_all = decay_all or name == "larc"
    groups = parameter_groups(modules, weight_decay, constant, lr_scales or {}, decay_all, vector_lr)
    if not groups:
        raise ValueError("there is no parameter to train")
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum)
    if name in ("adam", "adamw"):
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(groups, lr=lr, betas=(momentum, 0.999))
    if name == "muon":
        return Muon(groups, lr=lr, momentum=momentum)
    if name == "larc-clip":
        return LARS(groups, lr=lr, momentum=momentum, trust=CLIPPED_TRUST, clip=True)
    return LARS(groups, lr=lr, momentum=momentum, larc=name == "larc")


def parameter_groups(
    modules: nn.Module | Iterable[nn.Module],
    weight_decay: float,
    constant: Iterable[nn.Module] = (),
    lr_scales: Mapping[int, float] = {},
    decay_all: bool = False,
    vector_lr: float = 1.0,
) -> list[dict[str, Any]]:
    """Split the trainable parameters by whether they decay (more than one dimension, or all), and by learning rate.

    A parameter that is shared stands in one group, once. Empty groups are left out.
    """
    fixed = {id(p) for module in constant for p in module.parameters()}
    parts: dict[tuple[bool, bool, float], dict[int, nn.Parameter]] = {}
    for module in [modules] if isinstance(modules, nn.Module) else modules:
        for p in module.parameters():
            if p.requires_grad:
                scale = lr_scales.get(id(p), 1.0) * (1.0 if p.ndim > 1 else vector_lr)
                kind = (decay_all or p.ndim > 1, id(p) in fixed, scale)
                parts.setdefault(kind, {})[id(p)] = p
    return [
        {
            "params": list(parts[decays, is_constant, scale].values()),
            "weight_decay": weight_decay if decays else 0.0,
            "constant_lr": is_constant,
            "lr_scale": scale,
        }
        for decays, is_constant, scale in sorted(parts, reverse=True)
    ]


def scaled_lr(base: float, batch_size: int, rule: str, reference: int = 256) -> float:
    """Scale a learning rate that is meant for a batch of `reference` images to `batch_size`.

    rule: "linear" (base * batch / reference), "sqrt" (base * sqrt(batch / reference); the papers' 0.075 * sqrt(batch)
    is reference 1) or "none". Raises ValueError for another rule or sizes below 1.
    """
    if batch_size < 1 or reference < 1:
        raise ValueError(f"batch sizes must be 1 or more, got {batch_size} and {reference}")
    factors = {"linear": batch_size / reference, "sqrt": math.sqrt(batch_size / reference), "none": 1.0}
    if rule not in factors:
        raise ValueError(f"unknown rule {rule!r} for the learning rate: use linear, sqrt or none")
    return base * factors[rule]


def rate_factor(
    step: float,
    steps: float,
    warmup_steps: float,
    final: float = 0.0,
    drops: Iterable[float] = (),
    drop: float = 0.1,
    start: float = 0.0,
) -> float:
    """Return the factor on the learning rate at a step, from 0: a linear rise to 1, then half a cosine to `final`.

    drops: steps at which the rate falls to `drop` of what it was instead, as in MoCo v1. Step s of the warm-up has
    start + (1 - start) (s + 1) / warmup_steps; from step warmup_steps on it is
    final + (1 - final) (1 + cos(pi (s - warmup_steps) / (steps - warmup_steps))) / 2, which would reach `final` at
    step `steps`. Source: Loshchilov & Hutter 2017 (SGDR), Eq. 5, with Goyal et al. 2017's warm-up.
    """
    if step < warmup_steps:
        return start + (1 - start) * (step + 1) / warmup_steps
    if passed := list(drops):
        return drop ** sum(step >= one for one in passed)
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return final + (1 - final) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


CLIPPED_TRUST = 0.02
"""Of "larc-clip": solo-learn's configurations and the default of apex."""


class LARS(torch.optim.Optimizer):
    """SGD with momentum whose step for each weight is scaled by trust * |w| / |g + weight_decay * w|.

    The decay is added to the gradient first; where either norm is 0 the ratio is 1. Parameters with at most one
    dimension (biases, normalisation) get plain momentum, no ratio and no decay. The learning rate is outside:
    m <- momentum * m + ratio * (g + decay * w); w <- w - lr * m. Nothing is read back from the device.
    larc: the ratio is trust * |w| / (|g| + weight_decay * |w|), as the ready-made implementations have it, and all
    parameters are scaled, biases and norms too; where either norm is 0 there is no decay. So apex does it without
    clipping, with which SwAV and LORAC were trained.
    clip: that ratio too, but divided by the learning rate and at most 1, for parameters with more than one dimension
    alone: no layer moves faster than plain momentum would move it. So solo-learn does it.
    timm.optim.Lars has no form but larc and clip, whose steps are these; it lets a weight decay at the full rate where
    the gradient is zero. In place of the first form it would be off by 1 % to 30 % at a weight decay of 0.01.
    Raises ValueError for numbers out of range.
    Source: You et al. 2017; in this form BYOL, Barlow Twins, VICReg, MoCo v3, SogCLR and SACLR.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        larc: bool = False,
        clip: bool = False,
    ) -> None:
        if lr < 0 or weight_decay < 0 or trust <= 0 or not 0 <= momentum < 1:
            raise ValueError(
                "LARS needs lr and weight_decay of 0 or more, trust above 0 and momentum in [0, 1), "
                f"got {lr}, {weight_decay}, {trust}, {momentum}"
            )
        super().__init__(
            params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust, larc=larc, clip=clip)
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            weights = [p for p in params if p.ndim > 1 or group["larc"]]
            others = [p for p in params if not (p.ndim > 1 or group["larc"])]
            self._descend(weights, _scaled_gradients(weights, group), group)
            self._descend(others, [p.grad for p in others if p.grad is not None], group)
        return loss

    def _descend(self, params: list[Tensor], updates: list[Tensor], group: dict[str, Any]) -> None:
        if not params:
            return
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        moving = [self.state[p]["momentum"] for p in params]
        torch._foreach_mul_(moving, group["momentum"])
        torch._foreach_add_(moving, updates)
        torch._foreach_add_(params, moving, alpha=-group["lr"])


def _scaled_gradients(weights: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    if not weights:
        return []
    gradients = [w.grad for w in weights if w.grad is not None]
    decay = group["weight_decay"]
    decayed = torch._foreach_add(gradients, weights, alpha=decay) if decay else gradients
    weight_norms = torch.stack(list(torch._foreach_norm(weights)))
    if group["larc"] or group["clip"]:
        norms = torch.stack(list(torch._foreach_norm(gradients)))
        usable, below = (weight_norms > 0) & (norms > 0), norms + decay * weight_norms
        shares = torch._foreach_mul(weights, list((decay * usable).to(weight_norms).unbind()))
        decayed = torch._foreach_add(gradients, shares)
    else:
        below = torch.stack(list(torch._foreach_norm(decayed)))
        usable = (weight_norms > 0) & (below > 0)
    ratios = group["trust"] * weight_norms / below
    if group["clip"]:
        ratios = (ratios / group["lr"]).clamp_max(1)
    ratios = torch.where(usable, ratios, 1.0)
    return list(torch._foreach_mul(decayed, list(ratios.unbind())))
