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
from torch.optim.adamw import adamw

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
    on_device: bool = False,
) -> torch.optim.Optimizer:
    """Build an optimiser over all parameters of modules that take a gradient.

    name: "sgd" (with momentum 0.9), "adam" (decay as part of the gradient), "adamw", "lars", "larc"
    and "larc-clip" (LARS as NVIDIA's apex and as solo-learn have it: timm's) or "muon".
    weight_decay: left off for parameters with one dimension or none, unless the rules or "larc"
    decay all ("lars" never decays them). rules: exceptions; the groups hold them as `constant_lr`
    and `lr_scale`. fused: take torch's own ("sgd", "adam", "adamw") as one kernel; the parameters
    are on their device then. on_device: hold the learning rates of "muon", "lars" and torch's fused
    ones as tensors beside the parameters, as a step that is captured must. Raises ValueError for an
    unknown name.
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
    optimizer = kinds[name](groups, lr=lr)
    if on_device and (name in ("lars", "muon") or (fused and name in ("sgd", "adam", "adamw"))):
        for group in optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.full((), lr, dtype=torch.float32, device=device)
    return optimizer


def set_rates(optimizer: torch.optim.Optimizer, lr: float, constant: float) -> None:
    """Set the learning rate of each group, `constant` where the schedule leaves a module alone.

    A rate that is a tensor keeps its place; nothing waits for a GPU.
    """
    for group in optimizer.param_groups:
        rate = (constant if group.get("constant_lr") else lr) * group["lr_scale"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


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
            rate = group["lr"]
            if isinstance(rate, Tensor):
                torch._foreach_sub_(chosen, torch._foreach_mul(moving, rate))
            else:
                torch._foreach_sub_(chosen, moving, alpha=rate)


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
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for p in params:
            if p.ndim > 1:
                by_shape[p.shape].append(p)
        if vectors := [p for p in params if p.ndim < 2]:
            self._adamw(vectors, group)
        if by_shape:
            self._orthogonal(by_shape, group)

    def _orthogonal(self, by_shape: dict[torch.Size, list[Tensor]], group: dict[str, Any]) -> None:
        """Take the step of matrices, all of one shape together."""
        weights = [w for members in by_shape.values() for w in members]
        gradients = [w.grad for w in weights if w.grad is not None]
        for w in weights:
            if "momentum" not in self.state[w]:
                self.state[w]["momentum"] = torch.zeros_like(w)
        moving = [self.state[w]["momentum"] for w in weights]
        torch._foreach_mul_(moving, MOMENTUM)
        torch._foreach_add_(moving, gradients)
        directions = torch._foreach_mul(moving, MOMENTUM)  # with Nesterov's momentum
        torch._foreach_add_(directions, gradients)

        coming = iter(directions)
        stacks = [
            torch.stack([next(coming) for _ in members]).flatten(2) for members in by_shape.values()
        ]
        updates = orthogonal_stacks(stacks)
        sizes = [0.2 * max(stack.shape[1:]) ** 0.5 for stack in stacks]
        lr, decay = group["lr"], group["weight_decay"]
        if isinstance(lr, Tensor):
            torch._foreach_mul_(updates, sizes)
            torch._foreach_mul_(updates, lr)
        steps = [
            step.view(shape)
            for shape, update in zip(by_shape, updates, strict=True)
            for step in update.unbind()
        ]
        torch._foreach_mul_(weights, 1 - lr * decay)
        if isinstance(lr, Tensor):
            torch._foreach_sub_(weights, steps)
            return
        rates = [lr * size for size, part in zip(sizes, stacks, strict=True) for _ in part]
        for w, step, rate in zip(weights, steps, rates, strict=True):
            w.sub_(step, alpha=rate)

    def _adamw(self, vectors: list[Tensor], group: dict[str, Any]) -> None:
        """Take the step of vectors, by torch's kernel."""
        states = [self.state[p] for p in vectors]
        for p, state in zip(vectors, states, strict=True):
            if "step" not in state:
                state |= {"mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
            # torch leaves a number of this name on the CPU when it loads a state
            state["step"] = state.get("step", torch.zeros(())).to(p.device)
        adamw(
            vectors,
            [p.grad for p in vectors if p.grad is not None],
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=MOMENTUM,
            beta2=0.999,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )


def orthogonal(
    matrices: Float[Tensor, "number rows columns"],
) -> Float[Tensor, "number rows columns"]:
    """Replace the singular values of each matrix by values close to 1 (0.7 to 1.2), in the type of
    the matrices, by `orthogonal_stacks`.
    """
    return orthogonal_stacks([matrices])[0]


def orthogonal_stacks(stacks: Sequence[Tensor]) -> list[Tensor]:
    """Replace the singular values of the matrices of several stacks [number, rows, columns], those
    of one shorter side together.

    Five steps of the Newton-Schulz iteration X <- P X with P = a + b A + c A A and A = X X^T, on X
    of norm 1. All P commute, so that their product and A are followed alone, which are small where
    X is long: A <- P A P. Singular values below about 0.001 of the norm end lower. A matrix of
    zeros stays one. Source: Jordan et al. 2024.
    """
    units: list[Tensor] = []
    by_side: dict[int, list[int]] = defaultdict(list)
    for number, stack in enumerate(stacks):
        x = stack.mT if stack.shape[1] > stack.shape[2] else stack
        units.append(x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7))
        by_side[x.shape[1]].append(number)
    results = list(stacks)
    for members in by_side.values():
        grams = [units[number] @ units[number].mT for number in members]
        product = _newton_schulz(torch.cat(grams) if len(grams) > 1 else grams[0])
        parts = product.split([len(units[number]) for number in members])
        for number, part in zip(members, parts, strict=True):
            x = part @ units[number]
            tall = stacks[number].shape[1] > stacks[number].shape[2]
            results[number] = x.mT if tall else x
    return results


def _newton_schulz(gram: Tensor) -> Tensor:
    """Return the product of all P for matrices A [number, side, side]."""
    a, b, c = MUON_COEFFICIENTS
    product = None
    for step in range(MUON_STEPS):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        if step < MUON_STEPS - 1:
            gram = factor @ gram @ factor
    assert product is not None
    return product
