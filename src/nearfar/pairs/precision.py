"""What every reduction of this room agrees on: the accumulation dtype, no autocast, one backward."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

EPSILON = 1e-12  # smallest norm divided by
LINEAR_FROM = 40.0  # softplus(x) = x beyond this, to the last bit of a float64
LOG2_E = math.log2(math.e)  # e^x = 2^(x LOG2_E), and 2^x is several times cheaper than e^x on some CPUs
LOWEST = -1e30  # stands for minus infinity where a difference of two must not be nan


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is float64, otherwise float32, whatever the inputs' own precision."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Context in which the arithmetic on `tensor`'s device keeps the dtype that it is given."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def row_norms(rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows 1"]:
    """The length of each row, at least 1e-12, so that it can be divided by."""
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(EPSILON)


def unit_rows(rows: Float[Tensor, "*rows dim"], dtype: torch.dtype | None = None) -> Float[Tensor, "*rows dim"]:
    """Every row scaled to length one (a zero row stays zero), in `dtype`; None: in the accumulation dtype."""
    rows = rows.to(dtype or accumulation_dtype(rows))
    return rows / row_norms(rows)


def refuse_double_backward() -> None:
    """To be called first in every backward: hand-written gradients cannot be differentiated again.

    Raises RuntimeError when the backward pass itself is being recorded (`create_graph=True`).
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "nearfar's pair reductions support one backward pass: call backward without create_graph=True "
            "(second derivatives of these losses are not implemented)"
        )
