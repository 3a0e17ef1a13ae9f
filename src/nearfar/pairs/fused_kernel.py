"""All pairs of two sets of rows in one launch: a kernel in Triton, imported only where Triton is.

A program owns a block of rows and visits all columns, in tiles that stay on the chip; nothing of
size rows x columns is written. Every form of a pair (`Form`) has logits that are symmetric or given
by their row, so that the gradient of a row, sum_j W_ij column_j, is complete after one visit of its
columns: no program adds to the numbers of another, and the order of addition is fixed. Where rows
are few, several programs share them, each with a part of the columns; parts are added in order.

Operands are bfloat16, `high`, and for float32 quality high + low: 16 bits of the mantissa. A
product is then three of bfloat16 (low high + high low + high high) with sums in float32.

The interpreter of Triton (TRITON_INTERPRET=1) multiplies the bits of bfloat16 as if they were whole
numbers, so factors are made float32 for it. It also takes programs that the compiler refuses:
tests/pairs/test_kernel.py uses both.
"""

from __future__ import annotations

import math
import os
from typing import no_type_check

import triton
import triton.language as tl

from nearfar.pairs.kernels import Form

EXPONENTIAL = tl.constexpr(Form.EXPONENTIAL.value)
SOFTMAX = tl.constexpr(Form.SOFTMAX.value)
LOGISTIC = tl.constexpr(Form.LOGISTIC.value)
CAUCHY = tl.constexpr(Form.CAUCHY.value)
LOWEST = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(math.log2(math.e))
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
@no_type_check
def _add_product(total, x, x_low, y, y_low, LOW: tl.constexpr):
    """total + x @ y, the small terms first."""
    if INTERPRETED:
        x, x_low, y, y_low = (
            x.to(tl.float32),
            x_low.to(tl.float32),
            y.to(tl.float32),
            y_low.to(tl.float32),
        )
    if LOW:
        total = tl.dot(x_low, y, total, input_precision="ieee")
        total = tl.dot(x, y_low, total, input_precision="ieee")
    return tl.dot(x, y, total, input_precision="ieee")


@triton.jit
@no_type_check
def _log1p(e):
    """log(1 + e) for e in 0..1 to 2e-7, relative: a Chebyshev fit of degree 8.

    Triton's log2 is a long routine, and loses the digits of a small e in 1 + e.
    """
    p = e * 0.005253457929939032 - 0.02958850748836994
    p = p * e + 0.07836166769266129
    p = p * e - 0.13674770295619965
    p = p * e + 0.19111430644989014
    p = p * e - 0.24844369292259216
    p = p * e + 0.33319270610809326
    p = p * e - 0.49999502301216125
    return e + e * e * p


@triton.jit
@no_type_check
def _kept(values, keep, other: tl.constexpr, MASKED: tl.constexpr):
    """The values of the pairs that count, and `other` for the rest."""
    if MASKED:
        values = tl.where(keep, values, other)
    return values


@triton.jit
@no_type_check
def _logistic(s, keep, scale, bias, MASKED: tl.constexpr):
    """Softplus and sigmoid of scale * s + bias by one exponential and no division."""
    u = _kept(s * scale + bias, keep, LOWEST, MASKED)
    small = tl.math.exp2(-tl.abs(u) * LOG2_E)
    log = _log1p(small)
    half = tl.math.exp2(-log * LOG2_E)  # sigmoid(|u|)
    return tl.maximum(u, 0.0) + log, tl.where(u >= 0, half, half * small)


@triton.jit
@no_type_check
def _number(numbers_ptr, which: tl.constexpr, count, place, inside, USED: tl.constexpr):
    """One of the numbers [k, count] of some rows, or zeros if the form has no use for it."""
    if USED:
        number = tl.load(numbers_ptr + which * count + place, mask=inside, other=0.0)
    else:
        number = tl.zeros_like(place).to(tl.float32)
    return number


