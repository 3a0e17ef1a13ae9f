"""All views of a batch in one launch: a kernel in Triton, imported only where Triton is.

A program makes one view of one image, a block of BLOCK pixels at a time, and holds no more than a
block. A pixel of a crop is computed where it is needed, from the few pixels around it, at the place
that flips and turns give it. Contrast and a lost channel need a mean of the whole view: crops are
computed once more for each. An affine motion and a blur need neighbours that other threads made, so
these are written to memory, in `out` and `scratch`, and read after a barrier.

Everything is as in geometry.py and photometric.py, in float32.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

TOP = tl.constexpr(0)  # columns of the table, as `fused.pack` fills it
LEFT = tl.constexpr(1)
TALL = tl.constexpr(2)
WIDE = tl.constexpr(3)
FLIP = tl.constexpr(4)
FLIP_VERTICAL = tl.constexpr(5)
QUARTERS = tl.constexpr(6)
FACTORS = tl.constexpr(7)  # brightness, contrast, saturation
HUE = tl.constexpr(10)
ORDER = tl.constexpr(11)  # which factor comes first, second, third
HUE_PLACE = tl.constexpr(14)
GRAYSCALE = tl.constexpr(15)
DROPPED = tl.constexpr(16)  # the channel as a share of their number, or -1
SIGMA = tl.constexpr(17)  # of the blur, or 0
SOLARIZE = tl.constexpr(18)
MOVED = tl.constexpr(19)  # by the affine motion, and its matrix [2, 3]
MATRIX = tl.constexpr(20)
COLUMNS = tl.constexpr(28)


@triton.jit
@no_type_check
def _tap(start, length, place, tap, SIZE: tl.constexpr):
    """The tap-th pixel of a line under the triangle of a place of the crop, and its weight."""
    step = length / SIZE
    support = tl.maximum(step, 1.0)
    centre = (place.to(tl.float32) + 0.5) * step
    pixel = tl.floor(centre - support + 0.5) + tap
    weight = tl.maximum(1.0 - tl.abs(pixel + 0.5 - centre) / support, 0.0)
    weight = tl.where((pixel >= 0) & (pixel < length), weight, 0.0)
    return (start + tl.minimum(tl.maximum(pixel, 0.0), length - 1)).to(tl.int32), weight


@triton.jit
@no_type_check
def _crop(channel_ptr, row_ptr, pixel, WIDTH: tl.constexpr, SIZE: tl.constexpr, TAPS: tl.constexpr):
    """Pixels of one channel of the crop in 0..1, flipped and turned."""
    i, j = pixel // SIZE, pixel % SIZE
    quarters = tl.load(row_ptr + QUARTERS)
    row = tl.where(quarters == 1, j, tl.where(quarters == 3, SIZE - 1 - j, i))
    row = tl.where(quarters == 2, SIZE - 1 - i, row)
    column = tl.where(quarters == 1, SIZE - 1 - i, tl.where(quarters == 3, i, j))
    column = tl.where(quarters == 2, SIZE - 1 - j, column)
    row = tl.where(tl.load(row_ptr + FLIP_VERTICAL) > 0, SIZE - 1 - row, row)
    column = tl.where(tl.load(row_ptr + FLIP) > 0, SIZE - 1 - column, column)
    top, tall = tl.load(row_ptr + TOP), tl.load(row_ptr + TALL)
    left, wide = tl.load(row_ptr + LEFT), tl.load(row_ptr + WIDE)
    zero = tl.zeros_like(row).to(tl.float32)
    value, of_rows, of_columns = zero, zero, zero
    for tap in range(TAPS):
        y, of_y = _tap(top, tall, row, tap, SIZE)
        line, of_columns = zero, zero
        for other in range(TAPS):
            x, of_x = _tap(left, wide, column, other, SIZE)
            line += of_x * tl.load(channel_ptr + y * WIDTH + x).to(tl.float32)
            of_columns += of_x
        value += of_y * line
        of_rows += of_y
    if channel_ptr.dtype.element_ty == tl.uint8:
        of_rows *= 255.0
    return value / (of_rows * of_columns)


@triton.jit
@no_type_check
def _moved(crop_ptr, row_ptr, pixel, SIZE: tl.constexpr):
    """Pixels of a channel of the crop after its affine motion: bilinear, the border repeated."""
    x = (2 * (pixel % SIZE) + 1).to(tl.float32) / SIZE - 1
    y = (2 * (pixel // SIZE) + 1).to(tl.float32) / SIZE - 1
    m = row_ptr + MATRIX
    right = tl.load(m) * x + tl.load(m + 1) * y + tl.load(m + 2)
    down = tl.load(m + 3) * x + tl.load(m + 4) * y + tl.load(m + 5)
    right = tl.minimum(tl.maximum(((right + 1) * SIZE - 1) / 2, 0.0), SIZE - 1.0)
    down = tl.minimum(tl.maximum(((down + 1) * SIZE - 1) / 2, 0.0), SIZE - 1.0)
    column, row = tl.floor(right), tl.floor(down)
    of_right, of_down = right - column, down - row
    at = crop_ptr + row.to(tl.int32) * SIZE + column.to(tl.int32)
    beside = tl.where(column < SIZE - 1, 1, 0)
    below = tl.where(row < SIZE - 1, SIZE, 0)
    upper = tl.load(at) * (1 - of_right) + tl.load(at + beside) * of_right
    lower = tl.load(at + below) * (1 - of_right) + tl.load(at + below + beside) * of_right
    return upper * (1 - of_down) + lower * of_down


@triton.jit
@no_type_check
def _luma(red, green, blue):
    return red * 0.299 + green * 0.587 + blue * 0.114


@triton.jit
@no_type_check
def _blend(x, factor, other):
    return tl.minimum(tl.maximum(x * factor + other, 0.0), 1.0)


@triton.jit
@no_type_check
def _at_angle(base, sixfold, angle, opposite):
    """A channel at an angle of the colour circle, as in `photometric.turn_hue`."""
    far = angle - opposite
    far = tl.abs(far - tl.floor(far + 0.5))
    return base + sixfold * tl.minimum(tl.maximum(far, 1 / 6), 2 / 6)


@triton.jit
@no_type_check
def _turn_hue(red, green, blue, hue):
    low = tl.minimum(tl.minimum(red, green), blue)
    sixfold = 6.0 * (tl.maximum(tl.maximum(red, green), blue) - low)
    angle = tl.abs((green + blue - red - low) / tl.maximum(sixfold, 1e-9) + 1 / 6)
    angle = tl.where(green < blue, -angle, angle) + hue
    base = low - sixfold / 6.0
    red = _at_angle(base, sixfold, angle, 3 / 6)
    green = _at_angle(base, sixfold, angle, 5 / 6)
    return red, green, _at_angle(base, sixfold, angle, 1 / 6)


@triton.jit
@no_type_check
def _jitter(red, green, blue, row_ptr, mean, end, COLOUR: tl.constexpr):
    """The first `end` changes of three, and hue where it comes before the next; without COLOUR
    `red` is any channel, which hue and saturation leave alone.
    """
    for place in range(4):
        if COLOUR:
            hue = tl.load(row_ptr + HUE)
            hue = tl.where(tl.load(row_ptr + HUE_PLACE) == place, hue, 0.0)
            hue = tl.where(end >= place, hue, 0.0)
            if hue != 0:
                red, green, blue = _turn_hue(red, green, blue, hue)
        if place < end:
            kind = tl.load(row_ptr + ORDER + place).to(tl.int32)
            factor = tl.load(row_ptr + FACTORS + kind)
            other = tl.where(kind == 1, (1.0 - factor) * mean, 0.0)
            if COLOUR:
                gray = _luma(red, green, blue) * tl.where(kind == 2, 1.0 - factor, 0.0) + other
                red = _blend(red, factor, gray)
                green = _blend(green, factor, gray)
                blue = _blend(blue, factor, gray)
            else:
                red = _blend(red, tl.where(kind == 2, 1.0, factor), other)
    return red, green, blue


@triton.jit
@no_type_check
def _finish(x, row_ptr, moments_ptr, channel, channels):
    """Solarized where that is asked for, and normalised."""
    threshold = tl.where(tl.load(row_ptr + SOLARIZE) > 0, 0.5, 2.0)
    x = tl.where(x >= threshold, 1.0 - x, x)
    return tl.load(moments_ptr + channel) + x * tl.load(moments_ptr + channels + channel)


@triton.jit
@no_type_check
def _blur(given_ptr, pixel, sigma, SIZE: tl.constexpr, RADIUS: tl.constexpr, DOWN: tl.constexpr):
    """Pixels of a channel, blurred along its columns (DOWN) or its rows, borders reflected."""
    place, start, stride = pixel % SIZE, pixel // SIZE * SIZE, 1
    if DOWN:
        place, start, stride = pixel // SIZE, pixel % SIZE, SIZE
    blurred = tl.zeros_like(pixel).to(tl.float32)
    total = 0.0
    for tap in range(-RADIUS, RADIUS + 1):
        scaled = tap / sigma
        weight = tl.exp(-0.5 * scaled * scaled)
        at = SIZE - 1 - tl.abs(SIZE - 1 - tl.abs(place + tap))
        blurred += weight * tl.load(given_ptr + start + at * stride)
        total += weight
    return blurred / total


@triton.jit
@no_type_check
def _blur_view(
    out_ptr,
    scratch_ptr,
    moments_ptr,
    row_ptr,
    channels,
    sigma,
    SIZE: tl.constexpr,
    RADIUS: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Blur a view whose sigma is not 0, from `out` to `scratch` and back, and finish it."""
    if sigma > 0:
        tl.debug_barrier()
        for channel in range(channels):
            for begin in range(0, PIXELS, BLOCK):
                at = begin + tl.arange(0, BLOCK)
                pixel = tl.minimum(at, PIXELS - 1)
                x = _blur(out_ptr + channel * PIXELS, pixel, sigma, SIZE, RADIUS, True)
                tl.store(scratch_ptr + channel * PIXELS + at, x, mask=at < PIXELS)
        tl.debug_barrier()
        for channel in range(channels):
            for begin in range(0, PIXELS, BLOCK):
                at = begin + tl.arange(0, BLOCK)
                pixel = tl.minimum(at, PIXELS - 1)
                x = _blur(scratch_ptr + channel * PIXELS, pixel, sigma, SIZE, RADIUS, False)
                x = _finish(x, row_ptr, moments_ptr, channel, channels)
                tl.store(out_ptr + channel * PIXELS + at, x, mask=at < PIXELS)


