"""Small versions of many images, packed into a few sheets for a page that needs no other file."""

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
    """Return red-green-blue thumbnails of at most `size` px; an image that is small enough keeps its pixels.

    One channel is shown as grey; of more than one, the first three are shown, with black where there are only two.
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

    Cells are whole 8 px blocks filled up to their edge, so that JPEG does not mix neighbours.
    """
    side = tiles.shape[-1]
    cell = cell_of(side)
    per_row = min(SHEET // cell, math.ceil(math.sqrt(len(tiles))))
    sheets = (one_sheet(some, cell, per_row) for some in tiles.split(per_row * per_row))
    urls = [data_url(sheet, lossless=side <= LOSSLESS) for sheet in sheets]
    return Sheets(size=side, cell=cell, per_row=per_row, urls=urls)


def cell_of(side: int) -> int:
    """Pixels of the cell that a thumbnail stands in."""
    return side if side <= LOSSLESS else -(-side // 8) * 8


def one_sheet(tiles: UInt8[Tensor, "images 3 side side"], cell: int, per_row: int) -> UInt8[Tensor, "3 height width"]:
    """Return thumbnails in reading order as one picture."""
    rows, beyond = -(-len(tiles) // per_row), cell - tiles.shape[-1]
    sheet = torch.zeros(rows * per_row, 3, cell, cell, dtype=torch.uint8)
    sheet[: len(tiles)] = F.pad(tiles.float(), (0, beyond, 0, beyond), mode="replicate").byte()
    picture = sheet.view(rows, per_row, 3, cell, cell).permute(2, 0, 3, 1, 4)
    return picture.reshape(3, rows * cell, per_row * cell)


def data_url(picture: UInt8[Tensor, "3 height width"], lossless: bool = False) -> str:
    """Return a picture as a data URL, PNG if it is to be lossless and else JPEG."""
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded(picture, lossless)).decode()}"


def encoded(picture: UInt8[Tensor, "3 height width"], lossless: bool = False) -> bytes:
    """Return a picture as PNG if it is to be lossless and else as JPEG."""
    file, image = io.BytesIO(), Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())
    if lossless:
        image.save(file, "PNG", optimize=True)
    else:
        image.save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)  # with optimize, noise overruns its buffer
    return file.getvalue()
