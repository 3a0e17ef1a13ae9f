"""The numbers that make a view of an image, sampled for a whole batch from one generator.

Every image and view takes one row of uniform numbers from the CPU generator, whatever is done with
them. So what is sampled for an image depends on the seed and on its place in the batch alone: not
on the device, nor on its neighbours, nor on which rows of the batch this process works on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from nearfar.views.view import Range, View, ViewPlan

_ATTEMPTS = 10
BOX_NUMBERS = 2 * _ATTEMPTS + 2
"""Uniform numbers that a crop's box takes."""
_COLUMNS = BOX_NUMBERS + 24
_COLOUR = (
    BOX_NUMBERS + 8,
    BOX_NUMBERS + 17,
)  # decide on jitter; on grayscale and a dropped channel
_NEVER = 2.0  # above every probability
_THREADS = 4  # that make uniform numbers of several batches


@dataclass(frozen=True)
class ViewParameters:
    """The parameters of one view of `rows` images, all on the CPU; a slice of it is the same for
    those images.
    """

    box: Int[Tensor, "rows 4"]  # top, left, height, width
    flip: Bool[Tensor, " rows"]
    flip_vertical: Bool[Tensor, " rows"]
    quarters: Int[Tensor, " rows"]  # turns by 90 degrees, anticlockwise as torch.rot90
    affine: Bool[Tensor, " rows"]
    motion: Float[
        Tensor, "rows 6"
    ]  # degrees, shift right and down (share of the side), zoom, shear x and y (degrees)
    factors: Float[
        Tensor, "rows 3"
    ]  # brightness, contrast, saturation; 1 leaves the image as it is
    hue: Float[Tensor, " rows"]  # turns
    order: Int[Tensor, "rows 3"]  # which factor comes first, second, third
    hue_place: Int[Tensor, " rows"]  # how many factors come before the hue
    grayscale: Bool[Tensor, " rows"]
    drop: Bool[Tensor, " rows"]
    dropped: Float[Tensor, " rows"]  # which channel, as a share of their number
    blur: Bool[Tensor, " rows"]
    sigma: Float[Tensor, " rows"]
    solarize: Bool[Tensor, " rows"]
    noise: Bool[Tensor, " rows"]
    noise_std: Float[Tensor, " rows"]
    noise_seed: Int[Tensor, " rows"]

    def __getitem__(self, rows: slice) -> ViewParameters:
        return ViewParameters(**{name: value[rows] for name, value in vars(self).items()})


@dataclass(frozen=True)
class SampledViews:
    """The parameters of all views of some images, sampled before any view is made.

    parameters: for each view those of more images, of which these are the `rows`. Those of
    several batches stand one after the other, and each batch is a slice. table: all of `parameters`
    that a kernel reads, on its device (`fused.pack`).
    """

    parameters: tuple[ViewParameters, ...]
    rows: slice
    table: Float[Tensor, "views whole columns"] | None = None

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start

    def __getitem__(self, rows: slice) -> SampledViews:
        start = self.rows.start
        return replace(self, rows=slice(start + rows.start, start + rows.stop))

    def of_view(self, position: int) -> ViewParameters:
        """The parameters of one view of these images."""
        return self.parameters[position][self.rows]


def sample_views(
    plan: ViewPlan,
    generators: Sequence[torch.Generator],
    total: int,
    sizes: Sequence[tuple[int, int]],
    rows: slice | None = None,
    *,
    is_cropped: bool = False,
) -> SampledViews:
    """Sample all views of one batch for each generator: of `total` images, or of their `rows`.

    A batch depends on its own generator alone, whatever is sampled along with it. sizes: height and
    width of the images that each view is cut from, or, if `is_cropped`, is already.
    """
    if len(generators) == 1:
        table = uniform_table(plan, generators[0], total, rows)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            made = pool.map(lambda each: uniform_table(plan, each, total, rows), generators)
            table = torch.cat(list(made))
    parameters = []
    for i, (view, (height, width)) in enumerate(zip(plan.views, sizes, strict=True)):
        of_view = sample_view(view, table[:, i], height, width)
        if is_cropped:
            all_of_it = torch.tensor([0, 0, height, width]).expand(len(table), 4)
            of_view = replace(of_view, box=all_of_it)
        parameters.append(of_view)
    return SampledViews(tuple(parameters), slice(0, len(table)))


def uniform_table(
    plan: ViewPlan, generator: torch.Generator, total: int, rows: slice | None = None
) -> Float[Tensor, "rows views columns"]:
    """Sample the uniform numbers of a batch of `total` images and return those of its `rows`
    (default: all).
    """
    table = torch.rand(total, len(plan.views), _COLUMNS, generator=generator, dtype=torch.float64)
    kept = _finer(table[:, 0, BOX_NUMBERS + 20]) < plan.keep_colour
    for column in _COLOUR:
        table[:, :, column][kept] = _NEVER
    return table if rows is None else table[rows]


def _between(uniform: Tensor, bounds: Range) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * uniform


def _around(uniform: Tensor, reach: float) -> Tensor:
    return reach * (2 * uniform - 1)


def _finer(uniform: Tensor) -> Tensor:
    """Return a second uniform number from the lower 27 of the 53 bits of one that only its upper
    bits decide.

    A column of its own would change the shape of the table, and with it every sample of every
    earlier run.
    """
    return (uniform * 2**26) % 1


