"""Maps by a net, on frozen features or with the encoder: SACLR with the Cauchy kernel (SACLR,
Figure 2).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR

from nearfar.data import Images
from nearfar.device import in_float64, seeded
from nearfar.evaluation import extract
from nearfar.losses import SACLR
from nearfar.networks import Encoder
from nearfar.progress import progress
from nearfar.views import Views, make_views

BATCH_SIZE, HIDDEN = 256, 256
# a few more than one: steadier steps at the same cost, as there are only two dimensions
NEGATIVES = 8
WEIGHT_DECAY = 0.1
LEAST_EPOCHS = 20
RATE, WARMUP_STEPS, LEAST_STEPS = 1e-2, 50, 1400
FINETUNE_ENCODER_RATE, FINETUNE_RATE, FINETUNE_LEAST_STEPS = 3e-4, 1e-3, 300
FINETUNE_WARMUP = 0.02  # of the steps: 10 of 450 epochs


class Projector(nn.Module):
    """Features [images, dim] of any norm -> coordinates [images, 2]; made by `fit_projector`.

    Rows are normalised, shifted by `centre` and divided by `scale`; the output of the net is
    shifted by `offset` and rotated by `directions`. partition: the Z at the end of training.

    >>> Projector(dim=8)(torch.randn(5, 8)).shape
    torch.Size([5, 2])
    """

    centre: Tensor
    scale: Tensor
    offset: Tensor
    directions: Tensor
    partition: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(
                nn.Linear(dim, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, 2),
            )
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
        """Centre the coordinates of these features and rotate the direction of largest variance
        onto the x axis.
        """
        coordinates = self._raw(features)
        self.offset.copy_(coordinates.mean(0))
        coordinates = coordinates - self.offset
        self.directions.copy_(
            torch.linalg.eigh(in_float64(coordinates.T @ coordinates)).eigenvectors.flip(1)
        )

    def _raw(self, features: Tensor) -> Tensor:
        return torch.cat([self.net(rows) for rows in self.prepared(features.float()).split(8192)])


def fit_projector(
    view_features: Float[Tensor, "views images dim"],
    features: Float[Tensor, "images dim"] | None = None,
    *,
    epochs: int | None = None,
    seed: int = 0,
) -> Projector:
    """Train a net that maps views of one image close together on a plane, and different images
    apart.

    view_features: frozen backbone features of at least two augmented views of each image.
    features: those of the images without augmentation, whose coordinates are centred; default:
    the mean over the views. epochs: passes over the images; None: about 1400 steps, at least 20
    passes. seed: of the weights and the batches. Returns the projector, on the input's device;
    the coordinates of `features` are centred, with the widest direction along x. It does not
    depend on torch's global random state and leaves it as it was. A single image lies at 0.
    Raises ValueError for fewer than two views, no images, other shapes and numbers that are not
    finite. Source: SACLR, Figure 2 (pretrain in many dimensions, then train a 2-D projector),
    without normalisation. Differs from the paper: the backbone stays frozen, so only the
    projector is trained here.

    >>> projector = fit_projector(torch.randn(2, 20, 8), epochs=1)
    >>> projector(torch.randn(5, 8)).shape
    torch.Size([5, 2])
    """
    shape = list(view_features.shape)
    if (
        len(shape) != 3
        or shape[0] < 2
        or shape[1] < 1
        or (features is not None and list(features.shape) != shape[1:])
    ):
        given = "" if features is None else f" and {list(features.shape)}"
        raise ValueError(
            f"a map needs features of two views or more, [views, images, dim], not {shape}{given}"
        )
    view_features = view_features.detach().float()
    features = view_features.mean(0) if features is None else features.detach().float()
    if not (view_features.isfinite().all() and features.isfinite().all()):
        raise ValueError("some features are not finite; look at the encoder that made them")
    views, images, dim = shape
    batch = min(BATCH_SIZE, images)

    with torch.enable_grad(), seeded(features.device, seed):
        projector = Projector(dim).to(features.device)
        if images == 1:
            return projector
        unit = F.normalize(view_features, dim=-1)  # features are compared by cosine everywhere else
        projector.centre.copy_(unit.mean((0, 1)))
        projector.scale.copy_((unit - projector.centre).square().mean().sqrt().clamp_min(1e-6))
        prepared = projector.prepared(view_features)

        def pairs(index: Tensor) -> Iterable[Tensor]:
            first = torch.randint(views, (batch,))
            second = (
                first + torch.randint(1, views, (batch,))
            ) % views  # another view than the first
            return projector.net(
                torch.cat([prepared[first, index], prepared[second, index]])
            ).chunk(2)

        loss = SACLR(images, negatives=min(NEGATIVES, batch - 1), kernel="cauchy").to(
            features.device
        )
        optimizer = AdamW(projector.net.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
        epochs = epochs or _epochs(images, LEAST_STEPS)
        _train(optimizer, loss, pairs, images, epochs, WARMUP_STEPS)
    projector.partition.copy_(loss.partition)
    projector.rotate(features)
    return projector.requires_grad_(False)


def finetune_map(
    encoder: Encoder,
    projector: Projector,
    images: Images,
    views: Views,
    *,
    epochs: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[Encoder, Projector]:
    """Train the encoder slowly together with a projector that was fitted to it; both arguments stay
    as they are.

    Three stages, by Boehm, Berens & Kobak 2023 (t-SimCNE), which SACLR, Figure 2, follows: the
    run's pretraining, then the projector alone (`fit_projector`), then all layers, here. views:
    a plan of which the first two views are made for each image and step (twice the first if
    there is one). epochs: passes over the images; None: 20, and at least 300 steps. Returns
    encoder and projector, in eval mode on the CPU; the coordinates of these images are centred
    and rotated. Raises ValueError for fewer than two images and if the loss is no longer
    finite.

    Differs from the paper:
    1. It trains for 1000, 50 and 450 epochs, by SGD with momentum 0.9 and a rate of 0.03 * batch /
       256, in the third stage a thousandth of that. Here AdamW, at 3e-4 for the encoder and 1e-3
       for the projector, does in 20 epochs what time allows.
    2. The second stage fits a whole projector to features of a few views, in place of the last
       linear layer to all.
    3. The loss is SACLR's with the Cauchy kernel (its Figure 2), not InfoNCE.
    """
    check_enough(len(images))
    net = copy.deepcopy(encoder).requires_grad_(True).to(device).train()
    head = copy.deepcopy(projector).requires_grad_(True).to(device)
    plan = views.pick([0, min(1, len(views) - 1)])
    mean, std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
    generator = torch.Generator().manual_seed(seed)

    def pairs(index: Tensor) -> Iterable[Tensor]:
        made = make_views(images.gather(index).to(device), plan, generator, mean, std)
        return [head.net(head.prepared(net.backbone(view).float())) for view in made]

    negatives, partition = (
        min(NEGATIVES, BATCH_SIZE - 1, len(images) - 1),
        float(projector.partition),
    )
    loss = SACLR(len(images), negatives=negatives, kernel="cauchy", initial_partition=partition).to(
        device
    )
    parts = [
        {"params": net.parameters(), "lr": FINETUNE_ENCODER_RATE},
        {"params": head.net.parameters(), "lr": FINETUNE_RATE},
    ]
    epochs = epochs or _epochs(len(images), FINETUNE_LEAST_STEPS)
    warmup = max(1, round(FINETUNE_WARMUP * epochs * (len(images) // min(BATCH_SIZE, len(images)))))
    with torch.enable_grad(), seeded(device, seed):
        optimizer = AdamW(parts, weight_decay=WEIGHT_DECAY)
        _train(optimizer, loss, pairs, len(images), epochs, warmup)
    net, head = net.cpu().eval().requires_grad_(False), head.cpu().requires_grad_(False)
    head.rotate(extract(net, images, device=device))
    return net, head


def check_enough(images: int) -> None:
    """Raise ValueError for fewer images than `finetune_map` needs."""
    if images < 2:
        raise ValueError("a map whose encoder is trained needs at least two images")


def epochs_of_first_stage(images: int, epochs: int | None) -> int:
    """Return the passes of a projector alone before `finetune_map`: its default number, and where
    fewer than 20 `epochs` follow, less in proportion.
    """
    share = min(1.0, (epochs or LEAST_EPOCHS) / LEAST_EPOCHS)
    return max(1, round(share * _epochs(images, LEAST_STEPS)))


def _epochs(images: int, least_steps: int) -> int:
    return max(LEAST_EPOCHS, -(-least_steps // (images // min(BATCH_SIZE, images))))


def _train(
    optimizer: AdamW,
    loss: nn.Module,
    pairs: Callable[[Tensor], Iterable[Tensor]],
    images: int,
    epochs: int,
    warmup: int,
) -> None:
    """Minimise the loss of pairs of views of a batch of images: a linear rise of the rates, and a
    cosine to zero.
    """
    batch = min(BATCH_SIZE, images)
    steps = epochs * (images // batch)
    rise = LinearLR(optimizer, 1 / warmup, total_iters=warmup)
    schedule = ChainedScheduler([rise, CosineAnnealingLR(optimizer, steps)])
    with progress("laying out the map", steps) as bar:
        for _ in range(epochs):
            for index in torch.randperm(images)[: images - images % batch].split(batch):
                value = loss(*pairs(index))
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
                schedule.step()
                bar.advance()
            if not value.isfinite():
                raise ValueError("training this map has diverged: choose another `layout`")
