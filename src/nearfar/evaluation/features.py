"""Features of images, computed once per run and then shared by every protocol."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn


def extract(
    encoder: nn.Module,
    pixels: UInt8[Tensor, "images channels height width"],
    batch_size: int = 512,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "images dim"]:
    """Features of all images, float32 on the CPU, in the order of the images.

    encoder: takes uint8 [batch, channels, height, width] and returns [batch, dim]. It is in eval mode, without
    gradient and on `device` meanwhile; afterwards every module is back in its own mode and on its own device.
    device: None leaves the encoder where it is. progress: called as progress(images done, images in all).
    ValueError for no images, another shape, a batch size below one, or an encoder that returns another shape.
    """
    if pixels.ndim != 4 or len(pixels) == 0:
        raise ValueError(f"images must be [images, channels, height, width], at least one, got {tuple(pixels.shape)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    first = next(chain(encoder.parameters(), encoder.buffers()), None)
    home = torch.device("cpu") if first is None else first.device
    target = home if device is None else torch.device(device)
    modes = [(module, module.training) for module in encoder.modules()]
    out: Tensor | None = None
    try:
        encoder.eval()
        encoder.to(target)
        with torch.no_grad():
            for start in range(0, len(pixels), batch_size):
                batch = pixels[start : start + batch_size].to(target)
                features = encoder(batch)
                if features.ndim != 2 or len(features) != len(batch):
                    raise ValueError(
                        f"the encoder must return [batch, dim], got {tuple(features.shape)} for {len(batch)} images"
                    )
                if out is None:
                    out = torch.empty(len(pixels), features.shape[1])
                out[start : start + len(batch)] = features.float().cpu()
                if progress is not None:
                    progress(start + len(batch), len(pixels))
    finally:
        encoder.to(home)
        for module, mode in modes:
            module.training = mode
    assert out is not None
    return out


def raw_pixels(
    pixels: UInt8[Tensor, "images channels height width"], largest_side: int = 32, batch_size: int = 512
) -> Float[Tensor, "images dim"]:
    """The baseline that every encoder has to beat: the pixels themselves, in 0..1, as float32 features.

    Images with a side above `largest_side` are first averaged down to it (area mean, each side on its own), which
    keeps the features to channels * largest_side^2 numbers. Smaller images are taken as they are.
    """
    if pixels.ndim != 4 or len(pixels) == 0:
        raise ValueError(f"images must be [images, channels, height, width], at least one, got {tuple(pixels.shape)}")
    channels, height, width = pixels.shape[1:]
    size = (min(height, largest_side), min(width, largest_side))
    out = torch.empty(len(pixels), channels * size[0] * size[1])
    for start in range(0, len(pixels), batch_size):
        batch = pixels[start : start + batch_size].to("cpu", torch.float32) / 255
        if size != (height, width):
            batch = F.adaptive_avg_pool2d(batch, size)
        out[start : start + len(batch)] = batch.flatten(1)
    return out
