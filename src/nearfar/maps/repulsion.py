"""Sums of the Cauchy similarity over all pairs of points, and their gradient, on a mesh: O(points)
in place of squares.

Every point is spread over the nodes around it by cubic B-splines, the mesh is convolved with the
similarity by FFT, and the values at the points are read with the same splines: the particle mesh of
Hockney & Eastwood 1988, with splines as in Essmann et al. 1995 ("smooth particle mesh Ewald").
Linderman et al. 2019 ("FIt-SNE") use polynomials for t-SNE.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from scipy.fft import next_fast_len
from torch import Tensor

from nearfar.threads import Mapped

# of the nodes, in units of the similarity's width: errors of the gradient stay below one per cent
SPACING = 0.35
# along the longest side; in all, beyond which the spacing grows
LEAST_CELLS, MOST_NODES = 30, 2**22
PART = 2**15  # points treated at a time
GROUPS = 2  # at most, of points that are spread over a mesh of their own, and then added up
ORDER = 4  # nodes that a spline covers
# factors of u^0 to u^3 in the cubic B-splines of the nodes around a place u, and in their slopes
FLOAT: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever torch's default is
SPLINES = torch.tensor([[1, -3, 3, -1], [4, 0, -6, 3], [1, 3, 3, -3], [0, 0, 0, 1]], **FLOAT) / 6
SLOPES = torch.tensor([[-1, 2, -1, 0], [0, -4, 3, 0], [1, 2, -3, 0], [0, 0, 1, 0]], **FLOAT) / 2
SPLINES_AND_SLOPES = torch.stack([SPLINES, SLOPES], 1).flatten(0, 1)
LEAST_EXTENT = 0.3  # below which a finer mesh would drown the gradient in rounding


def similarity_sums(
    points: Float[Tensor, "n dim"], each: Mapped = map
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n dim"]]:
    """sum_{j != i} 1 / (1 + |y_i - y_j|^2) of each point, and the gradient of each sum with respect
    to its own point.

    points: on the CPU. Their own part is subtracted as the mesh holds it, so that a lonely point
    feels no force. each: `map`, or one that works in threads.
    """
    return Mesh(points, each).sums(points, each)


class Mesh:
    """The similarity to all of some points, on the nodes of a mesh around them.

    each: `map`, or one that works in threads; the mesh is the same.
    """

    def __init__(self, points: Float[Tensor, "n dim"], each: Mapped = map) -> None:
        self.low, self.high = points.amin(0), points.amax(0)
        extent = self.high - self.low
        longest = max(float(extent.max()), LEAST_EXTENT)
        dim = points.shape[1]
        most_cells = MOST_NODES ** (1 / dim) / 2 - ORDER
        self.spacing = max(min(SPACING, longest / LEAST_CELLS), longest / most_cells)
        self.cells = [math.ceil(length / self.spacing) + 1 for length in extent.tolist()]
        nodes = [count + ORDER - 1 for count in self.cells]
        sizes = tuple(
            next_fast_len(2 * math.ceil(count / 16) * 16, real=True) for count in nodes
        )  # few different ones
        groups = points.chunk(min(GROUPS, math.ceil(len(points) / PART)))
        spread = sum(each(self._spread, groups), points.new_zeros(()))
        transformed, self.around = _similarity(self.spacing, sizes)
        transformed = torch.fft.rfftn(spread, s=sizes).mul_(transformed)
        whole = torch.fft.irfftn(transformed, s=sizes)
        self.windows = _windows(whole[tuple(map(slice, nodes))])

    def sums(
        self, points: Float[Tensor, "some dim"], each: Mapped = map
    ) -> tuple[Float[Tensor, " some"], Float[Tensor, "some dim"]]:
        """`similarity_sums` of some of the points, which may have moved a little."""
        parts = points.clamp(self.low, self.high).split(PART)
        sums, gradients = zip(*each(self._read, parts), strict=True)
        return torch.cat(sums), torch.cat(gradients)

    def _spread(self, points: Tensor) -> Tensor:
        """Spread points over the nodes."""
        windows = points.new_zeros(math.prod(self.cells), ORDER ** len(self.cells))
        for part in points.split(PART):
            cell, place = self._cells(part)
            windows.index_add_(0, cell, _outer(_powers(place) @ SPLINES.T))
        return _overlaid(windows.view(*self.cells, *[ORDER] * len(self.cells)))

    def _read(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Read the sums at points, and their gradients."""
        cell, place = self._cells(points)
        both = (_powers(place) @ SPLINES_AND_SLOPES.T).unflatten(2, (ORDER, 2))
        weights = _outer(both[..., 0])
        others = self.windows.index_select(0, cell) - weights @ self.around
        values = others.view(-1, *[ORDER] * points.shape[1])
        for axis in reversed(range(points.shape[1])):  # the last axis becomes the first
            values = torch.einsum("n...a,nas->ns...", values, both[:, axis])
        values = values.flatten(1)  # by a binary number: which axes have slopes
        along = [2**axis for axis in reversed(range(points.shape[1]))]
        return values[:, 0], values[:, along] / self.spacing

    def _cells(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The cell of each point, by number, and its place there, 0 to 1 along each axis."""
        places = (points - self.low) / self.spacing
        corner = places.floor()
        cell = corner.new_zeros(len(points), dtype=torch.long)
        for count, along in zip(self.cells, corner.long().T, strict=True):
            cell = cell * count + along
        return cell, places - corner


def _powers(place: Tensor) -> Tensor:
    """Powers 0 to 3 of each place [n, dim, 4]."""
    squared = place * place
    return torch.stack([torch.ones_like(place), place, squared, squared * place], 2)


def _outer(weight: Tensor) -> Tensor:
    """Products of the weights [n, dim, 4] along all axes [n, 4^dim]."""
    product = weight[:, 0]
    for axis in range(1, weight.shape[1]):
        product = (product[:, :, None] * weight[:, axis, None]).flatten(1)
    return product


def _windows(field: Tensor) -> Tensor:
    """The values at the nodes around each cell [cells, 4^dim], so that a point reads a row."""
    dim = field.dim()
    for axis in range(dim):
        field = field.unfold(axis, ORDER, 1)
    return field.flatten(0, dim - 1).flatten(1).contiguous()


def _overlaid(windows: Tensor) -> Tensor:
    """The sum at each node of all windows [*cells, *4^dim] over it: the transpose of `_windows`."""
    for axis in reversed(range(windows.dim() // 2)):
        shape, count = list(windows.shape[:-1]), windows.shape[axis]
        shape[axis] += ORDER - 1
        nodes = windows.new_zeros(shape)
        for offset in range(ORDER):
            nodes.narrow(axis, offset, count).add_(windows[..., offset])
        windows = nodes
    return windows


@lru_cache(maxsize=4)  # a layout keeps its spacing, and its size for many steps
def _similarity(spacing: float, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The similarity's transform, freed twice from the splines' smoothing, and its values between
    the nodes of a cell.

    A spline spreads 1/6, 4/6, 1/6 over the nodes of a point on a node, which is (4 + 2 cos) / 6
    when transformed.
    """
    squared, smoothing = torch.zeros(()), torch.ones(())
    for axis, size in enumerate(sizes):
        shape = [-1 if other == axis else 1 for other in range(len(sizes))]
        place = torch.arange(size)
        squared = squared + (torch.minimum(place, size - place) * spacing).square().view(shape)
        frequency = torch.arange(size // 2 + 1) if axis == len(sizes) - 1 else place
        smoothing = smoothing * ((4 + 2 * torch.cos(2 * math.pi * frequency / size)) / 6).view(
            shape
        )
    transformed = torch.fft.rfftn(1 / (1 + squared)).real / smoothing.square()
    near = torch.fft.irfftn(transformed.to(torch.complex64), s=sizes)
    steps = torch.cartesian_prod(*[torch.arange(ORDER)] * len(sizes)).view(-1, len(sizes))
    apart = [(a[:, None] - a) % size for a, size in zip(steps.T, sizes, strict=True)]
    return transformed, near[tuple(apart)]
