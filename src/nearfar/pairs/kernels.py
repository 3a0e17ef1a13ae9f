"""Similarity kernels q_ij = f(u_ij), where u_ij is affine in z_i.z_j (unit rows) or in |z_i -
z_j|^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from nearfar.pairs.arithmetic import LOG2_E


class Form(IntEnum):
    """The number of a pair with dot product s, and its weight in the gradient of row i, for the
    kernel in Triton.

    EXPONENTIAL: q = 2^(scale s + bias), (a_i + a_j) q; numbers of a row: a. SOFTMAX: 2^(r_i s) with
    a running maximum, a_i 2^(r_i s - l_i) + a_j 2^(r_j s - l_j); numbers: r, a, l. LOGISTIC:
    softplus(scale s + bias), its sigmoid. CAUCHY: q = 1 / u with u = bias + scale (s - h_i - h_j),
    -(a_i + a_j) q^2; numbers: h (half of |x|^2), a.
    """

    EXPONENTIAL = 0
    SOFTMAX = 1
    LOGISTIC = 2
    CAUCHY = 3


@dataclass(frozen=True)
class Kernel:
    """q = exp(u) on unit rows (`unit`; the engine normalises), 1 / u on others: see `cosine`,
    `gaussian`, `cauchy`.

    On unit rows u = scale * z_i.z_j + constant, on others u = constant - scale / 2 * |z_i - z_j|^2:
    either way du / dz_i = scale * (z_j, or z_j - z_i).

    >>> cosine(temperature=0.5)
    Kernel(unit=True, scale=2.0, constant=0.0)
    """

    unit: bool
    scale: float | Tensor
    constant: float = 0.0

    @property
    def factor(self) -> float:
        """Factor by which tiles of u are multiplied: 2^x is several times cheaper than e^x on some
        CPUs.
        """
        return LOG2_E if self.unit else 1.0

    @property
    def tile_scale(self) -> float | Tensor:
        """Factor by which dot products are multiplied in a tile of factor * u."""
        return self.scale * self.factor

    @property
    def at_zero(self) -> float | Tensor:
        """u of two equal rows."""
        return self.constant + (self.scale if self.unit else 0.0)

    def similarity_(self, tile: Tensor) -> Tensor:
        """q from factor * u, in place."""
        return tile.exp2_() if self.unit else tile.clamp_(min=1.0).reciprocal_()

    def times_slope_(self, weights: Tensor, similarity: Tensor) -> Tensor:
        """weights * dq/du, in place: dq/du is q for exponentials and -q^2 for the reciprocal."""
        weights.mul_(similarity)
        return weights if self.unit else weights.mul_(similarity).neg_()

    def log_similarity(self, u: Tensor) -> Tensor:
        """log q from u."""
        return u if self.unit else -u.log()


def cosine(temperature: float | Tensor) -> Kernel:
    """q = exp(s_ij / temperature) on unit rows.

    >>> cosine(temperature=0.5).scale
    2.0
    """
    return Kernel(unit=True, scale=1 / temperature)


def gaussian(bandwidth: float) -> Kernel:
    """q = exp(-|z_i - z_j|^2 / (2 bandwidth^2)), which is exp((s_ij - 1) / bandwidth^2), on unit
    rows.

    >>> gaussian(bandwidth=0.5).constant
    -4.0
    """
    return Kernel(unit=True, scale=1 / bandwidth**2, constant=-1 / bandwidth**2)


def cauchy() -> Kernel:
    """q = 1 / (1 + |z_i - z_j|^2) on rows of any length.

    >>> cauchy().unit
    False
    """
    return Kernel(unit=False, scale=-2.0, constant=1.0)
