"""Pairs on a GPU in one launch of a kernel in Triton (fused_kernel.py), where tiles would be many.

`visit` and `attend` return None where tiles have to do it: on a CPU and on devices that Triton does
not compile for, for float64, groups and wide rows, inside torch.compile, where the environment
variable NEARFAR_PAIRS is "tiles", and once the kernel has failed to be imported or compiled, which
a warning says once.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.device import has_warpgroups
from nearfar.pairs.arithmetic import LOG2_E, unit_rows
from nearfar.pairs.blocks import Blocks
from nearfar.pairs.kernels import Form
from nearfar.triton_kernels import TritonKernel

COUNTS = {Form.EXPONENTIAL: 1, Form.SOFTMAX: 3, Form.LOGISTIC: 2, Form.CAUCHY: 2}
"""Sums of a row that the kernel writes."""
KERNEL = TritonKernel("pairs of embeddings", otherwise="tiles", switch="NEARFAR_PAIRS")
WIDEST = 128  # numbers of a row
PROGRAMS = 264  # two for each of an H100's 132 multiprocessors; the same for all, as are the sums
_CHUNK = 2**21  # elements of a queue that are converted at a time

Affine = tuple[float | Tensor, float] | Tensor
Attended = tuple[Float[Tensor, " rows"], Float[Tensor, "rows dim"]]


class Side(NamedTuple):
    """Rows [n, dim] as bfloat16 `high`, with `low` for float32 quality, and numbers [k, n]."""

    high: Tensor
    low: Tensor | None
    numbers: Tensor | None


class Images(NamedTuple):
    """The image of row i is start + i % half, that of column j is j % period."""

    start: int
    half: int
    period: int


class Visited(NamedTuple):
    """Sums of each row [k, 2, batch] and the gradient [2, batch, dim]; empty where not wanted."""

    sums: Tensor
    gradient: Tensor


def takes(device: torch.device, dim: int, dtype: torch.dtype) -> bool:
    """Return whether the kernel does rows of so many numbers whose sums are of this dtype."""
    return KERNEL.chosen_on(device) and dtype == torch.float32 and dim <= WIDEST


def takes_blocks(blocks: Blocks) -> bool:
    """Return whether `visit` would try; callers that have numbers to prepare ask first."""
    return not blocks.in_groups and takes(blocks.views[0].device, blocks.dim, blocks.dtype)


def visit(
    blocks: Blocks,
    form: Form,
    *,
    numbers: tuple[Tensor, ...] = (),
    affine: Affine = (1.0, 0.0),
    sums: bool = False,
    gradient: bool = False,
) -> Visited | None:
    """Sums of each own row and the gradient's sum_j W_ij row_j, over the pairs that the tiles of
    `blocks` hold; None where tiles have to do it.

    numbers: those of `Form`, each [2, batch]. affine: scale and bias, on the device where they are
    learned. The gradient is that of rows as the kernel sees them, for `Blocks.finish`.
    """
    if not takes_blocks(blocks):
        return None
    return KERNEL.tried(lambda: _visit(blocks, form, numbers, affine, sums, gradient))


def _visit(
    blocks: Blocks,
    form: Form,
    numbers: tuple[Tensor, ...],
    affine: Affine,
    sums: bool,
    gradient: bool,
) -> Visited:
    batch = blocks.batch
    per_row = torch.stack([part.expand(2, batch) for part in numbers]) if numbers else None
    # distances are small differences of large products
    high, low = _operands(blocks, blocks.exact or form is Form.CAUCHY)
    own = slice(0, batch) if blocks.shares is None else blocks.shares.rows[blocks.shares.rank]
    count = own.stop - own.start

    def side(views: slice, rows: slice) -> Side:
        return Side(
            high[views, rows].flatten(0, 1),
            None if low is None else low[views, rows].flatten(0, 1),
            None if per_row is None else per_row[:, views, rows].flatten(1).contiguous(),
        )

    first, second, both, every = slice(0, 1), slice(1, 2), slice(0, 2), slice(0, batch)
    # rows and columns: two modalities are compared with each other alone
    pairs = [(first, second), (second, first)] if blocks.across else [(both, both)]
    launched = []
    for x, y in pairs:
        columns = side(y, every)
        rows = columns if x == y and own == every else side(x, own)
        images = Images(own.start, count, batch)
        launched.append(
            _launch(rows, columns, form, sums=sums, gradient=gradient, affine=affine, images=images)
        )
    if gradient:  # the last visit of a step: its memory is the next result's
        blocks.operands = None
    of_rows = _joined([part.unflatten(1, (-1, count)) for part, _ in launched], 1)
    of_views = launched[0][1]
    if gradient:
        parts = [part[:, : blocks.dim].unflatten(0, (-1, count)) for _, part in launched]
        of_views = _joined(parts, 0)
    if own == every:
        return Visited(of_rows, of_views)
    return Visited(
        _placed(of_rows, own, batch, 2),
        _placed(of_views, own, batch, 1) if gradient else of_views,
    )


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _placed(part: Tensor, own: slice, batch: int, dim: int) -> Tensor:
    """The own rows among those of all processes, which are zeros."""
    shape = list(part.shape)
    shape[dim] = batch
    whole = part.new_zeros(shape)
    whole.narrow(dim, own.start, own.stop - own.start).copy_(part)
    return whole


def _operands(blocks: Blocks, exact: bool) -> tuple[Tensor, Tensor | None]:
    """The rows [2, batch, width] in bfloat16, and what is missing to float32; made once."""
    if blocks.operands is None:
        if blocks.whole is not None:
            rows = [(slice(None), blocks.whole.flatten(0, 1))]
        else:
            rows = [
                (
                    slice(view * blocks.batch + part.start, view * blocks.batch + part.stop),
                    blocks.rows(block),
                )
                for block, (view, part) in enumerate(blocks.places)
            ]
        high, low = _halved(rows, 2 * blocks.batch, exact)
        blocks.operands = (
            high.unflatten(0, (2, -1)),
            None if low is None else low.unflatten(0, (2, -1)),
        )
    return blocks.operands


def _halved(
    parts: Iterable[tuple[slice, Tensor]], count: int, exact: bool
) -> tuple[Tensor, Tensor | None]:
    """Rows in bfloat16, of a power of two numbers, and with `exact` the rest in bfloat16 too."""
    high: Tensor | None = None
    low: Tensor | None = None
    if count * WIDEST >= 2**31:
        raise OverflowError(f"{count} rows are beyond 32-bit addresses")
    for place, rows in parts:
        dim = rows.shape[1]
        if high is None:
            width = max(16, 1 << (dim - 1).bit_length())
            new = rows.new_empty if width == dim else rows.new_zeros
            high = new(count, width, dtype=torch.bfloat16)
            low = new(count, width, dtype=torch.bfloat16) if exact else None
        high[place, :dim] = rows
        if low is not None:
            low[place, :dim] = rows - high[place, :dim]
    assert high is not None
    return high, low


def attend(
    query: Tensor,
    keys: Tensor,
    temperature: float | Tensor,
    own: int | None,
    raw: bool,
    exact: bool,
) -> Attended | None:
    """The two results of `attention.attend_tiles`; None where tiles have to do it."""
    if not takes(query.device, query.shape[1], query.dtype):
        return None
    return KERNEL.tried(lambda: _attend(query, keys, temperature, own, raw, exact))


def _attend(
    query: Tensor,
    keys: Tensor,
    temperature: float | Tensor,
    own: int | None,
    raw: bool,
    exact: bool,
) -> Attended:
    (rows, dim), count = query.shape, len(keys)
    height = max(1, _CHUNK // dim)
    parts = (
        (slice(start, start + height), keys[start : start + height])
        for start in range(0, count, height)
    )
    units = (
        (place, unit_rows(part, query.dtype) if raw else part.to(query.dtype))
        for place, part in parts
    )
    rates = query.new_zeros(1, rows) + LOG2_E / temperature
    log_sums, mean_key = _launch(
        Side(*_halved([(slice(None), query)], rows, exact), rates),
        Side(*_halved(units, count, exact), None),
        Form.SOFTMAX,
        sums=True,
        gradient=True,
        images=None if own is None else Images(own, rows, count),
    )
    return log_sums[0] / LOG2_E, mean_key[:, :dim].contiguous()


def _launch(
    x: Side,
    y: Side,
    form: Form,
    *,
    sums: bool,
    gradient: bool,
    affine: Affine = (1.0, 0.0),
    images: Images | None = None,
) -> tuple[Tensor, Tensor]:
    """Sums [k, rows] and gradients [rows, dim], empty where not wanted.

    For a softmax the sums are their logarithm to the base 2 and the mean product, and the gradient
    that is made with them is the mean column.
    """
    (rows, dim), columns = x.high.shape, len(y.high)
    device, kernel = x.high.device, importlib.import_module("nearfar.pairs.fused_kernel")
    tall, wide, warps, stages = kernel.tile_of(form, x.low is not None, has_warpgroups(device))
    blocks = -(-rows // tall)
    splits, per_split = _splits(blocks, columns, wide)
    made = x.high.new_empty(COUNTS[form], splits, rows, dtype=torch.float32)
    gradients = made.new_empty(splits, rows if gradient else 0, dim)
    learned = isinstance(affine, Tensor)
    scale, bias = (1.0, 0.0) if isinstance(affine, Tensor) else affine
    start, half, period = images or Images(0, rows, columns)
    with torch.accelerator.device_index(device.index):
        kernel.visit[(blocks, splits)](
            x.high,
            x.high if x.low is None else x.low,
            y.high,
            y.high if y.low is None else y.low,
            made if x.numbers is None else x.numbers,
            made if y.numbers is None else y.numbers,
            affine if learned else made,
            made,
            gradients,
            rows,
            columns,
            per_split,
            start,
            half,
            period,
            float(scale),
            float(bias),
            DIM=dim,
            FORM=form.value,
            LOW=x.low is not None,
            SUMS=sums,
            GRADIENT=gradient,
            MASK=images is not None,
            EVEN=columns % wide == 0,
            LEARNED=learned,
            ROWS=tall,
            COLUMNS=wide,
            num_warps=warps,
            num_stages=stages,
            enable_fp_fusion=True,
        )
    if form is Form.SOFTMAX and sums:
        return _merged(made, gradients)
    if splits == 1:
        return made[:, 0], gradients[0]
    return made.sum(1), gradients.sum(0) if gradient else gradients[0]


def _splits(blocks: int, columns: int, wide: int) -> tuple[int, int]:
    """The programs that share a block of rows, and the columns of each: whole tiles."""
    splits = max(1, min(-(-columns // wide), PROGRAMS // blocks))
    per_split = -(-columns // (splits * wide)) * wide
    return -(-columns // per_split), per_split


def _merged(made: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of a softmax, each with a maximum of its own, as one."""
    sums, more, highest = made
    top = highest.amax(0)
    share = torch.exp2(highest - top)
    mass = (sums * share).sum(0)
    results = torch.stack([top + mass.log2(), (more * share).sum(0) / mass])
    if gradients.numel() == 0:
        return results, gradients[0]
    return results, gradients.mul_(share[..., None]).sum(0).div_(mass[:, None])