def _quarters(uniform: Tensor, probability: float) -> Tensor:
    """Return 1, 2 or 3, equally often, with that probability, and else 0."""
    turns = 1 + (3 * uniform / max(probability, 1e-9)).long().clamp(max=2)
    return torch.where(uniform < probability, turns, 0)


def sample_boxes(
    uniform: Float[Tensor, "rows numbers"], height: int, width: int, scale: Range, ratio: Range
) -> Int[Tensor, "rows 4"]:
    """Turn rows of BOX_NUMBERS uniform numbers into crop boxes (top, left, height, width).

    The boxes lie in images of `height` x `width` pixels. The rule of torchvision's
    RandomResizedCrop: area (`scale`, as a share of the image's) and log ratio are uniform; the
    first of ten attempts that fits into the image is taken, and else the largest central box with a
    ratio within bounds.
    """
    # many small operations, which NumPy does ten times faster than torch for a single image
    u = uniform.numpy()
    bounds = height, width, scale, ratio
    wide, tall, fits = _attempts(u[:, 0], u[:, _ATTEMPTS], *bounds)
    lost = np.flatnonzero(~fits)
    if lost.size:
        again = u[lost]
        wide_again, tall_again, fits = _attempts(
            again[:, 1:_ATTEMPTS], again[:, _ATTEMPTS + 1 : 2 * _ATTEMPTS], *bounds
        )
        rows, first, fitting = np.arange(lost.size), fits.argmax(1), fits.any(1)
        nearest = min(max(width / height, ratio[0]), ratio[1])
        largest = min(width, max(1, round(height * nearest)))
        wide[lost] = np.where(fitting, wide_again[rows, first], largest)
        largest = min(height, max(1, round(width / nearest)))
        tall[lost] = np.where(fitting, tall_again[rows, first], largest)
    down, right = u[:, 2 * _ATTEMPTS], u[:, 2 * _ATTEMPTS + 1]
    top, left = np.floor(down * (height - tall + 1)), np.floor(right * (width - wide + 1))
    if lost.size:
        central = lost[~fitting]
        top[central] = (height - tall[central]) // 2
        left[central] = (width - wide[central]) // 2
    return torch.from_numpy(np.stack([top, left, tall, wide], 1).astype(np.int64))


def _attempts(
    area: Shaped[np.ndarray, "*shape"],
    aspect: Shaped[np.ndarray, "*shape"],
    height: int,
    width: int,
    scale: Range,
    ratio: Range,
) -> tuple[Shaped[np.ndarray, "*shape"], Shaped[np.ndarray, "*shape"], Bool[np.ndarray, "*shape"]]:
    """Return the width and height that uniform numbers ask for, and whether the image has them."""
    pixels = height * width * (scale[0] + (scale[1] - scale[0]) * area)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    wide_to_tall = np.exp(low + (high - low) * aspect)
    wide, tall = np.rint(np.sqrt(pixels * wide_to_tall)), np.rint(np.sqrt(pixels / wide_to_tall))
    return wide, tall, (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)


def sample_view(
    view: View, table: Float[Tensor, "rows columns"], height: int, width: int
) -> ViewParameters:
    """Turn a table's rows into the parameters of one view of images of `height` x `width` pixels.

    Shifts are shares of the view's side. Probabilities are taken as `uniform < probability`.
    """
    columns = table[:, BOX_NUMBERS:].t().contiguous()
    u = columns.unbind()
    jitter = u[8] < view.jitter
    reach = (view.brightness, view.contrast, view.saturation)
    factors = [_between(u[9 + i], (max(0.0, 1 - x), 1 + x)) for i, x in enumerate(reach)]
    keys = columns[13:17].t()
    shear = (_around(u[6], view.shear), _around(u[7], view.shear))
    shift = (_around(u[3], view.translate), _around(u[4], view.translate))
    motion = torch.stack(
        [_around(u[2], view.degrees), *shift, _between(u[5], view.zoom), *shear], 1
    )
    return ViewParameters(
        box=sample_boxes(table[:, :BOX_NUMBERS], height, width, view.scale, view.ratio),
        flip=u[0] < view.flip,
        flip_vertical=_finer(u[0]) < view.flip_vertical,
        quarters=_quarters(_finer(u[1]), view.rot90),
        affine=u[1] < view.affine,
        motion=motion.float(),
        factors=torch.where(jitter[:, None], torch.stack(factors, 1), 1.0).float(),
        hue=torch.where(jitter, _around(u[12], view.hue), 0.0).float(),
        order=keys[:, :3].argsort(1),
        hue_place=(keys[:, :3] < keys[:, 3:]).sum(1),
        grayscale=u[17] < view.grayscale,
        drop=(_finer(u[17]) < view.drop) & (u[17] < _NEVER),
        dropped=_finer(u[18]).float(),
        blur=u[18] < view.blur,
        sigma=_between(u[19], view.sigma).float(),
        solarize=u[20] < view.solarize,
        noise=u[21] < view.noise,
        noise_std=_between(u[22], view.noise_std).float(),
        noise_seed=(u[23] * 2**53).long(),
    )
