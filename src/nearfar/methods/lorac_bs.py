"""LORAC-bs as a method."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearfar.losses import LORAC as Loss
from nearfar.losses import checks
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.schedules import Constant, Switch


@dataclass(frozen=True, kw_only=True)
class LORACbs(Method):
    """LORAC-bs: LORAC with one nuclear norm for the variation of all views in the batch.

    The momentum encoder makes keys of the first two large crops; each is paired with the queries of all other crops.

    Args:
        projector: widths of the projector.
        temperature: of the softmax.
        beta: strength of the prior, 2 for ResNet-18, 4 for ResNet-50; infinity switches it off.
        prior_start: fraction of the epochs after which the prior is switched on.
        large_views: crops of the full size, 3 or more: two queries at least are needed to vary around their mean.
        small_views: further small crops.
        queue_size: keys kept.
        momentum: of the momentum encoder.

    Differs from the paper: (1) one queue holds the keys of both crops, where the authors' code keeps two.

    """

    paper = "Wang et al., A Low Rank Promoting Prior for Unsupervised Contrastive Learning (LORAC), TPAMI 2022"
    recipes = {
        "small": small_data(),
        "imagenet": Recipe(
            source="LORAC, section 6.1",
            epochs=200,
            optimizer="lars",
            lr=1.8,
            lr_scaling="none",
            final_lr=0.01,
            weight_decay=1e-6,
            warmup_epochs=0,
            hyperparameters={
                "projector": (2048, 128),
                "queue_size": 65536,
                "momentum": 0.999,
                "beta": 4.0,
                "large_views": 3,
                "small_views": 5,
            },
        ),
    }

    temperature: float = 0.2
    beta: float = 2.0
    prior_start: float = 0.5
    large_views: int = 3
    small_views: int = 2
    queue_size: int = 4096
    momentum: float = 0.99

    def crops(self) -> tuple[str, ...]:
        return ("large",) * self.large_views + ("small",) * self.small_views

    def networks(self, num_images: int) -> Networks:
        checks.at_least(3, large_views=self.large_views)
        checks.at_least(0, small_views=self.small_views)
        checks.fraction(prior_start=self.prior_start)
        return Networks(
            loss=Loss(self.temperature, self.beta, batchwise=True),
            projector=Head(self.projector, hidden_norm=False),
            momentum=Constant(self.momentum),
            momentum_views=(0, 1),
            queue_size=self.queue_size,
            schedules={"beta": Switch(math.inf, self.beta, self.prior_start)},
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        views, keys = embeddings["projection"], embeddings["key"]
        losses = [
            loss(torch.cat([views[:k], views[k + 1 :]]), keys[k], queue, self.large_views - 1) for k in range(len(keys))
        ]
        return torch.stack(losses).mean()
