"""Thumbnails of images, alone and packed into sheets, as files and as data URLs."""

from __future__ import annotations

import base64
import io

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

JPEG_QUALITY = 85
LOSSLESS = 16  # pixels: up to here a thumbnail is PNG


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
    sheet[: len(tiles)] = F.pad(
        tiles.float(), (0, cell - side, 0, cell - side), mode="replicate"
    ).byte()
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
