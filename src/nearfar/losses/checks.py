"""One clear line for every wrong argument of a loss."""

import math

from torch import Tensor


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, got {value}")


def not_negative(**values: float) -> None:
    """Raise ValueError unless every value is a finite number, 0 or above."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number, 0 or above, got {value}")


def at_least(least: int, **values: int) -> None:
    """Raise ValueError unless every value is `least` or more."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}")


def same_rows(least: int = 1, **tensors: Tensor) -> None:
    """Raise ValueError unless the tensors share one shape [batch, dim] with `least` rows or more."""
    (first, x), *others = tensors.items()
    if x.ndim != 2:
        raise ValueError(f"{first} must be [batch, dim], got shape {list(x.shape)}")
    for name, y in others:
        if y.shape != x.shape:
            raise ValueError(f"{first} and {name} must have the same shape, got {list(x.shape)} and {list(y.shape)}")
    batch_size(x.shape[0], least)


def same_views(stacked: dict[str, Tensor], rows: dict[str, Tensor], least: int = 1) -> None:
    """Raise ValueError unless one tensor is [views, batch, dim] and the other [batch, dim], sizes equal."""
    ((many, xs),), ((one, x),) = stacked.items(), rows.items()
    if xs.ndim != 3 or xs.shape[0] < 1:
        raise ValueError(f"{many} must be [views, batch, dim] with 1 view or more, got shape {list(xs.shape)}")
    if x.shape != xs.shape[1:]:
        raise ValueError(
            f"{one} must be [batch, dim] like each view of {many}, got {list(x.shape)} and {list(xs.shape)}"
        )
    batch_size(x.shape[0], least)


def batch_size(rows: int, least: int) -> None:
    """Raise ValueError unless the batch has `least` images or more."""
    if rows < least:
        raise ValueError(f"the batch must hold {least} images or more, got {rows}")


def queue_of(dim: int, queue: Tensor) -> None:
    """Raise ValueError unless the queue is [K, dim] with one row or more."""
    if queue.ndim != 2 or queue.shape[1] != dim:
        raise ValueError(f"queue must be [keys, {dim}] like the embeddings, got shape {list(queue.shape)}")
    if queue.shape[0] < 1:
        raise ValueError("queue must hold 1 key or more, got 0")


def fraction(**values: float) -> None:
    """Raise ValueError unless every value is between 0 and 1, both included."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value}")


def temperature_of_exponentials(**values: float) -> None:
    """Raise ValueError unless exp(1 / value) and sums of it fit a float32: 1/60 or more."""
    for name, value in values.items():
        if not 1 / 60 <= value < math.inf:
            raise ValueError(f"{name} must be 0.0167 or more, or its exponentials overflow, got {value}")


def index_of(batch: int, index: Tensor | None, otherwise: str) -> Tensor:
    """The images' numbers [batch]; ValueError without them, saying what works instead."""
    if index is None:
        raise ValueError(f"this loss keeps a number per image and needs their index [batch]; {otherwise}")
    if index.shape != (batch,):
        raise ValueError(f"index must be [{batch}] like the batch, got shape {list(index.shape)}")
    return index
