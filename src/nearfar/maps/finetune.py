"""A map by a net of which all layers are trained: the third stage of t-SimCNE, on fresh views."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from nearfar.data import Images
from nearfar.evaluation import extract
from nearfar.losses import SACLR
from nearfar.maps.projector import BATCH_SIZE, NEGATIVES, Projector
from nearfar.networks import Encoder
from nearfar.views import Views, make_views

LEAST_STEPS, LEAST_EPOCHS = 300, 20
WARMUP = 0.02  # of the steps: 10 of 450 epochs
RATE, PROJECTOR_RATE = 3e-4, 1e-3
WEIGHT_DECAY = 0.1


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
    """Train the encoder slowly together with a projector that was fitted to it; those given stay as they are.

    Three stages, by Boehm, Berens & Kobak 2023 (t-SimCNE), which SACLR, Figure 2, follows: the run's pretraining, then
    the projector alone (`fit_projector`), then all layers, here.
    views: a plan of which the first two views are made anew for each image and step (twice the first where there is
    one). epochs: passes over the images; None: 20, and at least 300 steps. progress: called with (steps done, steps).
    Returns encoder and projector, in eval mode on the CPU; the projector places these images centred and turned.
    Raises ValueError for fewer than two images and where the loss is no longer finite.

    Differs from the paper:
    1. It trains for 1000, 50 and 450 epochs, by SGD with momentum 0.9 and a rate of 0.03 * batch / 256, in the third
       stage a thousandth of that. Here AdamW, at 3e-4 for the encoder and 1e-3 for the projector, does in 20 epochs
       what time allows.
    2. The second stage fits a whole projector to features of a few views, in place of the last linear layer to all.
    3. The loss is SACLR's with the Cauchy kernel (its Figure 2), not InfoNCE.
    """
    if len(images) < 2:
        raise ValueError("a map whose encoder is trained needs at least two images")
    net, head = copy.deepcopy(encoder), copy.deepcopy(projector)
    for module in (net, head):
        module.requires_grad_(True).to(device)
    batch = min(BATCH_SIZE, len(images))
    per_epoch = len(images) // batch
    epochs = max(LEAST_EPOCHS, -(-LEAST_STEPS // per_epoch)) if epochs is None else epochs
    plan = views.pick([0, min(1, len(views) - 1)])
    mean, std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
    loss = SACLR(
        len(images), negatives=min(NEGATIVES, batch - 1), kernel="cauchy", initial_partition=float(projector.partition)
    ).to(device)
    optimizer, schedule = _optimizer(net, head, epochs * per_epoch)
    generator = torch.Generator().manual_seed(seed)
    cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
    net.train()
    with torch.enable_grad(), torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        done = 0
        for _ in range(epochs):
            for index in torch.randperm(len(images), generator=generator).split(batch)[:per_epoch]:
                pair = make_views(images.gather(index).to(device), plan, generator, mean, std)
                value = loss(*(head.net(head.prepared(net.backbone(view).float())) for view in pair))
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
                schedule.step()
                done += 1
                if progress is not None:
                    progress(done, epochs * per_epoch)
            if not value.isfinite():
                raise ValueError("the training of this map has diverged: take --layout projector")
    net, head = net.cpu().eval().requires_grad_(False), head.cpu().requires_grad_(False)
    head.turn(extract(net, images, device=device))
    return net, head


def _optimizer(
    net: nn.Module, head: Projector, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    parts = [{"params": net.parameters(), "lr": RATE}, {"params": head.net.parameters(), "lr": PROJECTOR_RATE}]
    optimizer = torch.optim.AdamW(parts, weight_decay=WEIGHT_DECAY)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=max(1, round(WARMUP * steps)))
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    return optimizer, torch.optim.lr_scheduler.ChainedScheduler([rise, fall])
