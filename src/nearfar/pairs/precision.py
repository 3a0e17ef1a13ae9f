"""What every reduction of this room agrees on: the accumulation dtype, no autocast, one backward."""

import torch
from torch import Tensor


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is float64, otherwise float32, whatever the inputs' own precision."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def without_autocast(tensor: Tensor) -> torch.autocast:
    """Context in which the arithmetic on `tensor`'s device keeps the dtype that it is given."""
    return torch.autocast(tensor.device.type, enabled=False)


def refuse_double_backward() -> None:
    """To be called first in every backward: gradients made by hand are not differentiable again.

    Raises RuntimeError when the backward pass itself is being recorded (`create_graph=True`).
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "nearfar's pair reductions support one backward pass: call backward without create_graph=True "
            "(second derivatives of these losses are not implemented)"
        )
