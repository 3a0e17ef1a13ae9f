"""The form of decoded images: size, channels, and the numbers that stand for 0 and 1 in those of
more than 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Shaped

from nearfar.data.bits import RANGES
from nearfar.messages import check_number
from nearfar.views import check_value_range, with_channels

PERCENTILES = (0.5, 99.5)
SAMPLED, PIXELS = 100, 4096  # images that are looked at, and about so many pixels of each
LARGEST = 8192  # pixels of a side: one image of that size takes 200 MB
EIGHT_BITS: Final = "uint8"
FULL = "full"
ValueRange: TypeAlias = Sequence[float] | str | None
"""Low and high for all channels, or for each in turn; "full", "uint8", or None for percentiles of a
sample.
"""


class PixelFormat(NamedTuple):
    """Form to which all images are decoded. value_range: low and high of every channel, for uint16;
    None: uint8.
    """

    size: int
    channels: int
    value_range: list[float] | None = None

    @property
    def dtype(self) -> np.dtype:
        """The type of stored pixels."""
        return np.dtype(np.uint8 if self.value_range is None else np.uint16)

    @property
    def white(self) -> int:
        """The stored number that stands for 1."""
        return RANGES[self.dtype.name][1]

    def bytes_of(self, count: int) -> int:
        """Return the bytes that the pixels of so many images take."""
        return count * self.channels * self.size**2 * self.dtype.itemsize


class FormatRequest(NamedTuple):
    """The form that is asked for; None for what is to be chosen."""

    size: int | None = None
    channels: int | None = None
    value_range: ValueRange = None


ANY_FORMAT = FormatRequest()


def parse_request(image_size: int | None, channels: int | None, value_range: Any) -> FormatRequest:
    """The form that is asked for; ValueError for what no image can have."""
    check_number("image_size", image_size, 1, LARGEST, is_whole=True)
    check_number("channels", channels, 1, is_whole=True)
    if value_range is None or (isinstance(value_range, str) and value_range in (FULL, EIGHT_BITS)):
        return FormatRequest(image_size, channels, value_range)
    return FormatRequest(image_size, channels, check_value_range(value_range))


def for_channels(value_range: Sequence[float], channels: int) -> list[float]:
    """Low and high of every channel in turn; one pair serves all. ValueError for any other
    number.
    """
    if len(value_range) not in (2, 2 * channels):
        raise ValueError(
            f"{channels} channels need one pair LOW HIGH or {channels}, got "
            f"{len(value_range) // 2} pairs"
        )
    return list(value_range) * (2 * channels // len(value_range))


def of_sample(sample: Sequence[np.ndarray], channels: int, value_range: ValueRange) -> list[float]:
    """Low and high of every channel: percentiles over the sample, or the full range of its type;
    given ones stay.

    sample: images [channels, height, width] in their own numbers; those that are not finite are
    passed over. Floats that all lie in 0..1 have the range 0 to 1.
    """
    if value_range is not None and not isinstance(value_range, str):
        return for_channels(value_range, channels)
    kinds = {image.dtype for image in sample}
    whole = all(kind.kind in "ui" for kind in kinds)
    if value_range == FULL:
        ends = [np.iinfo(kind) for kind in kinds] if whole else []
        return [
            float(min((e.min for e in ends), default=0)),
            float(max((e.max for e in ends), default=1)),
        ] * channels
    seen = [
        with_channels(torch.from_numpy(thinned(image).astype(np.float32))[None], channels)[0]
        for image in sample
    ]
    finite = [image.flatten(1) for image in seen if image.isfinite().all()]
    if not finite:
        raise ValueError("images must hold finite numbers")
    numbers = torch.cat(finite, 1).numpy()
    if not whole and numbers.min() >= 0 and numbers.max() <= 1:
        return [0.0, 1.0] * channels
    lows, highs = np.percentile(numbers, PERCENTILES, axis=1).astype(np.float64)
    return [
        float(x)
        for low, high in zip(lows, highs, strict=True)
        for x in (low, high if high > low else low + 1)
    ]


def thinned(
    planes: Shaped[np.ndarray, "channels height width"],
) -> Shaped[np.ndarray, "channels h w"]:
    """Every so many rows and columns of an image, `PIXELS` pixels or a few more."""
    step = max(1, math.isqrt(planes.shape[1] * planes.shape[2] // PIXELS))
    return planes[:, ::step, ::step]


def spread(total: int, count: int = SAMPLED) -> list[int]:
    """So many positions, evenly spaced over `total`; all where there are no more."""
    return np.linspace(0, total - 1, min(count, total)).round().astype(int).tolist()


def describe_range(value_range: Sequence[float]) -> str:
    """One line on what is black and white."""
    pairs = [
        f"{low:g} to {high:g}"
        for low, high in zip(value_range[::2], value_range[1::2], strict=True)
    ]
    which = pairs[0] if len(set(pairs)) == 1 else f"{', '.join(pairs)} in its channels"
    return f"values from {which} are black to white; `value_range` changes that"
