"""Muon: momentum whose matrix is made orthogonal before each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_STEPS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan et al.: singular values end between about 0.7 and 1.2


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
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    gram, product = x @ x.mT, None
    for step in range(_STEPS):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        if step < _STEPS - 1:
            gram = factor @ gram @ factor
    x = product @ x
    return x.mT if tall else x
