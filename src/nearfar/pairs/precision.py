"""What every reduction of this room agrees on: the accumulation dtype, no autocast, one backward."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

EPSILON = 1e-12  # smallest norm divided by


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is float64, otherwise float32, whatever the inputs' own precision."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Context in which the arithmetic on `tensor`'s device keeps the dtype that it is given."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def unit_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows [..., dim] scaled to length one in `dtype`, and their norms [..., 1], at least 1e-12; without gradient."""
    rows = rows.to(dtype)
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min_(EPSILON)
    return rows / norm, norm


def refuse_double_backward() -> None:
    """To be called first in every backward: gradients made by hand are not differentiable again.

    Raises RuntimeError when the backward pass itself is being recorded (`create_graph=True`).
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "nearfar's pair reductions support one backward pass: call backward without create_graph=True "
            "(second derivatives of these losses are not implemented)"
        )
