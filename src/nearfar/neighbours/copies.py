"""Which images are copies of one another: candidates by features, confirmed by pixels."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from torch import Tensor

from nearfar.data import Images

SIDE = 16  # pixels of the images that are compared
COPY = 0.2  # difference of pixels up to which images are copies, in units of their contrast
QUALITY, SHRINK = 50, 2  # of the copies that are made to see how far features move
GATHERED = 256  # images that are held at a time
LEAST = 2.0  # of 255: contrast below which an image is plain, and noise would decide

Progress = Callable[[int, int], None]


def small_images(images: Images, rows: Int64[Tensor, " rows"], progress: Progress | None = None) -> Tensor:
    """The images at these positions, shrunk to 16 pixels by area: float [rows, channels, 16, 16] in 0..255."""
    out = []
    for some in rows.split(GATHERED):
        pixels = images.gather(some)
        pixels = pixels.float() if pixels.dtype == torch.uint8 else 255 * pixels
        out.append(F.interpolate(pixels, (SIDE, SIDE), mode="area") if pixels.shape[-1] > SIDE else pixels)
        if progress is not None:
            progress(sum(map(len, out)), len(rows))
    return torch.cat(out)


def pixel_difference(
    first: Float[Tensor, "pairs channels side side"], second: Float[Tensor, "pairs channels side side"]
) -> Float[Tensor, " pairs"]:
    """How far images are apart in units of their contrast: 0 for the same, sqrt 2 for unrelated ones.

    The root of their mean squared difference, divided by the root of the mean of their variances (within channels).
    Images of less contrast than 2 of 255 are taken to have that much.
    """
    square = (first - second).square().flatten(1).mean(1)
    variances = torch.stack([one.flatten(2).var(2, unbiased=False).mean(1) for one in (first, second)])
    return (square / variances.mean(0).clamp_min(LEAST**2)).sqrt()


def altered(pixels: UInt8[Tensor, "images channels side side"]) -> list[UInt8[Tensor, "images channels side side"]]:
    """The images after two things that copies go through: half the size and back, and JPEG of quality 50."""
    side = pixels.shape[-1]
    half = F.interpolate(pixels.float(), (max(1, side // SHRINK),) * 2, mode="bilinear", antialias=True)
    back = F.interpolate(half, (side, side), mode="bilinear").round().clamp(0, 255).to(torch.uint8)
    return [back, torch.stack([_jpeg(image) for image in pixels])]


def _jpeg(pixels: UInt8[Tensor, "channels side side"]) -> UInt8[Tensor, "channels side side"]:
    """One image after JPEG: as colour where it has three channels, else channel by channel."""
    parts = [pixels.permute(1, 2, 0)] if len(pixels) == 3 else list(pixels)
    out = []
    for part in parts:
        file = io.BytesIO()
        Image.fromarray(part.contiguous().numpy()).save(file, "JPEG", quality=QUALITY)
        out.append(torch.from_numpy(np.array(Image.open(file))))
    return out[0].permute(2, 0, 1).contiguous() if len(pixels) == 3 else torch.stack(out)


def components(count: int, pairs: Iterable[tuple[int, int]]) -> Int64[np.ndarray, " count"]:
    """The connected component of each of 0..count-1, by the smallest number in it."""
    from scipy.sparse import coo_array  # here: a part of a second to import
    from scipy.sparse.csgraph import connected_components

    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(count, count))
    _, label = connected_components(graph, directed=False)
    _, first = np.unique(label, return_index=True)
    return first[label]
