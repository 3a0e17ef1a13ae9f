"""Thumbnails of images, alone and packed into sheets, as files and as data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32, Int64, UInt8
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


class KeptPictures:
    """Small versions and thumbnails of images in the .safetensors files of a walk, which are read
    where they are asked for; a file is mapped no longer than that.

    Each file has "small" [rows, channels, side, side], "pictures", the encoded thumbnails one after
    the other, and "places" [rows, 3]: where the one of each row begins and ends there, after the
    number of the file. places: of each image the number of its file, and its row there. side:
    pixels of all thumbnails. `read` has the thumbnails that are in memory, by position.
    """

    def __init__(
        self, files: Mapping[int, Path], places: Int32[np.ndarray, "images 2"], side: int
    ) -> None:
        self.files, self.places, self.side = files, places, side
        self.read: dict[int, UInt8[Tensor, " bytes"]] = {}

    def small(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[Tensor, "rows channels small small"]:
        """Return the small versions of images, by position."""
        with safe_open(next(iter(self.files.values())), "pt") as opened:
            shape = opened.get_slice("small").get_shape()
        images = torch.empty(len(rows), *shape[1:], dtype=torch.uint8)
        for opened, at, own in self._by_file(rows):
            images[at] = opened.get_tensor("small")[own]
        return images

    def thumbnails(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[Tensor, "rows 3 side side"]:
        """Return the thumbnails of images, by position."""
        from torchvision.io import ImageReadMode, decode_image  # here: it takes seconds to import

        tiles = torch.empty(len(rows), 3, self.side, self.side, dtype=torch.uint8)
        for tile, (_, encoded) in zip(tiles, self._encoded(rows), strict=True):
            tile.copy_(decode_image(encoded, ImageReadMode.RGB))
        return tiles

    def in_memory(self, rows: Int64[np.ndarray, " rows"]) -> KeptPictures:
        """Return the same, with the thumbnails of some images in memory, 2 kB each: whoever asks
        for a few of them at a time would read all files each time.
        """
        other = KeptPictures(self.files, self.places, self.side)
        other.read = dict(self._encoded(rows))
        return other

    def subset(self, rows: Int64[np.ndarray, " rows"]) -> KeptPictures:
        """Return those of some images, by position."""
        return KeptPictures(self.files, self.places[rows], self.side)

    def _encoded(
        self, rows: Int64[np.ndarray, " rows"]
    ) -> Iterator[tuple[int, UInt8[Tensor, " bytes"]]]:
        """Yield the position of each of some images, and its encoded thumbnail."""
        read = self.read
        if not read.keys() >= set(rows.tolist()):
            read = dict[int, Tensor]()
            for opened, at, own in self._by_file(rows):
                pictures, places = opened.get_tensor("pictures"), opened.get_tensor("places")[own]
                own_rows = rows[at.numpy()].tolist()
                for row, (_, start, stop) in zip(own_rows, places.tolist(), strict=True):
                    read[row] = pictures[start:stop].clone()
        for row in rows.tolist():
            yield row, read[row]

    def _by_file(self, rows: Int64[np.ndarray, " rows"]) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """Yield each file with some of the images, their places in `rows`, and in the file."""
        number, row = torch.from_numpy(self.places[rows]).long().unbind(1)
        for file in number.unique().tolist():
            (at,) = torch.where(number == file)
            with safe_open(self.files[file], "pt") as opened:
                yield opened, at, row[at]


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
