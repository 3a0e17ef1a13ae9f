"""A temperature that is learned: the parameter `log_scale` = log(1 / t) of a loss, held in a range
as CLIP's is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.running import state
from nearfar.pairs.arithmetic import accumulation_dtype

LARGEST_SCALE = 100.0  # 1 / t, as in CLIP; the smallest is its inverse


def log_scale(learn: bool, temperature: float, largest: float = LARGEST_SCALE) -> Any:
    """The parameter, or None where nothing is learned; ValueError for a start outside 1 / largest
    to 100.
    """
    if not learn:
        return None
    if not 1 / largest <= temperature <= LARGEST_SCALE:
        raise ValueError(
            f"a learned temperature must be {1 / largest:.3g} to {LARGEST_SCALE:g}, got "
            f"{temperature}"
        )
    return nn.Parameter(state(-math.log(temperature)))


def temperature_now(loss: Any, *rows: Tensor, largest: float = LARGEST_SCALE) -> Any:
    """The fixed number, or the learned one as a tensor with a gradient, after it was brought back
    into its range.
    """
    if loss.log_scale is None:
        return loss.temperature
    with torch.no_grad():
        loss.log_scale.clamp_(-math.log(LARGEST_SCALE), math.log(largest))
    now = (-loss.log_scale.to(accumulation_dtype(*rows))).exp()
    loss.monitored = {"temperature": now.detach()}
    return now
