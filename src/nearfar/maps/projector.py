"""Maps by a net, on frozen features or with the encoder: SACLR with the Cauchy kernel (SACLR, Figure 2)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, lr_scheduler

from nearfar.data import Images
from nearfar.evaluation import extract
from nearfar.losses import SACLR
from nearfar.networks import Encoder
from nearfar.views import Views, make_views

BATCH_SIZE = 256
HIDDEN = 256
NEGATIVES = 8  # a few more than one: steadier steps at the same cost, as there are only two dimensions
WEIGHT_DECAY = 0.1
RATE, WARMUP_STEPS = 1e-2, 50
LEAST_STEPS, LEAST_EPOCHS = 1400, 20
FINETUNE_ENCODER_RATE, FINETUNE_RATE = 3e-4, 1e-3
FINETUNE_WARMUP = 0.02  # of the steps: 10 of 450 epochs
FINETUNE_LEAST_STEPS, FINETUNE_LEAST_EPOCHS = 300, 20


class Projector(nn.Module):
    """Features [images, dim] of any norm -> coordinates [images, 2]; made by `fit_projector`.

    Rows are normalised, shifted by `centre` and divided by `scale`; the output of the net is shifted by `offset` and
    rotated by `directions`. partition: the Z at the end of training.
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
        """Coordinates of images, without gradient."""
        with torch.no_grad():
            return (self._raw(features) - self.offset) @ self.directions

    def prepared(self, features: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """The input of the net."""
        return (F.normalize(features, dim=-1) - self.centre) / self.scale

    @torch.no_grad()
    def rotate(self, features: Float[Tensor, "images dim"]) -> None:
        """Centre the coordinates of these features and rotate the direction of largest variance onto the x axis."""
        coordinates = self._raw(features)
        self.offset.copy_(coordinates.mean(0))
        coordinates = coordinates - self.offset
        self.directions.copy_(torch.linalg.eigh((coordinates.T @ coordinates).double()).eigenvectors.flip(1))

    def _raw(self, features: Tensor) -> Tensor:
        return torch.cat([self.net(rows) for rows in self.prepared(features.float()).split(8192)])


def fit_projector(
    view_features: Float[Tensor, "views images dim"],
    features: Float[Tensor, "images dim"] | None = None,
    *,
    epochs: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Projector:
    """Train a net that maps views of one image close together on a plane, and different images apart.

    view_features: frozen backbone features of at least two augmented views of each image. features: those of the
    images without augmentation, whose coordinates are centred; default: the mean over the views.
    epochs: passes over the images; None: about 1400 steps, at least 20 passes. seed: of the weights and the batches.
    progress: called with (epochs done, epochs) after each epoch.
    Returns the projector, on the input's device; the coordinates of `features` are centred, with the widest direction
    along x. It does not depend on torch's global random state and leaves it as it was. A single image lies at 0.
    Raises ValueError for fewer than two views, no images, other shapes, numbers that are not finite and epochs below 1.
    Source: SACLR, Figure 2 (pretrain in many dimensions, then train a 2-D projector), without normalisation.
    Differs from the paper: the backbone stays frozen, so only the projector is trained here.
    """
    if view_features.ndim != 3 or view_features.shape[0] < 2 or view_features.shape[1] < 1:
        shape = list(view_features.shape)
        raise ValueError(
            f"view_features must be [views, images, dim], of two views or more and at least one image, not {shape}"
        )
    features = view_features.mean(0) if features is None else features
    if features.shape != view_features.shape[1:]:
        expected = list(view_features.shape[1:])
        raise ValueError(f"features must be [images, dim] = {expected}, not {list(features.shape)}")
    if not (view_features.isfinite().all() and features.isfinite().all()):
        raise ValueError("some features are not finite; look at the encoder that made them")
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    view_features, features = view_features.detach().float(), features.detach().float()
    _, images, dim = view_features.shape
    batch = min(BATCH_SIZE, images)
    epochs = epochs or max(LEAST_EPOCHS, -(-LEAST_STEPS // (images // batch)))

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
    projector.rotate(features)
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
    optimizer = AdamW(projector.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    schedule = _schedule(optimizer, 1 / WARMUP_STEPS, WARMUP_STEPS, epochs * (images // batch))
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


def finetune_map(
    encoder: Encoder,
    projector: Projector,
    images: Images,
    views: Views,
    *,
    epochs: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Encoder, Projector]:
    """Train the encoder slowly together with a projector that was fitted to it; both arguments stay as they are.

    Three stages, by Boehm, Berens & Kobak 2023 (t-SimCNE), which SACLR, Figure 2, follows: the run's pretraining, then
    the projector alone (`fit_projector`), then all layers, here.
    views: a plan of which the first two views are made for each image and step (twice the first if there is one).
    epochs: passes over the images; None: 20, and at least 300 steps. progress: called with (steps done, steps).
    Returns encoder and projector, in eval mode on the CPU; the coordinates of these images are centred and rotated.
    Raises ValueError for fewer than two images and if the loss is no longer finite.

    Differs from the paper:
    1. It trains for 1000, 50 and 450 epochs, by SGD with momentum 0.9 and a rate of 0.03 * batch / 256, in the third
       stage a thousandth of that. Here AdamW, at 3e-4 for the encoder and 1e-3 for the projector, does in 20 epochs
       what time allows.
    2. The second stage fits a whole projector to features of a few views, in place of the last linear layer to all.
    3. The loss is SACLR's with the Cauchy kernel (its Figure 2), not InfoNCE.
    """
    if len(images) < 2:
        raise ValueError("a map whose encoder is trained needs at least two images")
    net = copy.deepcopy(encoder).requires_grad_(True).to(device)
    head = copy.deepcopy(projector).requires_grad_(True).to(device)
    batch = min(BATCH_SIZE, len(images))
    per_epoch = len(images) // batch
    epochs = epochs or max(FINETUNE_LEAST_EPOCHS, -(-FINETUNE_LEAST_STEPS // per_epoch))
    steps = epochs * per_epoch
    plan = views.pick([0, min(1, len(views) - 1)])
    mean, std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
    loss = SACLR(
        len(images), negatives=min(NEGATIVES, batch - 1), kernel="cauchy", initial_partition=float(projector.partition)
    ).to(device)
    parts = [
        {"params": net.parameters(), "lr": FINETUNE_ENCODER_RATE},
        {"params": head.net.parameters(), "lr": FINETUNE_RATE},
    ]
    optimizer = AdamW(parts, weight_decay=WEIGHT_DECAY)
    schedule = _schedule(optimizer, 0.01, max(1, round(FINETUNE_WARMUP * steps)), steps)
    generator = torch.Generator().manual_seed(seed)
    cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
    net.train()
    with torch.enable_grad(), torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        for epoch in range(epochs):
            order = torch.randperm(len(images), generator=generator)
            for step, index in enumerate(order.split(batch)[:per_epoch], epoch * per_epoch + 1):
                pair = make_views(images.gather(index).to(device), plan, generator, mean, std)
                value = loss(*(head.net(head.prepared(net.backbone(view).float())) for view in pair))
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
                schedule.step()
                if progress is not None:
                    progress(step, steps)
            if not value.isfinite():
                raise ValueError("training this map has diverged: use --layout projector")
    net, head = net.cpu().eval().requires_grad_(False), head.cpu().requires_grad_(False)
    head.rotate(extract(net, images, device=device))
    return net, head


def _schedule(optimizer: AdamW, start: float, warmup: int, steps: int) -> lr_scheduler.ChainedScheduler:
    """A linear rise from the share `start` of the rate, and a cosine to zero."""
    rise = lr_scheduler.LinearLR(optimizer, start, total_iters=warmup)
    return lr_scheduler.ChainedScheduler([rise, lr_scheduler.CosineAnnealingLR(optimizer, steps)])
