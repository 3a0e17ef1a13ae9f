"""Images that stay in the device's memory for a whole run, so that a step sends positions alone."""

from __future__ import annotations

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from nearfar.data import Images
from nearfar.device import free_memory, send
from nearfar.progress import progress

SHARE = 0.25
"""Share of the device's free memory that the images may take."""
PART = 2**25
"""Bytes that are gathered and sent at a time, about."""


class ResidentImages:
    """Copies of all images, stored ones, in the memory of a device."""

    def __init__(self, images: Images, device: torch.device) -> None:
        first = images.gather(torch.arange(1))  # tells the shape and the type of all
        rows = max(1, PART // first.nbytes)
        self.pixels = torch.empty(len(images), *first.shape[1:], dtype=first.dtype, device=device)
        with progress("sending images to the device", len(images)) as bar:
            for part in torch.arange(len(images)).split(rows):
                self.pixels[int(part[0]) : int(part[-1]) + 1] = send(images.gather(part), device)
                bar.advance(len(part))

    def take(self, index: Int64[Tensor, " batch"]) -> Shaped[Tensor, "batch channels size size"]:
        """Return the images at these positions, which are on the device too."""
        return self.pixels.index_select(0, index)


def keep_resident(images: Images, device: torch.device) -> ResidentImages | None:
    """Return the images on the device if they fit there; None where batches have to be sent.

    They fit where they take at most `SHARE` of the free memory of a device that says how much is
    free, and where their pixels are stored rather than decoded anew.
    """
    free = free_memory(device)
    if not images.stored or free is None:
        return None
    needed = len(images) * images.gather(torch.arange(1)).nbytes
    return ResidentImages(images, device) if needed <= SHARE * free else None
