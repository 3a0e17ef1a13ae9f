"""The momentum encoder of the online networks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class MomentumEncoder(nn.Module):
    """A copy of the online networks that follows them slowly and gets no gradient.

    `online` is any module, as a rule `nn.Sequential(backbone, projector)`; `forward` takes what it takes. Parameters
    have requires_grad False, so the optimiser never holds them, and stand in the state_dict.
    Buffers (statistics of batch normalisation) are taken from the online networks at every update. In train mode the
    momentum encoder normalises by the statistics of its own batch; its running ones matter in eval mode only.
    Source: MoCo (He et al. 2020), Eq. 2. Differs from its released code: there the momentum encoder's buffers are left
    to the momentum encoder's own forward passes.
    """

    def __init__(self, online: nn.Module) -> None:
        super().__init__()
        self.networks = copy.deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Embed without a graph."""
        return self.networks(*args, **kwargs)

    @torch.no_grad()
    def update(self, online: nn.Module, momentum: float) -> None:
        """Set every parameter to momentum * own + (1 - momentum) * online; raises ValueError outside [0, 1]."""
        if not 0 <= momentum <= 1:
            raise ValueError(f"the momentum encoder's momentum must be in [0, 1], got {momentum}")
        own: list[Tensor] = list(self.networks.parameters())
        new: list[Tensor] = list(online.parameters())
        own_buffers, new_buffers = list(self.networks.buffers()), list(online.buffers())
        if [p.shape for p in own + own_buffers] != [p.shape for p in new + new_buffers]:
            raise ValueError("a momentum encoder follows the networks it was copied from; these have other parameters")
        if own:
            torch._foreach_lerp_(own, new, 1 - momentum)
        for buffer, source in zip(own_buffers, new_buffers, strict=True):
            buffer.copy_(source)
