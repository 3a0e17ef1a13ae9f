"""Arithmetic that all reductions share: dtypes, unit rows, shapes, one backward pass, and fast
matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from jaxtyping import Float, Integer
from torch import Tensor

Scalar = Float[Tensor, ""]
Rows = Float[Tensor, "batch dim"]  # embeddings of a batch
Views = Float[Tensor, "views batch dim"]
Queue = Float[Tensor, "keys dim"]
Index = Integer[Tensor, " batch"]  # the numbers of the images
PerImage = Float[Tensor, " batch"]
PerRow = Float[Tensor, "2 batch"]  # of both views
EPSILON = 1e-12  # smallest norm divided by
LINEAR_FROM = 40.0  # softplus(x) = x beyond this, to the last bit of a float64
LOG2_E = math.log2(
    math.e
)  # e^x = 2^(x LOG2_E), and 2^x is several times cheaper than e^x on some CPUs
AT_ONCE = 2**15  # rows that are looked through at a time
LOWEST = -1e30  # stands for minus infinity where a difference of two must not be nan


def rows_not_finite(rows: Float[Tensor, "rows dim"]) -> Integer[Tensor, " bad"]:
    """Return the positions of the rows with a number that is NaN or infinite; some at a time, since
    a test of all at once takes as much memory as they do.
    """
    parts = [(~part.isfinite()).any(1) for part in rows.split(AT_ONCE)]
    return torch.cat(parts).nonzero()[:, 0]


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is float64, otherwise float32, whatever the inputs' own precision."""
    return (
        torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
    )


def apart_from_scale(
    temperature: float | Tensor, *rows: Tensor
) -> tuple[float | Tensor, Tensor | None]:
    """The temperature without gradient, and 1 / temperature with one where it is a tensor."""
    if not isinstance(temperature, Tensor):
        return float(temperature), None
    scale = 1 / temperature.to(rows[0].device, accumulation_dtype(*rows))
    return 1 / scale.detach(), scale


def two_tensors(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both views, the second another tensor where it is the first itself: torch.compile refuses a
    function that takes a tensor twice.
    """
    return first, second.view_as(second) if second is first else second


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Context in which the arithmetic on `tensor`'s device keeps the dtype that it is given."""
    kind = tensor.device.type
    return _left_autocast(kind) if torch.is_autocast_enabled(kind) else nullcontext()


_in_bfloat16 = False


@contextmanager
def _left_autocast(kind: str) -> Iterator[None]:
    global _in_bfloat16
    before, _in_bfloat16 = _in_bfloat16, torch.get_autocast_dtype(kind) == torch.bfloat16
    try:
        with torch.autocast(kind, enabled=False):
            yield
    finally:
        _in_bfloat16 = before


def is_exact(*rows: Tensor) -> bool:
    """Return whether products need the quality of float32: not if `without_autocast` left autocast
    to bfloat16, nor if rows are bfloat16 themselves.
    """
    return not (_in_bfloat16 or any(part.dtype == torch.bfloat16 for part in rows))


def row_norms(rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows 1"]:
    """The length of each row, at least 1e-12, so that it can be divided by."""
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(EPSILON)


def unit_rows(
    rows: Float[Tensor, "*rows dim"], dtype: torch.dtype | None = None
) -> Float[Tensor, "*rows dim"]:
    """Every row scaled to length one (a zero row stays zero), in `dtype`; None: in the accumulation
    dtype.
    """
    rows = rows.to(dtype or accumulation_dtype(rows))
    return rows / row_norms(rows)


def check_rows(least: int = 1, **tensors: Tensor) -> None:
    """Raise ValueError unless the tensors share one shape [batch, dim] with `least` rows or
    more.
    """
    (first, x), *others = tensors.items()
    if x.ndim != 2:
        raise ValueError(f"{first} must be [batch, dim], got shape {list(x.shape)}")
    for name, y in others:
        if y.shape != x.shape:
            raise ValueError(
                f"{first} and {name} must have the same shape, got {list(x.shape)} and "
                f"{list(y.shape)}"
            )
    if len(x) < least:
        raise ValueError(f"the batch must hold {least} images or more, got {len(x)}")


def check_queue(dim: int, queue: Tensor) -> None:
    """Raise ValueError unless the queue is [keys, dim] with one key or more."""
    if queue.ndim != 2 or queue.shape[1] != dim:
        raise ValueError(
            f"queue must be [keys, {dim}] like the embeddings, got shape {list(queue.shape)}"
        )
    if len(queue) < 1:
        raise ValueError("queue must hold 1 key or more, got 0")


def refuse_double_backward() -> None:
    """Call this first in every backward pass: hand-written gradients cannot be differentiated
    again.

    Raises RuntimeError when the backward pass itself is being recorded (`create_graph=True`).
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "nearfar's pair reductions support one backward pass: call backward without "
            "create_graph=True "
            "(second derivatives of these losses are not implemented)"
        )


@cache
def _onednn_works() -> bool:
    """Return whether this build of torch has oneDNN's linear operator.

    torch.mm on a CPU is MKL, which on AMD processors reaches less than half of oneDNN's rate
    (measured on Zen 5, one thread, 512 x 128 x 512: 119 and 263 GFLOP/s).
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
    if (
        torch.compiler.is_compiling()
    ):  # torch's compiler has this operation for constant weights alone
        return False
    return x.device.type == "cpu" and x.dtype == torch.float32 and _onednn_works()


def dot_products(
    x: Float[Tensor, "rows dim"], y: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """x_i . y_j, without gradient."""
    return _onednn(x, y) if _suits_onednn(x) else torch.mm(x, y.T)


def weighted_rows(
    weights: Float[Tensor, "rows columns"], y: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows dim"]:
    """sum_j weights_ij y_j, without gradient."""
    return _onednn(weights, y.T) if _suits_onednn(weights) else torch.mm(weights, y)


def add_product_(
    total: Float[Tensor, "rows dim"],
    weights: Float[Tensor, "rows columns"],
    y: Float[Tensor, "columns dim"],
) -> None:
    """total_i += sum_j weights_ij y_j, in place, without gradient."""
    if _suits_onednn(weights):
        total.add_(weighted_rows(weights, y))
    else:
        total.addmm_(weights, y)
