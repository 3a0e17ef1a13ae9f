"""A 2-D projector on frozen features: SACLR with the Cauchy kernel (SACLR, Figure 2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import SACLR

BATCH_SIZE = 256
HIDDEN = 256
NEGATIVES = 8  # a few more than one: steadier steps at the same cost, as there are only two dimensions
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 0.1
WARMUP_STEPS = 50
LEAST_STEPS, LEAST_EPOCHS = 1400, 20


class Projector(nn.Module):
    """Features [images, dim] of any length -> places [images, 2]; made by `fit_projector`.

    Rows are normalised, shifted by `centre` and divided by `scale`; what the net makes of them is shifted by `offset`
    and turned by `directions`. partition: the Z at which its training ended.
    """

    centre: Tensor
    scale: Tensor
    offset: Tensor
    directions: Tensor
    partition: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Linear(dim, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
        )
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("offset", torch.zeros(2))
        self.register_buffer("directions", torch.zeros(2, 2))
        self.register_buffer("partition", torch.ones(()))

    def forward(self, features: Float[Tensor, "images dim"]) -> Float[Tensor, "images 2"]:
        """Places of images, without gradient."""
        with torch.no_grad():
            return (self._raw(features) - self.offset) @ self.directions

    def prepared(self, features: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """What the net takes."""
        return (F.normalize(features, dim=-1) - self.centre) / self.scale

    @torch.no_grad()
    def turn(self, features: Float[Tensor, "images dim"]) -> None:
        """Centre the places of these features and turn the direction of largest variance onto the x axis."""
        places = self._raw(features)
        self.offset.copy_(places.mean(0))
        places = places - self.offset
        self.directions.copy_(torch.linalg.eigh((places.T @ places).double()).eigenvectors.flip(1))

    def _raw(self, features: Tensor) -> Tensor:
        return torch.cat([self.net(rows) for rows in self.prepared(features.float()).split(8192)])


def fit_map(
    view_features: Float[Tensor, "views images dim"],
    features: Float[Tensor, "images dim"] | None = None,
    *,
    epochs: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "images 2"]:
    """Places of images by a projector that is fitted to them: `fit_projector`, of which nothing else is wanted."""
    projector = fit_projector(view_features, features, epochs=epochs, seed=seed, progress=progress)
    return projector(view_features.mean(0) if features is None else features)


def fit_projector(
    view_features: Float[Tensor, "views images dim"],
    features: Float[Tensor, "images dim"] | None = None,
    *,
    epochs: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Projector:
    """Fit a net that places images on a plane so that views of one image are near and different images are far.

    view_features: frozen backbone features of at least two augmented views of each image. features: those of the
    images without augmentation, on whose places the map is centred; the mean over the views where not given.
    epochs: passes over the images; None: about 1400 steps, at least 20 passes. seed: of the weights and the batches.
    progress: called with (epochs done, epochs) after each epoch.
    Returns the projector, on the input's device, whose places of `features` are centred, the widest direction along x.
    It does not depend on torch's global random state and leaves it as it was. A single image is placed at 0.
    Raises ValueError for fewer than two views, no images, other shapes, numbers that are not finite and epochs below 1.
    Source: SACLR, Figure 2 (pretrain in many dimensions, then train a 2-D projector), without normalisation.
    Differs from the paper: the backbone stays frozen, so only the projector is trained here.
    """
    view_features, features = _checked(view_features, features)
    _, images, dim = view_features.shape
    batch = min(BATCH_SIZE, images)
    if epochs is None:
        epochs = max(LEAST_EPOCHS, -(-LEAST_STEPS // (images // batch)))
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")

    cuda = [features.device] if features.is_cuda else []
    with torch.enable_grad(), torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        projector = Projector(dim).to(features.device)
        if images == 1:
            return projector
        unit = F.normalize(view_features, dim=-1)  # features are compared by cosine everywhere else
        projector.centre.copy_(unit.mean((0, 1)))
        projector.scale.copy_((unit - projector.centre).square().mean().sqrt().clamp_min(1e-6))
        loss = SACLR(images, negatives=min(NEGATIVES, batch - 1), kernel="cauchy").to(features.device)
        _train(projector.net, loss, projector.prepared(view_features), epochs, batch, progress)
    projector.partition.copy_(loss.partition)
    projector.turn(features)
    return projector.requires_grad_(False)


def _train(
    projector: nn.Module,
    loss: nn.Module,
    view_features: Tensor,
    epochs: int,
    batch: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    views, images, _ = view_features.shape
    optimizer = torch.optim.AdamW(projector.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = epochs * (images // batch)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARMUP_STEPS, total_iters=WARMUP_STEPS)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    schedule = torch.optim.lr_scheduler.ChainedScheduler([warmup, cosine])
    for epoch in range(epochs):
        order = torch.randperm(images)
        for index in order[: images - images % batch].split(batch):
            first = torch.randint(views, (batch,))
            second = (first + torch.randint(1, views, (batch,))) % views  # another view than the first
            z1, z2 = projector(torch.cat([view_features[first, index], view_features[second, index]])).chunk(2)
            optimizer.zero_grad(set_to_none=True)
            loss(z1, z2).backward()
            optimizer.step()
            schedule.step()
        if progress is not None:
            progress(epoch + 1, epochs)


def _checked(view_features: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
    if view_features.ndim != 3:
        raise ValueError(f"view_features must be [views, images, dim], not {list(view_features.shape)}")
    if view_features.shape[0] < 2:
        raise ValueError("a map needs the features of at least two views of each image")
    if view_features.shape[1] < 1:
        raise ValueError("a map needs at least one image")
    features = view_features.mean(0) if features is None else features
    if features.shape != view_features.shape[1:]:
        expected = list(view_features.shape[1:])
        raise ValueError(f"features must be [images, dim] = {expected}, not {list(features.shape)}")
    if not (view_features.isfinite().all() and features.isfinite().all()):
        raise ValueError("some features are not finite numbers; look at the encoder that made them")
    return view_features.detach().float(), features.detach().float()
