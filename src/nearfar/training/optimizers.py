"""Optimisers with their parameter groups, and the learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from nearfar.messages import did_you_mean
from nearfar.training.lars import LARS

OPTIMIZERS = ("sgd", "adamw", "lars")


def build_optimizer(
    name: str,
    modules: nn.Module | Iterable[nn.Module],
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    constant: Iterable[nn.Module] = (),
) -> torch.optim.Optimizer:
    """Build an optimiser over all parameters of modules that take a gradient.

    name: "sgd" (with momentum), "adamw" (`momentum` is its first beta; the second is 0.999) or "lars".
    weight_decay: left off for parameters with one dimension or none (biases, normalisation, learnable temperatures).
    constant: modules within `modules` whose learning rate the schedule leaves alone; their groups hold
    `constant_lr` True (the predictor of SimSiam).
    Raises ValueError for an unknown name, a number out of range, or modules without a parameter to train.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}: {did_you_mean(name, OPTIMIZERS, 'use sgd, adamw or lars')}")
    if not (lr >= 0 and weight_decay >= 0 and 0 <= momentum < 1):
        raise ValueError(
            f"lr and weight decay must be 0 or more and momentum in [0, 1), got {lr}, {weight_decay} and {momentum}"
        )
    groups = parameter_groups(modules, weight_decay, constant)
    if not groups:
        raise ValueError("there is no parameter to train")
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999))
    return LARS(groups, lr=lr, momentum=momentum)


def parameter_groups(
    modules: nn.Module | Iterable[nn.Module], weight_decay: float, constant: Iterable[nn.Module] = ()
) -> list[dict[str, Any]]:
    """Split the trainable parameters by whether they decay (more than one dimension) and their rate is constant.

    A parameter that is shared stands in one group, once. Empty groups are left out.
    """
    fixed = {id(p) for module in constant for p in module.parameters()}
    parts: dict[tuple[bool, bool], dict[int, nn.Parameter]] = {}
    for module in [modules] if isinstance(modules, nn.Module) else modules:
        for p in module.parameters():
            if p.requires_grad:
                parts.setdefault((p.ndim > 1, id(p) in fixed), {})[id(p)] = p
    return [
        {"params": list(parts[key].values()), "weight_decay": weight_decay if key[0] else 0.0, "constant_lr": key[1]}
        for key in sorted(parts, reverse=True)
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


def warmup_cosine(step: int, steps: int, warmup_steps: int, final: float = 0.0) -> float:
    """Return the factor on the learning rate at a step, from 0: a linear rise to 1, then half a cosine to `final`.

    Step s of the warm-up has (s + 1) / warmup_steps; from step warmup_steps on it is
    final + (1 - final) (1 + cos(pi (s - warmup_steps) / (steps - warmup_steps))) / 2, which would reach `final` at
    step `steps`. Source: Loshchilov & Hutter 2017 (SGDR), Eq. 5, with Goyal et al. 2017's warm-up.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return final + (1 - final) * (1 + math.cos(math.pi * min(1.0, progress))) / 2
