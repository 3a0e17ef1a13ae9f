"""The numbers that make a view of an image, sampled for a whole batch from one generator.

Every image and view takes one row of uniform numbers from the CPU generator, whatever is done with them. So the draw of
an image depends on the seed and on its place in the batch alone: not on the device, nor on its neighbours, nor on which
rows of the batch this process works on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nearfar.views.view import Range, View, ViewPlan

_ATTEMPTS = 10
_CROP = 2 * _ATTEMPTS + 2
_COLUMNS = _CROP + 24


@dataclass(frozen=True)
class ViewParameters:
    """The parameters of one view of `rows` images, all on the CPU; a slice of it is the same for those images."""

    box: Int[Tensor, "rows 4"]  # top, left, height, width
    flip: Bool[Tensor, " rows"]
    affine: Bool[Tensor, " rows"]
    motion: Float[Tensor, "rows 6"]  # degrees, shift right and down (share of the side), zoom, shear x and y (degrees)
    factors: Float[Tensor, "rows 3"]  # brightness, contrast, saturation; 1 leaves the image as it is
    hue: Float[Tensor, " rows"]  # turns
    order: Int[Tensor, "rows 3"]  # which factor comes first, second, third
    hue_place: Int[Tensor, " rows"]  # how many factors come before the hue
    grey: Bool[Tensor, " rows"]
    blur: Bool[Tensor, " rows"]
    sigma: Float[Tensor, " rows"]
    solarize: Bool[Tensor, " rows"]
    noise: Bool[Tensor, " rows"]
    noise_std: Float[Tensor, " rows"]
    noise_seed: Int[Tensor, " rows"]

    def __getitem__(self, rows: slice) -> ViewParameters:
        return ViewParameters(**{name: value[rows] for name, value in vars(self).items()})


def uniform_table(
    plan: ViewPlan, generator: torch.Generator, total: int, rows: slice | None = None
) -> Float[Tensor, "rows views columns"]:
    """Draw the uniform numbers of a batch of `total` images and return those of its `rows` (default: all)."""
    table = torch.rand(total, len(plan.views), _COLUMNS, generator=generator, dtype=torch.float64)
    return table if rows is None else table[rows]


def _between(uniform: Tensor, bounds: Range) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * uniform


def _around(uniform: Tensor, reach: float) -> Tensor:
    return reach * (2 * uniform - 1)


def sample_boxes(
    view: View, table: Float[Tensor, "rows columns"], heights: Int[Tensor, " #rows"], widths: Int[Tensor, " #rows"]
) -> Int[Tensor, "rows 4"]:
    """Draw crop boxes (top, left, height, width) with the rule of torchvision's RandomResizedCrop.

    Area and log ratio are uniform; the first of ten attempts that fits into the image is taken, and else the largest
    central box with a ratio within bounds.
    """
    heights, widths = heights.double()[:, None], widths.double()[:, None]
    area = heights * widths * _between(table[:, :_ATTEMPTS], view.scale)
    low, high = torch.tensor(view.ratio, dtype=torch.float64).log().tolist()
    ratio = _between(table[:, _ATTEMPTS : 2 * _ATTEMPTS], (low, high)).exp()
    width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (width >= 1) & (width <= widths) & (height >= 1) & (height <= heights)
    first = fits.byte().argmax(1, keepdim=True)
    width, height = width.gather(1, first), height.gather(1, first)
    whole = (widths / heights).clamp(*view.ratio)
    found = fits.any(1, keepdim=True)
    width = torch.where(found, width, torch.minimum(widths, (heights * whole).round().clamp(min=1)))
    height = torch.where(found, height, torch.minimum(heights, (widths / whole).round().clamp(min=1)))
    place = table[:, 2 * _ATTEMPTS : _CROP]
    top = torch.where(found, (place[:, :1] * (heights - height + 1)).floor(), ((heights - height) / 2).floor())
    left = torch.where(found, (place[:, 1:] * (widths - width + 1)).floor(), ((widths - width) / 2).floor())
    return torch.cat([top, left, height, width], 1).long()


def sample_view(view: View, table: Float[Tensor, "rows columns"], height: int, width: int, side: int) -> ViewParameters:
    """Turn a table's rows into the parameters of one view of images of `height` x `width` pixels.

    `side` is the view's side in pixels; shifts are shares of it. Probabilities are taken as `uniform < probability`.
    """
    u = table[:, _CROP:].unbind(1)
    jitter = u[8] < view.jitter
    reach = (view.brightness, view.contrast, view.saturation)
    factors = [_between(u[9 + i], (max(0.0, 1 - x), 1 + x)) for i, x in enumerate(reach)]
    keys = torch.stack(u[13:17], 1)
    shear = (_around(u[6], view.shear), _around(u[7], view.shear))
    shift = (_around(u[3], view.translate), _around(u[4], view.translate))
    motion = torch.stack([_around(u[2], view.degrees), *shift, _between(u[5], view.zoom), *shear], 1)
    size = torch.tensor([height]), torch.tensor([width])
    return ViewParameters(
        box=sample_boxes(view, table, *size),
        flip=u[0] < view.flip,
        affine=u[1] < view.affine,
        motion=motion.float(),
        factors=torch.where(jitter[:, None], torch.stack(factors, 1), 1.0).float(),
        hue=torch.where(jitter, _around(u[12], view.hue), 0.0).float(),
        order=keys[:, :3].argsort(1),
        hue_place=(keys[:, :3] < keys[:, 3:]).sum(1),
        grey=u[17] < view.grey,
        blur=u[18] < view.blur,
        sigma=_between(u[19], view.sigma).float(),
        solarize=u[20] < view.solarize,
        noise=u[21] < view.noise,
        noise_std=_between(u[22], view.noise_std).float(),
        noise_seed=(u[23] * 2**53).long(),
    )


def crop_parameters(
    plan: ViewPlan,
    generator: torch.Generator,
    sizes: Sequence[tuple[int, int]] | Int[Tensor, "rows 2"],
    *,
    rows: slice | None = None,
    total: int | None = None,
) -> list[Int[Tensor, "rows 4"]]:
    """Draw the crop boxes (top, left, height, width; in pixels) that `make_views` would, for images of any sizes.

    For workers that decode, crop and resize large images: with a generator in the same state, the boxes here and the
    rest of the views in `make_views(crops, ...)` belong together. `sizes` holds height and width of each of the rows.
    Returns a tensor for each view of the plan. Crops are to be resized to the view's side bilinearly and antialiased.
    """
    sizes = torch.as_tensor(sizes)
    table = uniform_table(plan, generator, len(sizes) if total is None else total, rows)
    if len(table) != len(sizes):
        raise ValueError(f"{len(sizes)} image sizes were given for {len(table)} rows of the batch")
    return [sample_boxes(view, table[:, i], sizes[:, 0], sizes[:, 1]) for i, view in enumerate(plan.views)]
