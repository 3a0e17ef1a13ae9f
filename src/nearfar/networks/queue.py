"""The queue of earlier keys that serve as negatives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Queue(nn.Module):
    """The last `size` keys [size, dim], unit rows, oldest overwritten first; state is saved with the module.

    Starts as normalised Gaussian rows from torch's global generator. Source: MoCo (He et al. 2020),
    Section 3.2. Differs from the released code: the size need not be a multiple of the batch.
    Raises ValueError for a size or dim below 1.
    """

    stored: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"a queue needs a size and a dim of 1 or more, got {size} and {dim}")
        self.register_buffer("stored", F.normalize(torch.randn(size, dim)))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @property
    def rows(self) -> Float[Tensor, "size dim"]:
        """The stored keys without gradient: a copy, so that a push between forward and backward does no harm."""
        return self.stored.clone()

    @torch.no_grad()
    def push(self, keys: Float[Tensor, "batch dim"]) -> None:
        """Store keys (made unit rows here), over the oldest ones; of more than `size` keys the last ones stay.

        Waits for nothing on a GPU: the pointer stays on the device.
        """
        size, batch = len(self.stored), len(keys)
        places = (self.pointer + torch.arange(batch, device=keys.device))[-size:] % size
        self.stored.index_copy_(0, places, F.normalize(keys[-size:].to(self.stored.dtype)))
        self.pointer.copy_((self.pointer + batch) % size)

    def forward(self) -> Float[Tensor, "size dim"]:
        """Return `rows`."""
        return self.rows
