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

import torch
from jaxtyping import Float
from scipy.fft import next_fast_len
from torch import Tensor

# of the nodes, in units of the similarity's width: errors of the gradient stay below one per cent
SPACING = 0.35
# along the longest side; in all, beyond which the spacing grows
LEAST_CELLS, MOST_NODES = 30, 2**22
PART = 2**15  # points treated at a time
ORDER = 4  # nodes that a spline covers
LEAST_EXTENT = 0.3  # below which a finer mesh would drown the gradient in rounding


def similarity_sums(
    points: Float[Tensor, "n dim"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n dim"]]:
    """sum_{j != i} 1 / (1 + |y_i - y_j|^2) of each point, and the gradient of each sum with respect
    to its own point.

    points: on the CPU. Their own part is subtracted as the mesh holds it, so that a lonely point
    feels no force.
    """
    return Mesh(points).sums(points)


class Mesh:
    """The similarity to all of some points, on the nodes of a mesh around them."""

    def __init__(self, points: Float[Tensor, "n dim"]) -> None:
        self.low, self.high = points.amin(0), points.amax(0)
        extent = self.high - self.low
        longest = max(float(extent.max()), LEAST_EXTENT)
        dim = points.shape[1]
        most_cells = MOST_NODES ** (1 / dim) / 2 - ORDER
        self.spacing = max(min(SPACING, longest / LEAST_CELLS), longest / most_cells)
        self.nodes = [math.ceil(length / self.spacing) + ORDER for length in extent.tolist()]
        sizes = tuple(
            next_fast_len(2 * math.ceil(count / 16) * 16, real=True) for count in self.nodes
        )  # few different ones
        mesh = points.new_zeros(math.prod(self.nodes))
        for part in points.split(PART):
            index, weights, _ = self._splines(part)
            mesh.index_add_(0, index.flatten(), weights.flatten())
        transformed, self.around = _similarity(self.spacing, sizes)
        mesh = torch.fft.rfftn(mesh.view(self.nodes), s=sizes).mul_(transformed)
        whole = torch.fft.irfftn(mesh, s=sizes)
        self.field = whole[tuple(map(slice, self.nodes))].flatten()

    def sums(
        self, points: Float[Tensor, "some dim"]
    ) -> tuple[Float[Tensor, " some"], Float[Tensor, "some dim"]]:
        """`similarity_sums` of some of the points, which may have moved a little."""
        sums, gradients = [], []
        for part in points.clamp(self.low, self.high).split(PART):
            index, weights, slopes = self._splines(part)
            others = self.field[index] - weights @ self.around
            sums.append((others * weights).sum(1))
            gradients.append((others * slopes).sum(2).T / self.spacing)
        return torch.cat(sums), torch.cat(gradients)

    def _splines(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _splines((points - self.low) / self.spacing, self.nodes)


def _splines(places: Tensor, nodes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes around each place [n, 4^dim], their weights, and the weights' derivatives [dim, n,
    4^dim].
    """
    cell = places.floor()
    u, first = places - cell, cell.long()
    v = 1 - u
    weight = torch.stack([v**3, 3 * u**3 - 6 * u**2 + 4, 3 * v**3 - 6 * v**2 + 4, u**3], 2) / 6
    slope = torch.stack([-(v**2), 3 * u**2 - 4 * u, 4 * v - 3 * v**2, u**2], 2) / 2
    index, weights = first.new_zeros(len(places), 1), places.new_ones(len(places), 1)
    slopes = places.new_ones(len(nodes), len(places), 1)
    steps = torch.arange(ORDER)
    for axis, count in enumerate(nodes):
        index = (index[:, :, None] * count + (first[:, axis, None] + steps)[:, None]).flatten(1)
        weights = (weights[:, :, None] * weight[:, axis, None]).flatten(1)
        factors = torch.stack(
            [(slope if axis == other else weight)[:, axis] for other in range(len(nodes))]
        )
        slopes = (slopes[:, :, :, None] * factors[:, :, None]).flatten(2)
    return index, weights, slopes


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
