"""Thumbnails of images, alone and packed into sheets, as files and as data URLs."""

from __future__ import annotations

import base64
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32, Int64, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

JPEG_QUALITY = 85
LOSSLESS = 16  # pixels: up to here a thumbnail is PNG
ENLARGED = 48  # pictures below this are shown pixel by pixel
DTYPES = {
    "U8": torch.uint8,
    "I64": torch.int64,
}  # of the tensors that are read, in safetensors' words


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


class KeptPictures:
    """Small versions and thumbnails of images in the .safetensors files of a walk, which are read
    where they are asked for.

    Each file has "small" [rows, channels, side, side], "pictures", the encoded thumbnails one after
    the other, and "places" [rows, 3]: where the one of each row begins and ends there, after the
    number of the file. places: of each image the number of its file, and its row there. side:
    pixels of all thumbnails.
    """

    def __init__(
        self, files: Mapping[int, Path], places: Int32[np.ndarray, "images 2"], side: int
    ) -> None:
        self.files, self.places, self.side = files, places, side
        self._opened: dict[int, _Tensors] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}}

    def small(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[Tensor, "rows channels small small"]:
        """Return the small versions of images, by position."""
        shape = self._file(next(iter(self.files))).header["small"]["shape"]
        images = torch.empty(len(rows), *shape[1:], dtype=torch.uint8)
        for image, (number, row) in zip(images, self.places[rows].tolist(), strict=True):
            image.copy_(self._file(number).row("small", row))
        return images

    def thumbnails(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[Tensor, "rows 3 side side"]:
        """Return the thumbnails of images, by position."""
        from torchvision.io import ImageReadMode, decode_image  # here: it takes seconds to import

        tiles = torch.empty(len(rows), 3, self.side, self.side, dtype=torch.uint8)
        for tile, (number, row) in zip(tiles, self.places[rows].tolist(), strict=True):
            file = self._file(number)
            _, start, stop = file.row("places", row).tolist()
            tile.copy_(decode_image(file.part("pictures", start, stop), ImageReadMode.RGB))
        return tiles

    def subset(self, rows: Int64[np.ndarray, " rows"]) -> KeptPictures:
        """Return those of some images, by position."""
        return KeptPictures(self.files, self.places[rows], self.side)

    def _file(self, number: int) -> _Tensors:
        if number not in self._opened:
            self._opened[number] = _Tensors(self.files[number])
        return self._opened[number]


class _Tensors:
    """The tensors of a .safetensors file by rows, each read when it is asked for: a file that is
    mapped would count as memory for as long.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)
        length = int.from_bytes(self.file.read(8), "little")
        self.header = json.loads(self.file.read(length))
        self.begin = 8 + length

    def row(self, name: str, number: int) -> Tensor:
        """Return a row of a tensor."""
        return self.part(name, number, number + 1)[0]

    def part(self, name: str, start: int, stop: int) -> Tensor:
        """Return some rows of a tensor that follow each other."""
        about = self.header[name]
        kind, shape = DTYPES[about["dtype"]], about["shape"][1:]
        width = kind.itemsize * math.prod(shape)
        place = self.begin + about["data_offsets"][0] + start * width
        content = bytearray(os.pread(self.file.fileno(), (stop - start) * width, place))
        return torch.frombuffer(content, dtype=kind).view(-1, *shape)


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
