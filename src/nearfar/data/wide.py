"""Decode whatever can be read: 8-bit pictures as `decode` does, all others in their own numbers and a value range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.data.decode import Decoded, decode, memory_for, to_array, to_pil
from nearfar.data.raw import Raw, raw
from nearfar.data.value_range import floats, sixteen_bits
from nearfar.views import centre_square, from_range, resize_square, unit, with_channels

LARGEST = 2**30  # pixels: a picture is decoded at its full size
PICTURE = (1, 3)  # channels of grey and colour, which are made into each other


def decode_as(data: bytes | str, size: int, channels: int, value_range: Sequence[float] | None) -> Decoded:
    """Decode to [channels, size, size]: uint8, or uint16 where there is a value range; shorter side to `size`, centre.

    value_range: low and high of every channel, which become 0 and 1. Pictures of 8 bits keep their full range.
    Without one, wide images become 8 bits by the rules of `to_pil`. Raises as `decode` does, and ValueError for an
    image with another number of channels; grey and colour are made into each other.
    """
    found = raw(data)
    narrow = found is not None and value_range is None and found.pillow and channels in PICTURE
    if found is None or (narrow and (found.wide or found.channels != channels)):
        must_be_picture(channels)
        picture = decode(data, size, channels)
        if value_range is None:
            return picture._replace(wide=found is not None and found.wide)
        return picture._replace(pixels=picture.pixels.astype(np.uint16) * 257)
    pixels = _planes(found, channels, value_range, size)
    stored = pixels.numpy() if value_range is None else sixteen_bits(pixels)
    return Decoded(stored, found.native, found.channels > 1, found.wide)


def pixels_of(
    data: bytes | str, size: int, channels: int, value_range: Sequence[float] | None
) -> Shaped[Tensor, "channels {size} {size}"]:
    """The same as a tensor: uint8, or float in 0..1."""
    return floats(decode_as(data, size, channels, value_range).pixels.copy())


def whole_planes(
    data: bytes | str, channels: int, value_range: Sequence[float] | None
) -> Shaped[Tensor, "channels height width"]:
    """An image at its own size and shape: uint8, or float in 0..1 where there is a value range."""
    found = raw(data)
    if found is None or (value_range is None and found.pillow and found.channels != channels):
        must_be_picture(channels)
        image, _ = to_pil(data, at_least=LARGEST)
        colour = image.convert("L" if channels == 1 else "RGB")
        planes = torch.tensor(to_array(colour, channels))
        return planes if value_range is None else unit(planes)
    return _planes(found, channels, value_range)


def must_be_picture(channels: int) -> None:
    """Raise ValueError where a picture of 8 bits is among images of other channels."""
    if channels not in PICTURE:
        raise ValueError(f"it is a picture of 8 bits, which has 1 or 3 channels, and {channels} are read")


def _planes(
    found: Raw, channels: int, value_range: Sequence[float] | None, size: int | None = None
) -> Shaped[Tensor, "channels height width"]:
    """The numbers of an image as `_values` makes them; with a size the centre square, resized to it."""
    if found.channels != channels and not {found.channels, channels} <= set(PICTURE):
        raise ValueError(f"it has {found.channels} channels, and {channels} are read: --channels chooses")
    width, height = found.native
    with memory_for(width * height * found.channels):
        planes = found.read()
        if size is None:
            return _values(planes, channels, value_range)
        top, left, side = centre_square(*planes.shape[1:])
        planes = planes[:, top : top + side, left : left + side]
        if found.channels != channels:
            return resize_square(_values(planes, channels, value_range)[None], size)[0]
        ranges = [None if value_range is None else value_range[2 * i : 2 * i + 2] for i in range(channels)]
        # plane by plane, since floats of all of them would take twice as much memory
        made = (_values(planes[i : i + 1], 1, of_plane) for i, of_plane in enumerate(ranges))
        return torch.cat([resize_square(one[None], size)[0] for one in made])


def _values(
    planes: Shaped[np.ndarray, "given height width"], channels: int, value_range: Sequence[float] | None
) -> Shaped[Tensor, "channels height width"]:
    """Numbers to floats in 0..1 by their value range, or to uint8 by the type's own; with this number of channels."""
    if planes.dtype == np.uint8:
        [pixels] = with_channels(torch.from_numpy(np.ascontiguousarray(planes))[None], channels)
        return pixels if value_range is None else unit(pixels)
    numbers = torch.from_numpy(planes.astype(np.float32, order="C"))
    if not numbers.isfinite().all():
        raise ValueError("the image holds values that are not finite")
    if value_range is not None:
        return from_range(with_channels(numbers[None], channels)[0], value_range)
    if planes.dtype != np.uint16:
        raise ValueError(f"it holds {planes.dtype} in {len(planes)} channels, which 8 bits do not hold")
    return with_channels((numbers / 257).round().to(torch.uint8)[None], channels)[0]
