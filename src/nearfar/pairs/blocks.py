"""The rows of two views cut into blocks, and the tiles of pairs between blocks that a reduction has to visit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.kernels import Kernel
from nearfar.pairs.precision import accumulation_dtype
from nearfar.pairs.processes import active_shares
from nearfar.pairs.products import add_product_, dot_products

TILE_ROWS = {"cpu": 512}  # a tile of 512 x 512 stays in a core's second-level cache; elsewhere two tiles in 16 MiB:
TILE_ROWS_ELSEWHERE = 1408
WIDE = 2**18  # elements: blocks of wider rows than WIDE / TILE_ROWS get fewer of them, down to
FEWEST_ROWS = 64
EPSILON = 1e-12  # smallest norm divided by


class Tile(NamedTuple):
    """The pairs of the rows `x` of block `i` with the rows `y` of block `j`; `scaled` is x times a number asked for.

    The diagonal of a `masked` tile holds rows with themselves or with their positives, and nothing else does.
    """

    i: int
    j: int
    x: Tensor
    y: Tensor
    scaled: Tensor
    masked: bool


class Blocks:
    """Rows of `first` and `second` [batch, dim] (two views of the same images) in blocks of one view each.

    Views are cut alike, so that self pairs and positive pairs are diagonals of whole tiles. Unit kernels see normalised
    rows, others centred ones (distances do not change, rounding does); both are made block by block, in float32
    (float64 for float64 inputs), so that no copy of the views is ever held unless it is but one block each.

    With `shared`, and where processes share the rows (`shared_rows`), the tiles are those of this process's `own`
    blocks, and so are sums and gradients until they are completed.

    Raises ValueError for views of different shape and for fewer than two images (there would be no negative).
    """

    def __init__(
        self,
        first: Tensor,
        second: Tensor,
        *,
        unit: bool,
        across: bool = False,
        shared: bool = False,
        most_rows: int | None = None,
    ) -> None:
        if first.ndim != 2 or first.shape != second.shape:
            raise ValueError(
                f"two views of equal shape [batch, dim] are needed, got {tuple(first.shape)} and {tuple(second.shape)}"
            )
        if len(first) < 2:
            raise ValueError(f"at least two images are needed, or there are no negatives; got a batch of {len(first)}")
        self.views = (first, second)
        self.batch, self.dim = first.shape
        self.unit = unit
        self.across = across
        self.dtype = accumulation_dtype(first, second)
        tile_rows = TILE_ROWS.get(first.device.type, TILE_ROWS_ELSEWHERE)
        most_rows = most_rows or min(tile_rows, max(FEWEST_ROWS, WIDE // self.dim))
        self.shares = active_shares(self.batch) if shared and not across else None
        parts = [_cut(rows, most_rows) for rows in (self.shares.rows if self.shares else [slice(0, self.batch)])]
        slices = [rows for part in parts for rows in part]
        self.places = [(view, rows) for view in (0, 1) for rows in slices]
        self.per_view = count = len(slices)
        own = slices if self.shares is None else parts[self.shares.rank]
        first_own = slices.index(own[0])
        self.own = [view * count + first_own + k for view in (0, 1) for k in range(len(own))]
        self._is_own = [0 <= block % count - first_own < len(own) for block in range(2 * count)]
        self.norm = self.statistic() if unit else None
        self.centre = None if unit else first.mean(0, dtype=self.dtype)
        if self.norm is not None:
            for block in range(len(self.places)):
                rows = self.part(list(self.views), block).to(self.dtype)
                self.part(self.norm, block).copy_(torch.linalg.vector_norm(rows, dim=1).clamp_min_(EPSILON))
        self.made = [self.gathered(*place) for place in self.places] if count == 1 else []

    def statistic(self, value: float = 0.0) -> Float[Tensor, "2 batch"]:
        """A number per row, in the accumulation dtype."""
        return torch.full((2, self.batch), value, dtype=self.dtype, device=self.views[0].device)

    def gradients(self) -> list[Float[Tensor, "batch dim"]]:
        """Zeros for the gradient of each view, in the accumulation dtype."""
        return [torch.zeros(self.batch, self.dim, dtype=self.dtype, device=view.device) for view in self.views]

    def part(self, per_row: Tensor | list[Tensor], block: int) -> Tensor:
        """The rows of one block, of a statistic or of the gradients."""
        view, rows = self.places[block]
        return per_row[view][rows]

    def rows(self, block: int) -> Float[Tensor, "rows dim"]:
        """The normalised or centred rows of one block."""
        return self.made[block] if self.made else self.gathered(*self.places[block])

    def gathered(self, view: int, index: slice | Tensor) -> Float[Tensor, "rows dim"]:
        """Any rows of one view, normalised or centred."""
        rows = self._taken(self.views[view], index).to(self.dtype)
        if self.norm is not None:
            return rows / self._taken(self.norm[view], index).unsqueeze(1)
        assert self.centre is not None
        return rows - self.centre

    @staticmethod
    def _taken(per_row: Tensor, index: slice | Tensor) -> Tensor:
        return per_row[index] if isinstance(index, slice) else per_row.index_select(0, index)

    def partner(self, block: int) -> int:
        """The block that holds the positives of this one, in the same order."""
        return (block + self.per_view) % (2 * self.per_view)

    def tiles(self, scale: float | Tensor = 1.0) -> Iterator[Tile]:
        """Tiles that cover each unordered pair with an own row once; with `across` only pairs of different views."""
        count = len(self.places)
        for i in range(self.per_view) if self.across else self.own:
            x = self.rows(i)
            scaled = x * scale
            for j in range(self.per_view if self.across else 0, count):
                if j < i and self._is_own[j] and not self.across:
                    continue  # seen from j
                yield Tile(i, j, x, x if i == j else self.rows(j), scaled, i % self.per_view == j % self.per_view)

    def buffer(self) -> Tensor:
        """Memory for one tile."""
        size = max(rows.stop - rows.start for _, rows in self.places)
        return torch.empty(size * size, dtype=self.dtype, device=self.views[0].device)

    def affine(self, kernel: Kernel, tile: Tile) -> Tensor:
        """kernel.factor * u_ij of a tile that was asked for with kernel.tile_scale, unmasked."""
        scale = kernel.tile_scale
        values = dot_products(tile.scaled, tile.y)
        if not self.unit:
            values.sub_(tile.x.square().sum(1, keepdim=True).mul_(scale / 2)).sub_(
                tile.y.square().sum(1).mul_(scale / 2)
            )
        if kernel.constant:
            values.add_(kernel.constant * kernel.factor)
        return values

    def positives(self, kernel: Kernel) -> Float[Tensor, " batch"]:
        """u of each positive pair."""
        u = self.statistic()[0]
        for block in range(self.per_view):
            x, y = self.rows(block), self.rows(self.partner(block))
            if self.unit and not kernel.constant:
                value = torch.linalg.vecdot(x, y).mul_(kernel.scale)
            else:  # by the difference: scale * s - scale would lose the digits of near positives
                value = (x - y).square_().sum(1).mul_(-0.5 * kernel.scale).add_(kernel.at_zero)
            self.part([u, u], block).copy_(value)
        return u

    def finish(
        self,
        gradients: list[Tensor],
        kernel_scale: float | Tensor,
        positive: Float[Tensor, " batch"],
        mass: Float[Tensor, "2 batch"] | None = None,
    ) -> None:
        """Turn sums over j of weight_ij * row_j, in place, into the gradient of the views as they were given.

        `positive` is the gradient of the positives' u, `mass` the sum over j of weight_ij (for distances).
        """
        for block in self.own:
            gradient, x = self.part(gradients, block), self.rows(block)
            own = self.part([positive, positive], block).to(self.dtype).unsqueeze(1)
            gradient.addcmul_(own, self.rows(self.partner(block)))
            if self.norm is not None:
                gradient.sub_(x * torch.linalg.vecdot(gradient, x).unsqueeze(1))
                gradient.mul_(kernel_scale / self.part(self.norm, block).unsqueeze(1))
            else:
                assert mass is not None
                gradient.sub_(x * (own + self.part(mass, block).unsqueeze(1))).mul_(kernel_scale)

    def accumulate(self, gradients: list[Tensor], mass: Tensor | None, tile: Tile, weights: Tensor) -> None:
        """Add the tile's share of sum_j weight_ij row_j to both blocks (weights are symmetric)."""
        add_product_(self.part(gradients, tile.i), weights, tile.y)
        if len(self.ends(tile)) > 1:
            add_product_(self.part(gradients, tile.j), weights.T, tile.x)
        if mass is not None:
            self.add_sums(mass, tile, weights)

    def add_sums(self, sums: Tensor, tile: Tile, values: Tensor) -> None:
        """Add the tile's row sums to block i's and, by symmetry, its column sums to block j's."""
        for block, along in self.ends(tile):
            self.part(sums, block).add_(values.sum(along))

    def ends(self, tile: Tile) -> list[tuple[int, int]]:
        """The own blocks whose rows the tile serves, each with the dimension to sum over."""
        return [(tile.i, 1)] if tile.i == tile.j or not self._is_own[tile.j] else [(tile.i, 1), (tile.j, 0)]

    def completed(self, statistic: Tensor) -> Float[Tensor, "2 batch"]:
        """A number per row with those of the other processes' rows, where processes share the rows."""
        return statistic if self.shares is None else self.shares.complete(statistic)

    def as_inputs(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients in the dtypes of the views."""
        first, second = (gradient.to(view.dtype) for gradient, view in zip(gradients, self.views, strict=True))
        return first, second


def _cut(rows: slice, most_rows: int) -> list[slice]:
    """Cut consecutive rows into blocks of almost equal size."""
    length = rows.stop - rows.start
    count = -(-length // most_rows)
    return [slice(*edge) for edge in pairwise(rows.start + length * k // count for k in range(count + 1))]


def shaped(buffer: Tensor, tile: Tile) -> Tensor:
    """The memory of `buffer` as a matrix [rows of i, rows of j]."""
    return buffer[: len(tile.x) * len(tile.y)].view(len(tile.x), len(tile.y))
