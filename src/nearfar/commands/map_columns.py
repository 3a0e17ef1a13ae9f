"""What every image of a map can be coloured by without labels, and its nearest images in feature space."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from rich.console import Console
from torch import Tensor

from nearfar.commands.opening import features_shown
from nearfar.commands.run_features import nearest_shown
from nearfar.data import Images
from nearfar.neighbours import Nearest
from nearfar.networks import Encoder
from nearfar.training.seeding import stream
from nearfar.views import Views

NEAREST = 15
LEAST = 1e-6  # cosine distance below which rows of float32 are the same


def map_columns(
    encoder: Encoder,
    images: Images,
    features: Float[Tensor, "images dim"],
    plan: Views,
    console: Console | None = None,
    *,
    seed: int = 0,
    approximate: bool = False,
) -> tuple[dict[str, np.ndarray], Int64[Tensor, "images k"] | None]:
    """Return columns for `nearfar.pages.write_map_page`, and the 15 nearest images (cosine) of each, nearest first.

    - outlierness: cosine distance to the 15th nearest image (Ramaswamy et al. 2000)
    - density: minus the common logarithm of the mean distance to the 15 nearest, the order of the typicality of
      Hacohen et al. 2022
    - own view found: whether the image nearest to its one augmented view, among other views of all, is its own

    Exact unless `approximate`, in linear memory; time grows with the square of the images. Of fewer images fewer are
    taken; of a single one nothing can be said.
    """
    count = min(NEAREST, len(images) - 1)
    if count < 1:
        return {}, None
    near = nearest_shown(features, count, console, approximate=approximate)
    views: list[Tensor] = []
    for number in range(2):
        view, generator = plan.pick([number % len(plan)]), stream(seed, "own view", number)
        views.append(features_shown(encoder, images, console, f"own view {number + 1} of 2", view, generator))
    columns = {**neighbour_columns(near), "own view found": own_view_found(views[0], views[1], console, approximate)}
    return columns, near.index


def neighbour_columns(near: Nearest) -> dict[str, Float32[np.ndarray, " images"]]:
    """Outlierness and density; see `map_columns`."""
    distance = near.distance.cpu()
    density = -distance.mean(1).clamp_min(LEAST).log10()
    return {"outlierness": distance[:, -1].numpy(), "density": density.numpy()}


def own_view_found(
    first: Float[Tensor, "images dim"],
    second: Float[Tensor, "images dim"],
    console: Console | None = None,
    approximate: bool = False,
) -> Bool[np.ndarray, " images"]:
    """Whether the row of `second` nearest to a row of `first` is the one at its place."""
    nearest = nearest_shown(second, 1, console, first, approximate=approximate).index[:, 0]
    return (nearest == torch.arange(len(first))).numpy()
