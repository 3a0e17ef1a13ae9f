"""Optimisers with their parameter groups, LARS in the form of the papers, Muon, and the learning rate over a run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.messages import did_you_mean

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


MUON_STEPS = 5
MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan et al.: singular values end between about 0.7 and 1.2


class Muon(torch.optim.Optimizer):
    """Muon for every weight with two or more dimensions, AdamW for the others (biases, normalisation).

    A weight is taken as a matrix [outputs, everything else], a convolution's too. With its gradient g:
    m <- momentum * m + g,
    w <- (1 - lr * weight_decay) * w - lr * 0.2 * sqrt(longer side) * orthogonal(g + momentum * m),
    where `orthogonal` sets all singular values close to 1. The factor gives a step the size of one of AdamW, so that
    one learning rate serves both. torch.optim.Muon refuses convolutions, and timm.optim.Muon leaves depthwise ones to
    AdamW with Nesterov momentum; both round to bfloat16, which changes a step by 1.5 % (in float32 timm's is ours).
    Raises ValueError for numbers out of range.
    Source: Jordan et al. 2024 (Muon); factor and decay: Liu et al. 2025 (Muon is Scalable for LLM Training), Eq. 4.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not 0 <= momentum < 1:
            raise ValueError(
                "Muon needs lr and weight_decay of 0 or more and momentum in [0, 1), "
                f"got {lr}, {weight_decay}, {momentum}"
            )
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            matrices: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.ndim > 1:
                    matrices[p.flatten(1).shape].append(p)
                else:
                    self._adamw(p, group)
            for shape, weights in matrices.items():
                directions = orthogonal(torch.stack([self._direction(w, group) for w in weights]))
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                for w, direction in zip(weights, directions.unbind(), strict=True):
                    w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction.view(w.shape), alpha=rate)
        return loss

    def _direction(self, w: Tensor, group: dict[str, Any]) -> Tensor:
        """The gradient with (Nesterov's) momentum, as a matrix."""
        assert w.grad is not None
        state = self.state[w]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(w)
        state["momentum"].mul_(group["momentum"]).add_(w.grad)
        return (w.grad + group["momentum"] * state["momentum"]).flatten(1)

    def _adamw(self, p: Tensor, group: dict[str, Any]) -> None:
        assert p.grad is not None
        state, (first, second) = self.state[p], group["betas"]
        if "steps" not in state:
            state |= {"steps": torch.zeros(()), "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
        state["steps"] += 1
        state["mean"].lerp_(p.grad, 1 - first)
        state["square"].lerp_(p.grad.square(), 1 - second)
        steps = float(state["steps"])
        spread = (state["square"] / (1 - second**steps)).sqrt_().add_(group["eps"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.addcdiv_(state["mean"], spread, value=-group["lr"] / (1 - first**steps))


def orthogonal(matrices: Float[Tensor, "number rows columns"]) -> Float[Tensor, "number rows columns"]:
    """Replace the singular values of each matrix by values close to 1 (0.7 to 1.2), in the type of the matrices.

    Five steps of the Newton-Schulz iteration X <- P X with P = a + b A + c A A and A = X X^T, on X of norm 1. All P
    commute, so that their product and A are followed alone, which are small where X is long: A <- P A P.
    Singular values below about 0.001 of the norm end lower. A matrix of zeros stays one. Source: Jordan et al. 2024.
    """
    a, b, c = MUON_COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    gram, product = x @ x.mT, None
    for step in range(MUON_STEPS):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        if step < MUON_STEPS - 1:
            gram = factor @ gram @ factor
    x = product @ x
    return x.mT if tall else x
