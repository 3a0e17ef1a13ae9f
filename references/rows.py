"""Rows of length one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def unit(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=-1)
