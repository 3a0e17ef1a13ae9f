"""Matrix products of tiles, by the fastest float32 kernel that torch has."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor


@cache
def _onednn_works() -> bool:
    """Whether this build of torch has oneDNN's linear operator.

    torch.mm on a CPU is MKL, which on AMD processors reaches less than half of oneDNN's rate (measured on Zen 5, one
    thread, 512 x 128 x 512: 119 and 263 GFLOP/s).
    """
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        _onednn(torch.ones(2, 3), torch.ones(2, 3))
    except (AttributeError, RuntimeError):
        return False
    return True


def _onednn(x: Tensor, y: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, y, None, "none", [], "")


def _suits_onednn(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and _onednn_works()


def dot_products(x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]) -> Float[Tensor, "rows columns"]:
    """x_i . y_j, without gradient."""
    return _onednn(x, y) if _suits_onednn(x) else torch.mm(x, y.T)


def weighted_rows(weights: Float[Tensor, "rows columns"], y: Float[Tensor, "columns dim"]) -> Float[Tensor, "rows dim"]:
    """sum_j weights_ij y_j, without gradient."""
    return _onednn(weights, y.T) if _suits_onednn(weights) else torch.mm(weights, y)


def add_product_(
    total: Float[Tensor, "rows dim"], weights: Float[Tensor, "rows columns"], y: Float[Tensor, "columns dim"]
) -> None:
    """total_i += sum_j weights_ij y_j, in place, without gradient."""
    if _suits_onednn(weights):
        total.add_(weighted_rows(weights, y))
    else:
        total.addmm_(weights, y)
