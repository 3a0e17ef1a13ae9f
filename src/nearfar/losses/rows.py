"""Embedding rows in full precision."""

import functools
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.precision import accumulation_dtype, without_autocast


def outside_autocast(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run the forward of a loss with autocast switched off on the device of its first tensor."""

    @functools.wraps(forward)
    def run(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        with without_autocast(next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))):
            return forward(self, *args, **kwargs)

    return run


def full(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The same numbers in float32, or in float64 if they come so."""
    return x.to(accumulation_dtype(x))


def row_dot(a: Float[Tensor, "*#rows dim"], b: Float[Tensor, "*#rows dim"]) -> Float[Tensor, "*rows"]:
    """Dot product of each row of `a` with the same row of `b`."""
    return (a * b).sum(-1)
