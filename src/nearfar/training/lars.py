"""LARS, in the form of the papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    """SGD with momentum whose step for each weight is scaled by trust * |w| / |g + weight_decay * w|.

    The decay is added to the gradient first; where either norm is 0 the ratio is 1. Parameters with at most one
    dimension (biases, normalisation) get plain momentum, no ratio and no decay. The learning rate is outside:
    m <- momentum * m + ratio * (g + decay * w); w <- w - lr * m. Nothing is read back from the device.
    Differs from the ready-made implementations: they divide by |g| + weight_decay * |w|.
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
    ) -> None:
        if lr < 0 or weight_decay < 0 or trust <= 0 or not 0 <= momentum < 1:
            raise ValueError(
                "LARS needs lr and weight_decay of 0 or more, trust above 0 and momentum in [0, 1), "
                f"got {lr}, {weight_decay}, {trust}, {momentum}"
            )
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            weights = [p for p in params if p.ndim > 1]
            others = [p for p in params if p.ndim <= 1]
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
    below = torch.stack(list(torch._foreach_norm(decayed)))
    usable = (weight_norms > 0) & (below > 0)
    ratios = torch.where(usable, group["trust"] * weight_norms / below, 1.0)
    return list(torch._foreach_mul(decayed, list(ratios.unbind())))
