"""One clear line for every wrong number of a loss or method; `pairs.arithmetic` checks the
tensors.
"""

import math
from numbers import Real

import torch
from torch import Tensor

from nearfar.pairs.arithmetic import check_rows


def number(**values: object) -> None:
    """Raise ValueError for tensors, parameters, truth values and all else that is no plain
    number.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a plain number, got a {type(value).__name__}")


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above 0."""
    number(**values)
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, got {value}")


def not_negative(**values: float) -> None:
    """Raise ValueError unless every value is a finite number, 0 or above."""
    number(**values)
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number, 0 or above, got {value}")


def at_least(least: int, **values: int) -> None:
    """Raise ValueError unless every value is `least` or more."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}")


def group(group_size: int | None) -> int | None:
    """The images of a group of negatives; ValueError for fewer than two, None is the whole
    batch.
    """
    at_least(2, group_size=2 if group_size is None else group_size)
    return group_size


def same_views(rows: Tensor, **views: Tensor) -> None:
    """Raise ValueError unless each of `views` is [views, batch, dim], around `rows` [batch, dim],
    batch >= 1.
    """
    check_rows(rows=rows)
    for name, stacked in views.items():
        if stacked.shape[1:] != rows.shape or len(stacked) < 1:
            shapes = f"{list(stacked.shape)} for rows {list(rows.shape)}"
            raise ValueError(
                f"{name} must be [views, batch, dim] and other rows [batch, dim], got {shapes}"
            )


def fraction(**values: float) -> None:
    """Raise ValueError unless every value is between 0 and 1, both included."""
    number(**values)
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value}")


def temperature_of_exponentials(**values: float) -> None:
    """Raise ValueError unless exp(1 / value) and sums of it fit a float32: 1/60 or more."""
    number(**values)
    for name, value in values.items():
        if not 1 / 60 <= value < math.inf:
            raise ValueError(
                f"{name} must be 0.0167 or more, or its exponentials overflow, got {value}"
            )


def index_of(batch: int, index: Tensor | None, num_images: int, otherwise: str) -> Tensor:
    """The images' numbers [batch] as int64; ValueError without them, saying what works instead.

    Also ValueError for numbers outside 0 to num_images - 1, where that can be told without waiting
    for a GPU; there the device itself stops.
    """
    if index is None:
        raise ValueError(
            f"this loss keeps a number per image and needs their index [batch]; {otherwise}"
        )
    if index.shape != (batch,):
        raise ValueError(f"index must be [{batch}] like the batch, got shape {list(index.shape)}")
    if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
        raise ValueError(f"index must hold whole numbers, got {index.dtype}")
    index = index.long()  # torch compares no unsigned numbers of more than 8 bits
    if batch and index.device.type == "cpu" and not torch.compiler.is_compiling():
        least, most = int(index.min()), int(index.max())
        if least < 0 or most >= num_images:
            wrong = least if least < 0 else most
            raise ValueError(f"index must hold numbers of 0 to {num_images - 1}, got {wrong}")
    return index