@triton.jit(do_not_specialize=["images", "rows", "channels"])
@no_type_check
def make_view(
    source_ptr,  # [images, channels, HEIGHT, WIDTH] uint8, or float32 in 0..1
    table_ptr,  # [views, rows, COLUMNS] float32, whose first `images` rows are these
    moments_ptr,  # [2, channels] float32: shift and scale
    scratch_ptr,  # as `out`, if AFFINE or BLUR
    out_ptr,  # [views, images, channels, SIZE, SIZE] float32
    images,
    rows,
    channels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TAPS: tl.constexpr,  # pixels of a line that a pixel of a crop is made of, at most
    COLOUR: tl.constexpr,  # three channels, which change together
    JITTER: tl.constexpr,
    AFFINE: tl.constexpr,
    BLUR: tl.constexpr,  # radius, or 0
    BLOCK: tl.constexpr,
):
    PIXELS: tl.constexpr = SIZE * SIZE
    AREA: tl.constexpr = HEIGHT * WIDTH
    image, view = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row_ptr = table_ptr + (view * rows + image) * COLUMNS
    image_ptr = source_ptr + image * channels * AREA
    out_ptr += (view * images + image) * channels * PIXELS
    scratch_ptr += (view * images + image) * channels * PIXELS
    moved = tl.load(row_ptr + MOVED) > 0
    if AFFINE:
        if moved:
            for channel in range(channels):
                for begin in range(0, PIXELS, BLOCK):
                    at = begin + tl.arange(0, BLOCK)
                    pixel = tl.minimum(at, PIXELS - 1)
                    x = _crop(image_ptr + channel * AREA, row_ptr, pixel, WIDTH, SIZE, TAPS)
                    tl.store(scratch_ptr + channel * PIXELS + at, x, mask=at < PIXELS)
        tl.debug_barrier()

    share = tl.load(row_ptr + DROPPED)
    dropped = tl.minimum((share * channels).to(tl.int32), channels - 1)
    dropped = tl.where((share >= 0) & (channels > 1), dropped, -1)
    before = tl.where(tl.load(row_ptr + ORDER + 1) == 1, 1, 2)
    before = tl.where(tl.load(row_ptr + ORDER) == 1, 0, before)  # changes before contrast
    sigma = tl.load(row_ptr + SIGMA)
    mean, lost = 0.0, 0.0
    for step in range(3):  # the mean for contrast, that of a lost channel, and the view
        wanted = tl.where(step == 1, dropped >= 0, True)
        wanted = tl.where(step == 0, tl.load(row_ptr + FACTORS + 1) != 1, wanted)
        end = tl.where(step == 0, before, 3)
        total = tl.zeros([BLOCK], tl.float32)
        if wanted:
            for group in range(1 if COLOUR else channels):
                for begin in range(0, PIXELS, BLOCK):
                    at = begin + tl.arange(0, BLOCK)
                    pixel = tl.minimum(at, PIXELS - 1)
                    of_image, of_scratch = image_ptr + group * AREA, scratch_ptr + group * PIXELS
                    red = tl.zeros([BLOCK], tl.float32)
                    green, blue = red, red
                    for number in tl.static_range(3 if COLOUR else 1):
                        if AFFINE and moved:
                            x = _moved(of_scratch + number * PIXELS, row_ptr, pixel, SIZE)
                        else:
                            x = _crop(of_image + number * AREA, row_ptr, pixel, WIDTH, SIZE, TAPS)
                        if number == 0:
                            red = x
                        elif number == 1:
                            green = x
                        else:
                            blue = x
                    if JITTER:
                        red, green, blue = _jitter(red, green, blue, row_ptr, mean, end, COLOUR)
                    luma = red
                    if COLOUR:
                        luma = _luma(red, green, blue)
                        gray = tl.where(step == 0, 0.0, tl.load(row_ptr + GRAYSCALE)) > 0
                        red = tl.where(gray, luma, red)
                        green = tl.where(gray, luma, green)
                        blue = tl.where(gray, luma, blue)
                    for number in tl.static_range(3 if COLOUR else 1):
                        channel = group + number
                        x = red if number == 0 else (green if number == 1 else blue)
                        if step == 2:
                            x = tl.where(channel == dropped, lost, x)
                            if sigma == 0:
                                x = _finish(x, row_ptr, moments_ptr, channel, channels)
                            tl.store(out_ptr + channel * PIXELS + at, x, mask=at < PIXELS)
                        elif step == 1:
                            total += tl.where((at < PIXELS) & (channel == dropped), x, 0.0)
                        elif number == 0:
                            total += tl.where(at < PIXELS, luma, 0.0)
        summed = tl.sum(total, 0) / PIXELS
        mean = tl.where(step == 0, summed / (1 if COLOUR else channels), mean)
        lost = tl.where(step == 1, summed, lost)

    if BLUR > 0:
        _blur_view(
            out_ptr, scratch_ptr, moments_ptr, row_ptr, channels, sigma, SIZE, BLUR, PIXELS, BLOCK
        )
