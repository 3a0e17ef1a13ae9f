"""Optimisers with their parameter groups, LARS in the form of the papers, Muon, and the learning
rate over a run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import timm.optim
import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.messages import check_known

MOMENTUM = 0.9  # of all; for Adam and AdamW their first beta, beside 0.999
# of LARS and "larc"; of "larc-clip", as in solo-learn and by default in apex
TRUST, CLIPPED_TRUST = 0.001, 0.02


@dataclass(frozen=True, kw_only=True)
class GroupRules:
    """Parameters that are trained unlike the others.

    decay_all: decay those with one dimension or none (biases, normalisation, learnable
    temperatures) too. vector_lr: factor on their learning rate. constant: modules whose learning
    rate the schedule leaves alone (the predictor of SimSiam). lr_scales: factors on the learning
    rate by the id of a parameter, 1 for all others.
    """

    decay_all: bool = False
    vector_lr: float = 1.0
    constant: Sequence[nn.Module] = ()
    lr_scales: Mapping[int, float] = field(default_factory=dict)


def build_optimizer(
    name: str,
    modules: nn.Module | Iterable[nn.Module],
    *,
    lr: float,
    weight_decay: float,
    rules: GroupRules = GroupRules(),
    fused: bool = False,
) -> torch.optim.Optimizer:
    """Build an optimiser over all parameters of modules that take a gradient.

    name: "sgd" (with momentum 0.9), "adam" (decay as part of the gradient), "adamw", "lars", "larc"
    and "larc-clip" (LARS as NVIDIA's apex and as solo-learn have it: timm's) or "muon".
    weight_decay: left off for parameters with one dimension or none, unless the rules or "larc"
    decay all ("lars" never decays them). rules: exceptions; the groups hold them as `constant_lr`
    and `lr_scale`. fused: take torch's own ("sgd", "adam", "adamw") as one kernel; the parameters
    are on their device then. Raises ValueError for an unknown name.
    """
    if name == "larc":
        rules = replace(rules, decay_all=True)
    groups = parameter_groups(modules, weight_decay, rules)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": partial(torch.optim.SGD, momentum=MOMENTUM, fused=fused or None),
        "adam": partial(torch.optim.Adam, fused=fused or None),
        "adamw": partial(torch.optim.AdamW, fused=fused or None),
        "lars": LARS,
        # apex without clipping scales and decays all parameters: SwAV and LORAC were trained so.
        "larc": partial(timm.optim.Lars, momentum=MOMENTUM, trust_coeff=TRUST, eps=0.0),
        # solo-learn lets no layer move faster than plain momentum would, and does not scale
        # vectors.
        "larc-clip": partial(
            timm.optim.Lars, momentum=MOMENTUM, trust_coeff=CLIPPED_TRUST, eps=0.0, trust_clip=True
        ),
        "muon": Muon,
    }
    check_known("optimizer", name, kinds)
    return kinds[name](groups, lr=lr)


def parameter_groups(
    modules: nn.Module | Iterable[nn.Module],
    weight_decay: float,
    rules: GroupRules = GroupRules(),
) -> list[dict[str, Any]]:
    """Split the trainable parameters by whether they decay (more than one dimension, or all), and
    by learning rate.

    A parameter that is shared stands in one group, once. Empty groups are left out.
    """
    fixed = {id(p) for module in rules.constant for p in module.parameters()}
    parts: dict[tuple[bool, bool, float], dict[int, nn.Parameter]] = {}
    for module in [modules] if isinstance(modules, nn.Module) else modules:
        for p in module.parameters():
            if p.requires_grad:
                scale = rules.lr_scales.get(id(p), 1.0) * (1.0 if p.ndim > 1 else rules.vector_lr)
                kind = (rules.decay_all or p.ndim > 1, id(p) in fixed, scale)
                parts.setdefault(kind, {})[id(p)] = p
    return [
        {
            "params": list(parts[decays, is_constant, scale].values()),
            "weight_decay": weight_decay if decays else 0.0,
            "constant_lr": is_constant,
            "lr_scale": scale,
            "always_adapt": decays,  # of timm's LARS: parameters that are scaled
        }
        for decays, is_constant, scale in sorted(parts, reverse=True)
    ]


def scaled_lr(base: float, batch_size: int, rule: str, reference: int = 256) -> float:
    """Scale a learning rate that is meant for a batch of `reference` images to `batch_size`.

    rule: "linear" (base * batch / reference), "sqrt" (base * sqrt(batch / reference); the papers'
    0.075 * sqrt(batch) is reference 1) or "none".
    """
    factors = {
        "linear": batch_size / reference,
        "sqrt": math.sqrt(batch_size / reference),
        "none": 1.0,
    }
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
    """Return the factor on the learning rate at a step, from 0: a linear rise to 1, then half a
    cosine to `final`.

    drops: steps at which the rate falls to `drop` of what it was instead, as in MoCo v1. Step s of
    the warm-up has start + (1 - start) (s + 1) / warmup_steps; from step warmup_steps on it is
    final + (1 - final) (1 + cos(pi (s - warmup_steps) / (steps - warmup_steps))) / 2, which would
    reach `final` at step `steps`. Source: Loshchilov & Hutter 2017 (SGDR), Eq. 5, with Goyal et al.
    2017's warm-up.
    """
    if step < warmup_steps:
        return start + (1 - start) * min(1.0, (step + 1) / warmup_steps)
    if passed := list(drops):
        return drop ** sum(step >= milestone for milestone in passed)
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return final + (1 - final) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


class _ByGroup(torch.optim.Optimizer):
    """An optimiser that takes its step group by group."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            self.descend(group, [p for p in group["params"] if p.grad is not None])
        return loss

    def descend(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Take the step of some parameters of a group."""
        raise NotImplementedError


class LARS(_ByGroup):
    """SGD with momentum 0.9 whose step for each weight is scaled by 0.001 * |w| / |g + weight_decay
    * w|.

    The decay is added to the gradient first; where either norm is 0 the ratio is 1. Parameters with
    at most one dimension (biases, normalisation) get plain momentum, no ratio and no decay. The
    learning rate is outside: m <- 0.9 * m + ratio * (g + decay * w); w <- w - lr * m. Nothing is
    read back from the device. timm.optim.Lars divides by |g| + weight_decay * |w|, which is off by
    1 % to 30 % at a weight decay of 0.01. Source: You et al. 2017; in this form BYOL, Barlow Twins,
    VICReg, MoCo v3, SogCLR and SACLR.
    """

    def descend(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Take the step of some parameters of a group."""
        for matrices in (True, False):
            chosen = [p for p in params if (p.ndim > 1) == matrices]
            if not chosen:
                continue
            updates = [p.grad for p in chosen if p.grad is not None]
            if matrices:
                updates = list(torch._foreach_add(updates, chosen, alpha=group["weight_decay"]))
                above, below = (
                    torch.stack(torch._foreach_norm(each)) for each in (chosen, updates)
                )
                ratios = torch.where((above > 0) & (below > 0), TRUST * above / below, 1.0)
                updates = list(torch._foreach_mul(updates, list(ratios.unbind())))
            for p in chosen:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            moving = [self.state[p]["momentum"] for p in chosen]
            torch._foreach_mul_(moving, MOMENTUM)
            torch._foreach_add_(moving, updates)
            torch._foreach_add_(chosen, moving, alpha=-group["lr"])


MUON_STEPS = 5
MUON_COEFFICIENTS = (
    3.4445,
    -4.7750,
    2.0315,
)  # of Jordan et al.: singular values end between about 0.7 and 1.2


class Muon(_ByGroup):
    """Muon for every weight with two or more dimensions, AdamW for the others (biases,
    normalisation).

    A weight is taken as a matrix [outputs, everything else], a convolution's too. With its gradient
    g: m <- 0.9 * m + g, w <- (1 - lr * weight_decay) * w - lr * 0.2 * sqrt(longer side) *
    orthogonal(g + 0.9 * m), where `orthogonal` sets all singular values close to 1. The factor
    gives a step the size of one of AdamW, so that one learning rate serves both. torch.optim.Muon
    refuses convolutions, and timm.optim.Muon leaves depthwise ones to AdamW with Nesterov momentum;
    both round to bfloat16, which changes a step by 1.5 % (in float32 timm's is ours). Source:
    Jordan et al. 2024 (Muon); factor and decay: Liu et al. 2025 (Muon is Scalable for LLM
    Training), Eq. 4.
    """

    def descend(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Take the step of some parameters of a group."""
        matrices: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for p in params:
            if p.ndim > 1:
                matrices[p.flatten(1).shape].append(p)
            else:
                self._adamw(p, group)
        for shape, weights in matrices.items():
            directions = orthogonal(torch.stack([self._direction(w) for w in weights]))
            rate = group["lr"] * 0.2 * max(shape) ** 0.5
            for w, direction in zip(weights, directions.unbind(), strict=True):
                w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(
                    direction.view(w.shape), alpha=rate
                )

    def _direction(self, w: Tensor) -> Tensor:
        """Return the gradient with (Nesterov's) momentum, as a matrix."""
        assert w.grad is not None
        if "momentum" not in self.state[w]:
            self.state[w]["momentum"] = torch.zeros_like(w)
        moving = self.state[w]["momentum"].mul_(MOMENTUM).add_(w.grad)
        return (w.grad + MOMENTUM * moving).flatten(1)

    def _adamw(self, p: Tensor, group: dict[str, Any]) -> None:
        assert p.grad is not None
        state, (first, second) = self.state[p], (MOMENTUM, 0.999)
        if (
            "step" not in state
        ):  # torch leaves a number of this name on the CPU when it loads a state
            state |= {
                "step": torch.zeros(()),
                "mean": torch.zeros_like(p),
                "square": torch.zeros_like(p),
            }
        state["step"] += 1
        state["mean"].lerp_(p.grad, 1 - first)
        state["square"].lerp_(p.grad.square(), 1 - second)
        steps = float(state["step"])
        spread = (state["square"] / (1 - second**steps)).sqrt_().add_(1e-8)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.addcdiv_(state["mean"], spread, value=-group["lr"] / (1 - first**steps))


def orthogonal(
    matrices: Float[Tensor, "number rows columns"],
) -> Float[Tensor, "number rows columns"]:
    """Replace the singular values of each matrix by values close to 1 (0.7 to 1.2), in the type of
    the matrices.

    Five steps of the Newton-Schulz iteration X <- P X with P = a + b A + c A A and A = X X^T, on X
    of norm 1. All P commute, so that their product and A are followed alone, which are small where
    X is long: A <- P A P. Singular values below about 0.001 of the norm end lower. A matrix of
    zeros stays one. Source: Jordan et al. 2024.
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
