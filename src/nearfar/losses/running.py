"""State that a loss keeps between steps: how it is read, and that it moves to finite numbers alone.

A gradient that is computed after the state has moved must use the state as it was read. torch's
compiler computes cheap intermediate results of a graph again in the backward pass, from buffers
that the forward pass has changed by then; what it calls an operation of its own it keeps.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

_read = torch.library.custom_op(
    "nearfar::read_state",
    lambda buffer, index: buffer.clone() if index is None else buffer.index_select(0, index),
    mutates_args=(),
    schema="(Tensor buffer, Tensor? index) -> Tensor",
)
_read.register_fake(
    lambda buffer, index: (
        torch.empty_like(buffer)
        if index is None
        else buffer.new_empty(len(index), *buffer.shape[1:])
    )
)


def read(
    buffer: Shaped[Tensor, "*shape"], index: Int[Tensor, " batch"] | None = None
) -> Shaped[Tensor, "*shape_read"]:
    """A copy of a buffer, or of its rows at `index`, that stays as it is when the buffer moves; no
    gradient.
    """
    result: Tensor = _read(buffer.detach(), index)
    return result


@torch.no_grad()
def move(
    buffer: Float[Tensor, "*shape"],
    new: Float[Tensor, "*shape_new"],
    loss: Float[Tensor, ""],
    index: Int[Tensor, " batch"] | None = None,
) -> Bool[Tensor, "*shape_new"]:
    """Set a buffer, or its rows at `index`, to new values where these and the loss of the step are
    finite.

    A step with an infinite loss, which a scaler of gradients or the user skips, leaves no trace.
    Nothing waits for a GPU. Returns where the buffer was set.
    """
    new = new.to(buffer.dtype)
    good = new.isfinite() & loss.isfinite()
    if index is None:
        buffer.copy_(torch.where(good, new, buffer))
    else:
        buffer[index] = torch.where(good, new, buffer[index])
    return good
