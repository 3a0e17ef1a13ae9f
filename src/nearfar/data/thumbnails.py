"""Thumbnails of images, alone and packed into sheets, as files and as data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

JPEG_QUALITY = 85
LOSSLESS = 16  # pixels: up to here a thumbnail is PNG
ENLARGED = 48  # pictures below this are shown pixel by pixel


def thumbnails(
    images: UInt8[Tensor, "images channels side side"], size: int
) -> UInt8[Tensor, "images 3 small small"]:
    """Return RGB thumbnails of at most `size` px; smaller images keep their pixels.

    One channel becomes grayscale; of several, the first three are shown, two with a black third.
    """
    images = images[:, :3]
    channels, side = images.shape[1], images.shape[-1]
    if channels == 2:
        images = torch.cat([images, torch.zeros_like(images[:, :1])], 1)
    if side > size:
        images = F.interpolate(images.float(), size=(size, size), mode="bilinear", antialias=True)
        images = images.round().clamp(0, 255).to(torch.uint8)
    return images.expand(-1, 3, -1, -1)


class KeptThumbnails:
    """Thumbnails in .safetensors files, which hold encoded ones one after the other as "pictures".

    places: of each image the number of its file, and where its thumbnail begins and ends there.
    side: pixels of all of them.
    """

    def __init__(
        self, files: Mapping[int, Path], places: Int64[np.ndarray, "images 3"], side: int
    ) -> None:
        self.files, self.places, self.side = files, places, side
        self._opened: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}}

    def read(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[Tensor, "rows 3 side side"]:
        """Return the thumbnails of images, by position."""
        from torchvision.io import ImageReadMode, decode_image  # here: it takes seconds to import

        tiles = torch.empty(len(rows), 3, self.side, self.side, dtype=torch.uint8)
        for tile, (file, start, stop) in zip(tiles, self.places[rows].tolist(), strict=True):
            if file not in self._opened:
                self._opened[file] = safe_open(self.files[file], "pt").get_slice("pictures")
            tile.copy_(decode_image(self._opened[file][start:stop], ImageReadMode.RGB))
        return tiles

    def subset(self, rows: Int64[np.ndarray, " rows"]) -> KeptThumbnails:
        """Return those of some images, by position."""
        return KeptThumbnails(self.files, self.places[rows], self.side)


def cell_of(side: int) -> int:
    """Side of the cell of a thumbnail on a sheet, in pixels: of JPEG a multiple of 8, so that
    neighbours do not mix.
    """
    return side if side <= LOSSLESS else -(-side // 8) * 8


def one_sheet(
    tiles: UInt8[Tensor, "images 3 side side"], per_row: int
) -> UInt8[Tensor, "3 height width"]:
    """Return thumbnails in reading order as one image, each in the corner of its cell, padded with
    its edge pixels.
    """
    side = tiles.shape[-1]
    cell, rows = cell_of(side), -(-len(tiles) // per_row)
    sheet = torch.zeros(rows * per_row, 3, cell, cell, dtype=torch.uint8)
    if cell > side:
        around = (0, cell - side, 0, cell - side)
        tiles = F.pad(tiles.float(), around, mode="replicate").byte()
    sheet[: len(tiles)] = tiles
    return (
        sheet.view(rows, per_row, 3, cell, cell)
        .permute(2, 0, 3, 1, 4)
        .reshape(3, rows * cell, per_row * cell)
    )


def data_url(image: UInt8[Tensor, "3 height width"], lossless: bool = False) -> str:
    """Return an image as a data URL: PNG if lossless, else JPEG."""
    return as_url(encoded(image, lossless))


def as_url(file: bytes) -> str:
    """Return a PNG or JPEG file as a data URL."""
    kind = "png" if file.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def encoded(image: UInt8[Tensor, "3 height width"], lossless: bool = False) -> bytes:
    """Return an image as PNG if lossless, else as JPEG."""
    file, picture = io.BytesIO(), Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    if lossless:
        picture.save(file, "PNG", optimize=True)
    else:
        picture.save(
            file, "JPEG", quality=JPEG_QUALITY, subsampling=0
        )  # with optimize, noise overruns its buffer
    return file.getvalue()
