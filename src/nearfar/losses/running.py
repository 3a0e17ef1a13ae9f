"""State that a loss keeps between steps: how it is read, and that it moves to finite numbers alone.

A gradient that is computed after the state has moved must use the state as it was read. torch's
compiler computes cheap intermediate results of a graph again in the backward pass, from buffers
that the forward pass has changed by then; what it calls an operation of its own it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor, nn

Self = TypeVar("Self", bound="FullPrecision")


class FullPrecision(nn.Module):
    """A loss whose running averages and learned numbers stay in float32 when it becomes half.

    In bfloat16, as after `model.bfloat16()`, an average that moves by a hundredth of a difference
    and a temperature that moves by a thousandth would stand still. Matrices, such as prototypes,
    are weights as others are.
    """

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        numbers: dict[str, Tensor | None] = {**self._parameters, **self._buffers}
        before = {
            name: number.detach()
            for name, number in numbers.items()
            if number is not None and number.ndim < 2
        }
        super()._apply(fn, recurse)
        for name, exact in before.items():
            now: Any = getattr(self, name)
            if now.is_floating_point() and now.itemsize < 4:
                now.data = exact.to(now.device, torch.float32)
        return self


def state(value: float, *shape: int) -> Float[Tensor, "*shape"]:
    """A buffer of equal numbers: float32, or float64 where that is torch's default."""
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    return torch.full(shape, float(value), dtype=dtype)


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
    buffer: Shaped[Tensor, "*shape"], index: Integer[Tensor, " batch"] | None = None
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
    index: Integer[Tensor, " batch"] | None = None,
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
