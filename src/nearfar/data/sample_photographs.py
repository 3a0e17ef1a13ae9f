"""A few real photographs that are always at hand: squares cut from the two that come with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from nearfar.views import resize_square, with_channels


def photographs(count: int, image_size: int, channels: int) -> UInt8[Tensor, "count channels size size"]:
    """Return squares of different sizes and places, the same at every call; channels beyond colour repeat it in turn.

    Meant to try a net on what images look like, where the data of a run may be far away.
    """
    from sklearn.datasets import load_sample_images

    given = [torch.tensor(photo).permute(2, 0, 1) for photo in load_sample_images().images]
    generator, squares = np.random.default_rng(0), []
    for number in range(count):
        photo = given[number % len(given)]
        side = int(generator.integers(96, min(photo.shape[1:])))
        top, left = (int(generator.integers(0, length - side + 1)) for length in photo.shape[1:])
        squares.append(resize_square(photo[None, :, top : top + side, left : left + side], image_size))
    images = torch.cat(squares)
    return with_channels(images, channels) if channels in (1, 3) else images[:, [i % 3 for i in range(channels)]]
