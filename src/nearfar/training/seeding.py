"""Random streams that are pure functions of the seed and a place in training, so that resuming
needs no saved state.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def derive_seed(seed: int, purpose: str, *place: int) -> int:
    """Return a 63-bit seed for a purpose ("views", "dropout", ...) and a place such as (step,
    rank).
    """
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *place]).generate_state(
        2, np.uint32
    )
    return (int(words[0]) << 31) ^ int(words[1])


def stream(seed: int, purpose: str, *place: int) -> torch.Generator:
    """Return a CPU generator for a purpose and a place."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *place))
