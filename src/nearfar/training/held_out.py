"""Health of a model on images that are held out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.data import Images
from nearfar.methods import Model
from nearfar.training.health import Health, measure_health
from nearfar.training.seeding import stream
from nearfar.views import Views, make_views

LIDAR_IMAGES, LIDAR_VIEWS = 128, 8


def held_out_health(
    model: Model, held_out: Images, plan: Views, seed: int, *, with_lidar: bool = False, batch_size: int = 256
) -> Health:
    """Measure the health of a model on held-out images, from two views each that are the same at every call.

    with_lidar: LiDAR too, on 8 views of the first 128 images, made as the first two views are, in turn; with 512 images
    this is three quarters of the work again.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def embed(rows: slice, positions: Sequence[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Embeddings [views, rows, dim], and the first view's features [rows, features]."""
        pixels = held_out.gather(torch.arange(rows.start, rows.stop)).to(device)
        chosen = plan.pick(positions)
        with torch.no_grad():
            made = make_views(pixels, chosen, generator, held_out.mean, held_out.std, rows, len(held_out))
            features = [model.backbone(view) for view in made]
            return torch.stack([model.online[1](h) for h in features]).float().cpu(), features[0].float().cpu()

    starts = range(0, len(held_out), batch_size)
    parts = [slice(start, min(start + batch_size, len(held_out))) for start in starts]
    pairs, features = zip(*[embed(rows, (0, 1), stream(seed, "health")) for rows in parts], strict=True)
    z = torch.cat(pairs, 1)
    some = slice(0, min(LIDAR_IMAGES, len(held_out)))
    numbers = range(2, LIDAR_VIEWS) if with_lidar else ()
    more = [embed(some, (number % 2,), stream(seed, "health", number))[0] for number in numbers]
    model.train(was_training)
    return measure_health(z[0], z[1], torch.cat(features), torch.cat([z[:, some], *more]) if with_lidar else None)