@triton.jit(do_not_specialize=["start", "half", "period"])
@no_type_check
def visit(
    x_ptr,  # [rows, DIM] bfloat16, and what is missing to float32
    x_low_ptr,
    y_ptr,  # [columns, DIM]
    y_low_ptr,
    x_numbers_ptr,  # [k, rows] float32, by FORM
    y_numbers_ptr,
    learned_ptr,  # scale and bias if LEARNED: a number of the device would have to be waited for
    sums_ptr,  # [k, splits, rows] float32
    gradient_ptr,  # [splits, rows, DIM]
    rows,
    columns,
    per_split,
    start,  # row i is of image start + i, or of start + i - half
    half,
    period,  # column j is of image j, or of j - period
    scale,
    bias,
    DIM: tl.constexpr,
    FORM: tl.constexpr,
    LOW: tl.constexpr,
    SUMS: tl.constexpr,
    GRADIENT: tl.constexpr,
    MASK: tl.constexpr,  # leave out pairs of an image with itself
    EVEN: tl.constexpr,  # the last tile is full
    LEARNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    MASKED: tl.constexpr = MASK or not EVEN
    SCALED: tl.constexpr = FORM == SOFTMAX or FORM == CAUCHY  # a rate, or half the squared length
    ATTENTION: tl.constexpr = FORM == SOFTMAX and (SUMS and GRADIENT)  # weights of rows alone
    WEIGHED: tl.constexpr = GRADIENT and (FORM != LOGISTIC and not ATTENTION)
    WEIGHT: tl.constexpr = 1 if SCALED else 0
    SHIFTED: tl.constexpr = FORM == SOFTMAX and (GRADIENT and not SUMS)
    if LEARNED:
        scale = tl.load(learned_ptr)
        bias = tl.load(learned_ptr + 1)
    split = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    dim = tl.arange(0, DIM)
    of_x = row[:, None] * DIM + dim[None, :]
    x = tl.load(x_ptr + of_x, mask=here[:, None], other=0.0)
    x_low = x
    if LOW:
        x_low = tl.load(x_low_ptr + of_x, mask=here[:, None], other=0.0)
    x_image = start + tl.where(row < half, row, row - half)
    x_rate = _number(x_numbers_ptr, 0, rows, row, here, SCALED)
    x_weight = _number(x_numbers_ptr, WEIGHT, rows, row, here, WEIGHED)
    x_shift = _number(x_numbers_ptr, 2, rows, row, here, SHIFTED)
    sums = tl.zeros([ROWS], tl.float32)
    more = tl.zeros([ROWS], tl.float32)
    highest = tl.full([ROWS], LOWEST, tl.float32)
    gradient = tl.zeros([ROWS, DIM], tl.float32)
    zero = tl.zeros([ROWS, COLUMNS], tl.float32)

    first = split * per_split
    for begin in range(first, tl.minimum(first + per_split, columns), COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        inside = column < columns
        of_y = column[:, None] * DIM + dim[None, :]
        y = tl.load(y_ptr + of_y) if EVEN else tl.load(y_ptr + of_y, inside[:, None], 0.0)
        y_low = y
        if LOW:
            y_low = (
                tl.load(y_low_ptr + of_y)
                if EVEN
                else tl.load(y_low_ptr + of_y, inside[:, None], 0.0)
            )
        s = _add_product(zero, x, x_low, tl.trans(y), tl.trans(y_low), LOW)
        y_image = tl.where(column < period, column, column - period)
        keep = inside[None, :]
        if MASK:
            keep = keep & (x_image[:, None] != y_image[None, :])
        y_rate = _number(y_numbers_ptr, 0, columns, column, inside, SCALED and not ATTENTION)
        y_weight = _number(y_numbers_ptr, WEIGHT, columns, column, inside, WEIGHED)
        y_shift = _number(y_numbers_ptr, 2, columns, column, inside, SHIFTED)

        if FORM == EXPONENTIAL:
            q = tl.math.exp2(_kept(s * scale + bias, keep, LOWEST, MASKED))
            if SUMS:
                sums += tl.sum(q, 1)
            w = q * (x_weight[:, None] + y_weight[None, :])
        if FORM == SOFTMAX and SUMS:
            e = _kept(s * x_rate[:, None], keep, LOWEST, MASKED)
            higher = tl.maximum(highest, tl.max(e, 1))
            shrink = tl.math.exp2(highest - higher)
            w = tl.math.exp2(e - higher[:, None])
            sums = sums * shrink + tl.sum(w, 1)
            if GRADIENT:
                gradient = gradient * shrink[:, None]
            else:
                more = more * shrink + tl.sum(w * s, 1)
            highest = higher
        if FORM == SOFTMAX and not SUMS:
            w = tl.math.exp2(s * x_rate[:, None] - x_shift[:, None]) * x_weight[:, None]
            w += tl.math.exp2(s * y_rate[None, :] - y_shift[None, :]) * y_weight[None, :]
            w = _kept(w, keep, 0.0, MASKED)
        if FORM == LOGISTIC:
            q, w = _logistic(s, keep, scale, bias, MASKED)
            sums += tl.sum(q, 1)
            more += tl.sum(w, 1)
        if FORM == CAUCHY:
            u = tl.maximum(bias + scale * (s - x_rate[:, None] - y_rate[None, :]), 1.0)
            q = _kept(1.0 / u, keep, 0.0, MASKED)
            sums += tl.sum(q, 1)
            w = -q * q * (x_weight[:, None] + y_weight[None, :])
            more += tl.sum(w, 1)
        if GRADIENT:
            high = w.to(tl.bfloat16)
            gradient = _add_product(
                gradient, high, (w - high.to(tl.float32)).to(tl.bfloat16), y, y_low, LOW
            )

    place = split * rows + row
    stride = tl.num_programs(1) * rows
    if SUMS:
        tl.store(sums_ptr + place, sums, mask=here)
        if FORM != EXPONENTIAL:
            tl.store(sums_ptr + stride + place, more, mask=here)
        if FORM == SOFTMAX:
            tl.store(sums_ptr + 2 * stride + place, highest, mask=here)
    if GRADIENT:
        of_gradient = place[:, None] * DIM + dim[None, :]
        tl.store(gradient_ptr + of_gradient, gradient, mask=here[:, None])


def tile_of(form: Form, exact: bool, warpgroups: bool) -> tuple[int, int, int, int]:
    """Rows and columns of a tile, warps and stages, without spills and with less than 99 KiB of
    shared memory for rows of 128 numbers; not measured on a GPU.

    warpgroups: whether four warps multiply together, from shared memory (Hopper).
    """
    if not exact:
        return 128, 128 if warpgroups or form is not Form.LOGISTIC else 64, 8, 2
    if not warpgroups:
        return 64, 64, 8, 2
    return 64, 32 if form is Form.CAUCHY else 64, 4, 2
