"""The rows of two views cut into blocks, and the tiles of pairs between blocks that a reduction has
to visit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.pairs.arithmetic import (
    EPSILON,
    PerImage,
    PerRow,
    accumulation_dtype,
    add_product_,
    check_rows,
    dot_products,
    is_exact,
)
from nearfar.pairs.kernels import Kernel
from nearfar.pairs.shares import active_shares

# A tile of 512 x 512 stays in a core's second-level cache. A GPU waits for Python between small
# tiles; there three of them, as many as are alive at a time, take 192 MiB.
TILE_ROWS = {"cpu": 512}
TILE_ROWS_ELSEWHERE = 4096
# elements: blocks of wider rows than WIDE / TILE_ROWS get fewer of them, down to FEWEST_ROWS
WIDE = {"cpu": 2**18}
WIDE_ELSEWHERE = 2**20
FEWEST_ROWS = 64
# smaller groups of negatives share a block, as small blocks cost more than pairs left out
GROUPED_ROWS = 128


def fitting_rows(device: torch.device, dim: int) -> int:
    """The rows that a block has at most, and so the rows and columns of a tile."""
    most = TILE_ROWS.get(device.type, TILE_ROWS_ELSEWHERE)
    wide = WIDE.get(device.type, WIDE_ELSEWHERE)
    return min(most, max(FEWEST_ROWS, wide // dim))


class Tile(NamedTuple):
    """The pairs of the rows `x` of block `i` with the rows `y` of block `j`; `scaled` is x times
    the scale asked for.

    A `masked` tile holds rows with themselves or with their positives (see `mask_`), and no other
    tile does.
    """

    i: int
    j: int
    x: Tensor
    y: Tensor
    scaled: Tensor
    masked: bool


class Blocks:
    """Rows of `first` and `second` [batch, dim] (two views of the same images) in blocks of one
    view each.

    Views are cut alike, so that self pairs and positive pairs are diagonals of whole tiles. Unit
    kernels see normalised rows, others centred ones (distances do not change, rounding does); both
    are made block by block, in float32 (float64 for float64 inputs), so that no copy of the views
    is held unless each is a single block. If all rows of both views fit into one block they are
    taken `as_one`: fewer operations save more than half a tile less would.

    With `shared`, and where processes share the rows (`shared_rows`), the tiles are those of this
    process's `own` blocks, and so are sums and gradients until they are completed.

    With `group_size`, pairs are those within consecutive groups of so many images; only their tiles
    are visited.

    Raises ValueError for views of different shape, for fewer than two images (there would be no
    negative), and for groups of fewer than two or that divide the rows of the batch, or of a
    process, with a remainder.
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
        group_size: int | None = None,
    ) -> None:
        check_rows(2, first=first, second=second)
        self.views = (first, second)
        self.batch, self.dim = first.shape
        self.unit = unit
        self.across = across
        self.dtype = accumulation_dtype(first, second)
        fitting = most_rows or fitting_rows(first.device, self.dim)
        self.shares = active_shares(self.batch) if shared and not across else None
        self.in_groups = group_size is not None
        self.exact = is_exact(first, second)
        # the rows as `fused` needs them, made where it is used
        self.operands: tuple[Tensor, Tensor | None] | None = None
        self.group = group = self.batch if group_size is None else group_size
        shares = self.shares.rows if self.shares else [slice(0, self.batch)]
        if group < 2 or (self.in_groups and any(rows.stop % group for rows in shares)):
            described = (
                f"the batch of {self.batch}" if self.shares is None else "the rows of each process"
            )
            raise ValueError(f"group_size must be 2 or more and divide {described}, got {group}")
        self.as_one = (
            not (across or most_rows or self.shares or self.in_groups) and 2 * self.batch <= fitting
        )
        # whole groups in a block, or a group of blocks; without groups beyond the batch
        self._span = group * max(1, min(GROUPED_ROWS, fitting) // group)
        parts = [_cut(rows, fitting, self._span) for rows in shares]
        slices = [rows for part in parts for rows in part]
        self.per_view = count = len(slices)
        self.places = [(view, rows) for view in (0, 1) for rows in slices]
        own = slices if self.shares is None else parts[self.shares.rank]
        first_own = slices.index(own[0])
        self.own = [view * count + first_own + k for view in (0, 1) for k in range(len(own))]
        if self.as_one:
            self.own = [0]
        self._is_own = [0 <= block % count - first_own < len(own) for block in range(2 * count)]
        self.norm = self.statistic() if unit else None
        self.centre = None if unit else first.mean(0, dtype=self.dtype)
        self.whole = self._whole() if count == 1 else None
        if self.norm is not None and self.whole is None:
            for block in range(2 * count):
                rows = self.part(self.views, block).to(self.dtype)
                self.part(self.norm, block).copy_(
                    torch.linalg.vector_norm(rows, dim=1).clamp_min_(EPSILON)
                )

    def _whole(self) -> Float[Tensor, "2 batch dim"]:
        """All rows, normalised or centred, where each view is a single block."""
        rows = torch.stack([view.to(self.dtype) for view in self.views])
        if self.norm is None:
            assert self.centre is not None
            return rows.sub_(self.centre)
        torch.linalg.vector_norm(rows, dim=2, out=self.norm).clamp_min_(EPSILON)
        return rows.div_(self.norm.unsqueeze(2))

    def statistic(self, value: float = 0.0) -> PerRow:
        """A number per row, in the accumulation dtype."""
        return torch.full((2, self.batch), value, dtype=self.dtype, device=self.views[0].device)

    def squares(self) -> PerRow:
        """The squared length of each row, normalised or centred."""
        if self.whole is not None:
            return self.whole.square().sum(2)
        squares = self.statistic()
        for block in range(2 * self.per_view):
            self.part(squares, block).copy_(self.rows(block).square_().sum(1))
        return squares

    def gradients(self) -> Float[Tensor, "2 batch dim"]:
        """Zeros for the gradient of each view, in the accumulation dtype."""
        return torch.zeros(2, self.batch, self.dim, dtype=self.dtype, device=self.views[0].device)

    def part(self, per_row: Tensor | tuple[Tensor, Tensor], block: int) -> Tensor:
        """The rows of one block, of a statistic, of the gradients or of the views."""
        if self.as_one:
            assert isinstance(per_row, Tensor)
            return per_row.flatten(0, 1)
        view, rows = self.places[block]
        return per_row[view][rows]

    def rows(self, block: int) -> Float[Tensor, "rows dim"]:
        """The normalised or centred rows of one block."""
        return (
            self.gathered(*self.places[block])
            if self.whole is None
            else self.part(self.whole, block)
        )

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

    def positive_pairs(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Images with their rows of the first and of the second view."""
        if self.whole is not None:
            yield slice(0, self.batch), *self.whole
            return
        for block in range(self.per_view):
            yield self.places[block][1], self.rows(block), self.rows(block + self.per_view)

    def tiles(self, scale: float | Tensor = 1.0) -> Iterator[Tile]:
        """Tiles that cover each unordered pair with an own row once; with `across` only pairs of
        different views.
        """
        count = 1 if self.as_one else len(self.places)
        for i in range(self.per_view) if self.across else self.own:
            x = self.rows(i)
            scaled = x * scale
            for j in range(self.per_view if self.across else 0, count):
                if j < i and self._is_own[j] and not self.across:
                    continue  # seen from j
                if self.in_groups and not (
                    self._is_own[j] and self._span_of(i) == self._span_of(j)
                ):
                    continue
                yield Tile(
                    i,
                    j,
                    x,
                    x if i == j else self.rows(j),
                    scaled,
                    i % self.per_view == j % self.per_view,
                )

    def _span_of(self, block: int) -> int:
        """The number of the span that a block lies in."""
        return self.places[block][1].start // self._span

    def _side(self) -> int:
        """The rows of the largest block."""
        return (
            2 * self.batch
            if self.as_one
            else max(rows.stop - rows.start for _, rows in self.places)
        )

    def elements(self) -> int:
        """Elements of all tiles together and of the rows at work on one of them (six blocks at a
        time), roughly.
        """
        side, rows = self._side(), 2 * self.batch
        return (self.batch**2 if self.across else rows * (rows + side) // 2) + 6 * side * self.dim

    def buffer(self) -> Tensor:
        """Memory for one tile."""
        return torch.empty(self._side() ** 2, dtype=self.dtype, device=self.views[0].device)

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

    def positives(self, kernel: Kernel) -> PerImage:
        """u of each positive pair."""
        u = self.statistic()[0]
        for rows, x, y in self.positive_pairs():
            if self.unit and not kernel.constant:
                value = torch.linalg.vecdot(x, y).mul_(kernel.scale)
            else:  # by the difference: scale * s - scale would lose the digits of near positives
                value = (x - y).square_().sum(1).mul_(-0.5 * kernel.scale).add_(kernel.at_zero)
            u[rows] = value
        return u

    def finish(
        self,
        gradients: Tensor,
        kernel_scale: float | Tensor,
        positive: PerImage,
        mass: PerRow | None = None,
    ) -> None:
        """Turn sums over j of weight_ij * row_j, in place, into the gradient of the views as they
        were given.

        `positive` is the gradient of the positives' u, `mass` the sum over j of weight_ij (for
        distances).
        """
        positive = positive.to(self.dtype)
        if self.whole is not None and self.shares is None:
            self._finish(
                gradients, self.whole, self.whole.flip(0), kernel_scale, positive, self.norm, mass
            )
            return
        for block in self.own:
            partners = self.rows((block + self.per_view) % (2 * self.per_view))
            gradient, x, own = (
                self.part(gradients, block),
                self.rows(block),
                positive[self.places[block][1]],
            )
            norm, masses = (
                None if numbers is None else self.part(numbers, block)
                for numbers in (self.norm, mass)
            )
            self._finish(gradient, x, partners, kernel_scale, own, norm, masses)

    @staticmethod
    def _finish(
        gradient: Tensor,
        x: Tensor,
        partners: Tensor,
        kernel_scale: float | Tensor,
        positive: Tensor,
        norm: Tensor | None,
        mass: Tensor | None,
    ) -> None:
        gradient.addcmul_(positive.unsqueeze(-1), partners)
        if norm is not None:
            gradient.addcmul_(x, torch.linalg.vecdot(gradient, x).unsqueeze(-1), value=-1)
            gradient.mul_((kernel_scale / norm).unsqueeze(-1))
        else:
            assert mass is not None
            gradient.addcmul_(x, (positive + mass).unsqueeze(-1), value=-1).mul_(kernel_scale)

    def accumulate(
        self, gradients: Tensor, mass: Tensor | None, tile: Tile, weights: Tensor
    ) -> None:
        """Add the tile's share of sum_j weight_ij row_j to both blocks (weights are symmetric)."""
        add_product_(self.part(gradients, tile.i), weights, tile.y)
        if len(self.ends(tile)) > 1:
            add_product_(self.part(gradients, tile.j), weights.T, tile.x)
        if mass is not None:
            self.add_sums(mass, tile, weights)

    def mask_(self, tile: Tile, values: Tensor, value: float = 0.0) -> None:
        """Set a tile's pairs of rows with themselves, with their positives, and with other
        groups.
        """
        if tile.masked:
            views = 2 if self.as_one else 1
            by_view = values.view(views, -1, views, len(tile.y) // views)
            by_view.diagonal(dim1=1, dim2=3).fill_(value)
            if not self.as_one and (count := len(tile.x) // self.group) > 1:
                apart = ~torch.eye(count, dtype=torch.bool, device=values.device)
                values.view(count, self.group, count, self.group).masked_fill_(
                    apart[:, None, :, None], value
                )

    def add_sums(self, sums: Tensor, tile: Tile, values: Tensor) -> None:
        """Add the tile's row sums to block i's and, by symmetry, its column sums to block j's."""
        for block, along in self.ends(tile):
            self.part(sums, block).add_(values.sum(along))

    def ends(self, tile: Tile) -> list[tuple[int, int]]:
        """The own blocks whose rows the tile serves, each with the dimension to sum over."""
        return (
            [(tile.i, 1)]
            if tile.i == tile.j or not self._is_own[tile.j]
            else [(tile.i, 1), (tile.j, 0)]
        )

    def completed(self, statistic: Tensor) -> PerRow:
        """A number per row with those of the other processes' rows, where processes share the
        rows.
        """
        return statistic if self.shares is None else self.shares.complete(statistic)

    def added_up(self, numbers: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        """Sums over own rows, added up over the processes where they share the rows."""
        return numbers if self.shares is None else self.shares.added_up(numbers)

    def as_inputs(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients in the dtypes of the views."""
        first, second = (
            gradient.to(view.dtype) for gradient, view in zip(gradients, self.views, strict=True)
        )
        return first, second


def _cut(rows: slice, most_rows: int, span: int) -> list[slice]:
    """Cut consecutive rows where spans end, and each part into blocks of almost equal size."""
    blocks = []
    for start, stop in pairwise(
        [rows.start, *range((rows.start // span + 1) * span, rows.stop, span), rows.stop]
    ):
        count = -(-(stop - start) // most_rows)
        blocks += [
            slice(*edge)
            for edge in pairwise(start + (stop - start) * k // count for k in range(count + 1))
        ]
    return blocks


def shaped(buffer: Tensor, tile: Tile) -> Tensor:
    """The memory of `buffer` as a matrix [rows of i, rows of j]."""
    return buffer[: len(tile.x) * len(tile.y)].view(len(tile.x), len(tile.y))
