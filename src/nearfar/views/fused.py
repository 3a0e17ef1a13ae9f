"""All views of a batch in one launch on a GPU (fused_kernel.py), and the way back to operations.

`make` returns None where the operations of geometry.py and photometric.py have to do it: on a CPU
and on devices that Triton does not compile for, for plans with noise (whose numbers come from the
CPU), for images that are neither uint8 nor float32, inside torch.compile, where the environment
variable NEARFAR_VIEWS is "operations", and once the kernel has failed to be imported or compiled,
which a warning says once.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.device import send
from nearfar.triton_kernels import TritonKernel
from nearfar.views.geometry import affine_matrix
from nearfar.views.photometric import kernel_size
from nearfar.views.sampling import SampledViews, ViewParameters
from nearfar.views.view import View, ViewPlan

KERNEL = TritonKernel("views", otherwise="operations", switch="NEARFAR_VIEWS")
COLUMNS = 28
"""Numbers of a row of the table, in the order that fused_kernel.py names; 16 bytes go into it, so
that all rows are aligned alike.
"""
BLOCK, WARPS = 256, 8  # pixels of a block, and the warps that share them; not measured on a GPU
Table = Float[Tensor, "views rows columns"]


def takes(plan: ViewPlan, device: torch.device) -> bool:
    """Return whether the kernel makes the views of a plan on a device."""
    return KERNEL.chosen_on(device) and not any(view.noise for view in plan.views)


def pack(sampled: SampledViews) -> Table:
    """Return the parameters that the kernel reads as one table on the CPU."""
    return torch.stack([_packed(sampled.of_view(i)) for i in range(len(sampled.parameters))])


def _packed(given: ViewParameters) -> Float[Tensor, "rows columns"]:
    table = torch.zeros(len(given.hue), COLUMNS)
    table[:, 0:4] = given.box
    table[:, 4] = given.flip
    table[:, 5] = given.flip_vertical
    table[:, 6] = given.quarters
    table[:, 7:10] = given.factors
    table[:, 10] = given.hue
    table[:, 11:14] = given.order
    table[:, 14] = given.hue_place
    table[:, 15] = given.grayscale
    table[:, 16] = torch.where(given.drop, given.dropped, -1.0)
    table[:, 17] = torch.where(given.blur, given.sigma, 0.0)
    table[:, 18] = given.solarize
    if given.affine.any():
        table[:, 19] = given.affine
        table[:, 20:26] = affine_matrix(given.motion).flatten(1)
    return table


@lru_cache(maxsize=16)
def _moments(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> Float[Tensor, "2 channels"]:
    """Shift and scale of every channel, which a run sends once."""
    moments = [[-m / s for m, s in zip(mean, std, strict=True)], [1 / s for s in std]]
    return send(torch.tensor(moments), device)


def make(
    sources: Sequence[Tensor],
    plan: ViewPlan,
    sides: Sequence[int],
    sampled: SampledViews,
    mean: Sequence[float],
    std: Sequence[float],
) -> list[Tensor] | None:
    """Make the views of `apply_views`; None where operations have to do it.

    sources, sides: the images and the side of each view.
    """
    images = sources[0]
    kinds = {source.dtype for source in sources}
    if not takes(plan, images.device) or not kinds <= {torch.uint8, torch.float32}:
        return None

    def made() -> list[Tensor]:
        moments = _moments(tuple(mean), tuple(std), images.device)
        if sampled.table is None:
            table = send(pack(sampled), images.device)
        else:
            table = sampled.table[:, sampled.rows]
        return _made(sources, plan, sides, table, moments)

    return KERNEL.tried(made)


def _made(
    sources: Sequence[Tensor],
    plan: ViewPlan,
    sides: Sequence[int],
    table: Table,
    moments: Float[Tensor, "2 channels"],
) -> list[Tensor]:
    """The views: one launch for those of one side that follow each other, of the same images."""
    made: list[Tensor] = []
    batch, channels = sources[0].shape[:2]
    runs = itertools.groupby(range(len(plan)), lambda view: (id(sources[view]), sides[view]))
    for (_, side), run in runs:
        numbers = list(run)
        views = slice(numbers[0], numbers[-1] + 1)
        shape = len(numbers), batch, channels, side, side
        out = torch.empty(shape, device=table.device)
        if batch:
            _launch(sources[numbers[0]].contiguous(), table[views], moments, out, plan.views[views])
        made.extend(out.unbind())
    return made


def _launch(
    images: Tensor, table: Table, moments: Tensor, out: Tensor, views: Sequence[View]
) -> None:
    kernel = importlib.import_module("nearfar.views.fused_kernel")
    count, channels, height, width = images.shape
    chosen = constants((channels, height, width), out.shape[-1], views)
    needs_scratch = chosen["AFFINE"] or chosen["BLUR"]
    with torch.accelerator.device_index(images.device.index):
        kernel.make_view[(count, len(views))](
            images,
            table,
            moments,
            torch.empty_like(out) if needs_scratch else out,
            out,
            count,
            table.stride(0) // COLUMNS,
            channels,
            **chosen,
        )


def constants(shape: tuple[int, int, int], side: int, views: Sequence[View]) -> dict[str, int]:
    """Return what the kernel is compiled for: views of a side from images of a shape."""
    channels, height, width = shape
    radius = min(kernel_size(side) // 2, side - 1)
    return {
        "HEIGHT": height,
        "WIDTH": width,
        "SIZE": side,
        "TAPS": max(2, math.ceil(2 * max(height, width) / side)),
        "COLOUR": channels == 3,
        "JITTER": any(view.jitter for view in views),
        "AFFINE": any(view.affine for view in views),
        "BLUR": radius if any(view.blur for view in views) else 0,
        "BLOCK": BLOCK,
        "num_warps": WARPS,
    }
