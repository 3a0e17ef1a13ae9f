"""Thumbnails of many images, packed into a few sheets for a page that needs no other file."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

SHEET = 2048  # pixels on a side: every browser can hold such an image
JPEG_QUALITY = 85
LOSSLESS = 16  # pixels: up to here a thumbnail is PNG


@dataclass(frozen=True)
class Sheets:
    """Thumbnails in reading order, per_row * per_row to a full sheet; each has `size` px in the corner of its cell."""

    size: int
    cell: int
    per_row: int
    urls: list[str]


def thumbnails(images: UInt8[Tensor, "images channels side side"], size: int) -> UInt8[Tensor, "images 3 small small"]:
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


def pack_sheets(tiles: UInt8[Tensor, "images 3 side side"]) -> Sheets:
    """Pack thumbnails into sheets, as data URLs: PNG up to 16 px, JPEG above.

    Cells are multiples of 8 px, padded with the edge pixels, so that JPEG does not mix neighbours.
    """
    side = tiles.shape[-1]
    cell = cell_of(side)
    per_row = min(SHEET // cell, math.ceil(math.sqrt(len(tiles))))
    sheets = (one_sheet(some, cell, per_row) for some in tiles.split(per_row * per_row))
    urls = [data_url(sheet, lossless=side <= LOSSLESS) for sheet in sheets]
    return Sheets(size=side, cell=cell, per_row=per_row, urls=urls)


def cell_of(side: int) -> int:
    """Side of the cell of a thumbnail, in pixels."""
    return side if side <= LOSSLESS else -(-side // 8) * 8


def one_sheet(tiles: UInt8[Tensor, "images 3 side side"], cell: int, per_row: int) -> UInt8[Tensor, "3 height width"]:
    """Return thumbnails in reading order as one image."""
    rows, beyond = -(-len(tiles) // per_row), cell - tiles.shape[-1]
    sheet = torch.zeros(rows * per_row, 3, cell, cell, dtype=torch.uint8)
    sheet[: len(tiles)] = F.pad(tiles.float(), (0, beyond, 0, beyond), mode="replicate").byte()
    return sheet.view(rows, per_row, 3, cell, cell).permute(2, 0, 3, 1, 4).reshape(3, rows * cell, per_row * cell)


def data_url(image: UInt8[Tensor, "3 height width"], lossless: bool = False) -> str:
    """Return an image as a data URL: PNG if lossless, else JPEG."""
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded(image, lossless)).decode()}"


def encoded(image: UInt8[Tensor, "3 height width"], lossless: bool = False) -> bytes:
    """Return an image as PNG if lossless, else as JPEG."""
    file, picture = io.BytesIO(), Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    if lossless:
        picture.save(file, "PNG", optimize=True)
    else:
        picture.save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)  # with optimize, noise overruns its buffer
    return file.getvalue()
