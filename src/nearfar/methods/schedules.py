"""Numbers that change over training: temperatures, coefficients, the momentum encoder's momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Schedule(Protocol):
    """A value for a moment of training."""

    def __call__(self, epoch: float, epochs: float) -> Any:
        """Return the value `epoch` epochs (0 at the start, with fractions) into a run of `epochs`."""


@dataclass(frozen=True)
class Constant:
    """The same value throughout."""

    value: float

    def __call__(self, epoch: float, epochs: float) -> float:
        return self.value


@dataclass(frozen=True)
class Cosine:
    """From `start` to `end` along half a cosine (the momentum of BYOL's momentum encoder)."""

    start: float
    end: float

    def __call__(self, epoch: float, epochs: float) -> float:
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * min(epoch / epochs, 1.0)))


def rising(momentum: float, final: float | None) -> Schedule:
    """The momentum of a momentum encoder: along half a cosine to `final`, constant without."""
    return Constant(momentum) if final is None else Cosine(momentum, final)


@dataclass(frozen=True)
class Ramp:
    """`value` * (whole epochs begun) / epochs (JCL's lambda)."""

    value: float

    def __call__(self, epoch: float, epochs: float) -> float:
        return self.value * min(int(epoch) + 1, epochs) / epochs


@dataclass(frozen=True)
class Switch:
    """`before` until `fraction` of the epochs or, if given, `at_epoch` epochs have passed, then `after`."""

    before: Any
    after: Any
    fraction: float = 0.5
    at_epoch: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"a switch needs a fraction of the epochs between 0 and 1, got {self.fraction}")

    def __call__(self, epoch: float, epochs: float) -> Any:
        turn = self.fraction * epochs if self.at_epoch is None else self.at_epoch
        return self.before if epoch < turn else self.after
